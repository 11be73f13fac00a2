//! Plots of any runs as files, for papers and slides; the page draws its own, which follow its colours.

use std::collections::BTreeSet;

use crate::Share;
use crate::page::data::{Data, Family, Setting};
use crate::page::plots::shown;
use crate::page::{PageInput, mean, rounds};
use crate::study::plot::{Plot, PlotStyle, Series, lines};

/// A plot and the name of its files without an ending.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPlot {
    /// Kind, target, sampling, thinking, arrivals if open, and the concurrency where the plot is of one.
    pub file: String,
    /// The plot.
    pub plot: Plot,
}

/// For each target, sampling, thinking and arrivals: throughput and tau by concurrency if there are two; of each
/// concurrency speedup by suite, and time of a round; of the lowest one acceptance by position and accepted drafts a
/// round. What there are no values for is left out.
pub fn report_plots(input: &PageInput<'_>) -> Vec<NamedPlot> {
    drawn(&Data::new(input))
}

/// The plots of pools that are there already.
pub(crate) fn drawn(data: &Data<'_>) -> Vec<NamedPlot> {
    let mut out = Vec::new();
    for (family, settings) in data.families() {
        let mut add = |kind: &str, at: Option<&Setting>, plot: Option<Plot>| {
            let Some(mut plot) = plot else { return };
            plot.series.retain(|s| s.values.iter().any(Option::is_some));
            if plot.series.is_empty() {
                return;
            }
            let place = at.map_or_else(|| family.title(), Setting::title);
            plot.title = format!("{}: {place}", plot.title);
            let file = file_name(kind, family, at);
            out.push(NamedPlot { file, plot });
        };
        let throughput = |s: &Setting, arm: &str| mean::throughput(data.pools.get(s)?.get(arm)?);
        let labels = ["Throughput", "tokens a second, all sequences"];
        add(
            "throughput",
            None,
            by_concurrency(data, &settings, labels, throughput),
        );
        let tau = |s: &Setting, arm: &str| data.standing(s, arm).tau.filter(|_| arm != "vanilla");
        let labels = ["Acceptance length", "tau"];
        add("tau", None, by_concurrency(data, &settings, labels, tau));
        for setting in &settings {
            add("speedup", Some(setting), speedup(data, setting));
            add("round", Some(setting), round(data, setting));
        }
        add("positions", Some(settings[0]), positions(data, settings[0]));
        add("accepted", Some(settings[0]), accepted(data, settings[0]));
    }
    out
}

fn file_name(kind: &str, family: &Family, at: Option<&Setting>) -> String {
    let mut name = format!(
        "{kind}-{}-{}-thinking-{}",
        family.target, family.sampling, family.thinking
    );
    if !family.arrivals.is_closed() {
        name.push_str(&format!("-{}", family.arrivals));
    }
    if let Some(setting) = at {
        name.push_str(&format!("-x{}", setting.concurrency));
    }
    name
}

fn drafting<'d>(data: &'d Data<'_>, setting: &Setting) -> Vec<&'d str> {
    let arms = data.arms_of(setting);
    shown(data, arms.into_iter().filter(|a| *a != "vanilla").collect())
}

fn by_concurrency(
    data: &Data<'_>,
    settings: &[&Setting],
    [title, label]: [&'static str; 2],
    value: impl Fn(&Setting, &str) -> Option<Share>,
) -> Option<Plot> {
    if settings.len() < 2 {
        return None;
    }
    let places = settings.iter().map(|s| s.concurrency.to_string()).collect();
    let id = if label == "tau" { "tau" } else { "throughput" };
    let mut plot = lines(id, title, ["sequences at once", label], places);
    let all: BTreeSet<&str> = settings.iter().flat_map(|s| data.arms_of(s)).collect();
    let arms = data.arms.iter().map(String::as_str);
    for arm in shown(data, arms.filter(|a| all.contains(a)).collect()) {
        let values = settings.iter().map(|s| value(s, arm)).collect();
        plot.series.push(Series::new(arm, values));
    }
    Some(plot)
}

fn speedup(data: &Data<'_>, setting: &Setting) -> Option<Plot> {
    let suites = data.suites_of(setting);
    let places = suites.iter().map(|s| (*s).to_owned()).collect();
    let mut plot = lines("speedup", "Speedup", ["suite", "times vanilla"], places);
    plot.style = PlotStyle::Bars;
    for arm in drafting(data, setting) {
        let value = |suite: &&str| {
            let stat = data.stat(setting, suite, arm)?;
            let value = stat.speedup.filter(|_| stat.trouble.is_none())?;
            let interval = stat.speedup_interval;
            Some(Share { value, interval })
        };
        let values = suites.iter().map(value).collect();
        plot.series.push(Series::new(arm, values));
    }
    Some(plot)
}

fn round(data: &Data<'_>, setting: &Setting) -> Option<Plot> {
    let pools = data.pools.get(setting)?;
    let arms = shown(data, data.arms_of(setting));
    let its: Vec<(&str, [f64; 4])> = arms
        .into_iter()
        .filter_map(|arm| Some((arm, rounds::parts(pools.get(arm)?)?)))
        .collect();
    let places = its.iter().map(|(arm, _)| (*arm).to_owned()).collect();
    let labels = ["method", "milliseconds a round of one sequence"];
    let mut plot = lines("round", "Time of a round", labels, places);
    plot.style = PlotStyle::Stack;
    for (part, name) in ["draft", "head", "verify", "rest"].into_iter().enumerate() {
        let value = |(_, parts): &(&str, [f64; 4])| {
            let (value, interval) = (parts[part], None);
            Some(Share { value, interval })
        };
        let values = its.iter().map(value).collect();
        plot.series.push(Series::new(name, values));
    }
    Some(plot)
}

fn positions(data: &Data<'_>, setting: &Setting) -> Option<Plot> {
    let pools = data.pools.get(setting)?;
    let its = drafting(data, setting).into_iter();
    let its: Vec<(&str, Vec<Share>)> = its
        .filter_map(|arm| Some((arm, pools.get(arm)?.reached_positions())))
        .collect();
    let n = its.iter().map(|(_, shares)| shares.len()).max()?;
    let places = (1..=n).map(|i| i.to_string()).collect();
    let labels = ["draft position", "accepted, of those judged"];
    let mut plot = lines("positions", "Conditional acceptance", labels, places);
    for (arm, shares) in its {
        let values = (0..n).map(|i| shares.get(i).copied()).collect();
        plot.series.push(Series::new(arm, values));
    }
    Some(plot)
}

fn accepted(data: &Data<'_>, setting: &Setting) -> Option<Plot> {
    let its = drafting(data, setting).into_iter();
    let its: Vec<(&str, Vec<u64>)> = its
        .map(|arm| (arm, rounds::counts(data, setting, arm)))
        .filter(|(_, counts)| !counts.is_empty())
        .collect();
    let n = its.iter().map(|(_, counts)| counts.len()).max()?;
    let places = (0..n).map(|i| i.to_string()).collect();
    let labels = ["drafts accepted", "share of rounds"];
    let mut plot = lines("accepted", "Accepted drafts a round", labels, places);
    for (arm, counts) in its {
        let all = counts.iter().sum::<u64>().max(1) as f64;
        let value = |i: usize| {
            let (value, interval) = (*counts.get(i)? as f64 / all, None);
            Some(Share { value, interval })
        };
        plot.series
            .push(Series::new(arm, (0..n).map(value).collect()));
    }
    Some(plot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::record::tests::{answer, record};

    #[test]
    fn every_kind_that_has_values_is_drawn_and_named_by_its_place() {
        let at = |concurrency: u32, mut record: Record| {
            record.cell.concurrency = concurrency;
            record
        };
        let mut records = Vec::new();
        for concurrency in [1, 4] {
            for prompt in ["a", "b"] {
                records.push(at(
                    concurrency,
                    record("vanilla", prompt, answer(&[(0, 1); 6])),
                ));
                records.push(at(
                    concurrency,
                    record("dflash", prompt, answer(&[(2, 3), (2, 3)])),
                ));
            }
        }
        let input = PageInput {
            title: "t",
            records: &records,
            runs: &[],
            synthetic: &[],
            flags: &[],
            coverage: &[],
            training: &[],
        };
        let plots = report_plots(&input);
        let files: Vec<&str> = plots.iter().map(|p| p.file.as_str()).collect();
        // Without phases there is no time of a round.
        let want = [
            "throughput-toy-greedy-thinking-off",
            "tau-toy-greedy-thinking-off",
            "speedup-toy-greedy-thinking-off-x1",
            "speedup-toy-greedy-thinking-off-x4",
            "positions-toy-greedy-thinking-off-x1",
            "accepted-toy-greedy-thinking-off-x1",
        ];
        assert_eq!(files, want);
        for named in &plots {
            assert!(
                named.plot.svg().unwrap().contains("dflash"),
                "{}",
                named.file
            );
        }
        let histogram = &plots[5].plot.series[0].values;
        assert_eq!(histogram[2].map(|s| s.value), Some(1.0));
    }
}
