//! The plots of one family of cells: what each shows, of which arms, and why one is left out.

use std::collections::BTreeMap;

use super::chart::{Axis, Guide, LineChart, Point, Series};
use super::data::{Data, Setting};
use super::figure::{Drawing, Figure, Legend, Width};
use super::html::{esc, percent, rate, two};
use super::svg::Step;
use super::{frontier, mean, rounds};
use crate::Share;
use crate::survival::is_tree;

/// Drafting arms that a plot has place for.
pub(crate) const MOST: usize = 8;

/// A figure, or why there is none.
pub(crate) type Made = Result<Figure, String>;

/// The plots of every family.
pub(crate) fn html(data: &Data<'_>) -> String {
    let mut out = String::new();
    for (idx, (family, settings)) in data.families().into_iter().enumerate() {
        let attrs = family.attrs();
        out.push_str(&format!(
            "<section class=\"family\"{attrs}><h3>{}</h3><div class=\"figures\">",
            esc(&family.title())
        ));
        let id = |what: &str| format!("p{idx}-{what}");
        let made = [
            (
                "throughput by concurrency",
                throughput(data, &settings, &id("through")),
            ),
            ("tau by concurrency", tau(data, &settings, &id("tau"))),
            (
                "throughput and waiting",
                frontier::figure(data, &settings, &id("front")),
            ),
            (
                "acceptance by position",
                by_position(data, settings[0], &id("position")),
            ),
            (
                "calibration",
                rounds::calibration(data, settings[0], &id("calib")),
            ),
            (
                "time of a round",
                rounds::time(data, &settings, &id("time")),
            ),
            (
                "accepted drafts a round",
                rounds::accepted(data, settings[0], &id("hist")),
            ),
        ];
        let mut left_out = Vec::new();
        for (what, made) in made {
            match made {
                Ok(figure) => out.push_str(&figure.html("")),
                Err(why) => left_out.push(format!("{what} ({})", esc(&why))),
            }
        }
        out.push_str("</div>");
        if !left_out.is_empty() {
            let list = left_out.join("; ");
            out.push_str(&format!("<p class=\"small\">Left out: {list}.</p>"));
        }
        out.push_str("</section>");
    }
    out
}

/// The first arms that a plot has place for, vanilla beside them, in the order of the page.
pub(crate) fn shown<'a>(data: &Data<'_>, arms: Vec<&'a str>) -> Vec<&'a str> {
    let mut arms = data.by_plainness(arms);
    let has_vanilla = arms.first() == Some(&"vanilla");
    arms.truncate(MOST + usize::from(has_vanilla));
    arms
}

/// What to say where arms were left out of a plot.
pub(crate) fn not_shown(all: usize, shown: usize) -> String {
    match all > shown {
        true => {
            format!(" {shown} of {all} arms, those without options first; the tables have all.")
        }
        false => String::new(),
    }
}

/// The suites that a figure pools, spelled out.
pub(crate) fn over(data: &Data<'_>, setting: &Setting) -> String {
    let suites = data.suites_of(setting);
    let which = match suites.len() {
        1 => suites[0].to_owned(),
        n => format!("{n} suites"),
    };
    format!("concurrency {}, {which}", setting.concurrency)
}

pub(crate) fn even(label: &'static str) -> Axis {
    Axis {
        label,
        step: Step::Even,
        places: None,
    }
}

/// The value with its interval, for a table.
pub(crate) fn cell_of(share: Option<Share>, form: fn(f64) -> String) -> String {
    let Some(share) = share else {
        return "\u{2013}".into();
    };
    let interval = share
        .interval
        .map(|(low, high)| format!(" ({} to {})", form(low), form(high)));
    form(share.value) + &interval.unwrap_or_default()
}

fn throughput(data: &Data<'_>, settings: &[&Setting], id: &str) -> Made {
    let value = |setting: &Setting, arm: &str| mean::throughput(data.pools.get(setting)?.get(arm)?);
    let labels = [
        "tokens a second, all sequences",
        "Throughput by concurrency",
    ];
    let text = "Tokens committed a second by all sequences together, prefills out, mean of suites; whiskers are 95\u{a0}% intervals over prompts.";
    by_concurrency(data, settings, id, (labels, text, rate), value)
}

fn tau(data: &Data<'_>, settings: &[&Setting], id: &str) -> Made {
    let value =
        |setting: &Setting, arm: &str| data.standing(setting, arm).tau.filter(|_| arm != "vanilla");
    let labels = ["tau", "Acceptance length by concurrency"];
    let text = "Mean of suites; a method that is lossless and not scheduled by load keeps its tau. Whiskers are 95\u{a0}% intervals over prompts.";
    by_concurrency(data, settings, id, (labels, text, two), value)
}

type Wording = ([&'static str; 2], &'static str, fn(f64) -> String);

/// Lines over concurrency of a number of each arm.
fn by_concurrency(
    data: &Data<'_>,
    settings: &[&Setting],
    id: &str,
    ([label, title], text, form): Wording,
    value: impl Fn(&Setting, &str) -> Option<Share>,
) -> Made {
    let mut values: BTreeMap<&str, Vec<(u32, Share)>> = BTreeMap::new();
    for setting in settings {
        for arm in data.arms_of(setting) {
            if let Some(share) = value(setting, arm) {
                let its = values.entry(arm).or_default();
                its.push((setting.concurrency, share));
            }
        }
    }
    // A lone point says nothing about concurrency.
    values.retain(|_, its| its.len() > 1);
    if values.is_empty() {
        return Err("no method was measured at two concurrencies".into());
    }
    let arms: Vec<&str> = data.arms.iter().map(String::as_str).collect();
    let all: Vec<&str> = arms
        .into_iter()
        .filter(|a| values.contains_key(a))
        .collect();
    let arms = shown(data, all.clone());
    let places: Vec<u32> = settings.iter().map(|s| s.concurrency).collect();
    let series = arms.iter().map(|arm| Series {
        arm: (*arm).to_owned(),
        look: data.look(arm),
        points: values[arm]
            .iter()
            .map(|(concurrency, share)| point(arm, f64::from(*concurrency), *share, form))
            .collect(),
    });
    let chart = LineChart {
        title: title.to_owned(),
        desc: format!(
            "{label} over concurrency of {}; numbers are in the table below.",
            arms.join(", ")
        ),
        x: Axis {
            label: "sequences at once",
            step: Step::Doubling,
            places: Some(places.iter().map(|p| f64::from(*p)).collect()),
        },
        y: even(label),
        guide: Guide::None,
        series: series.collect(),
    };
    let mut head = vec!["method".to_owned()];
    head.extend(places.iter().map(|p| format!("{p} at once")));
    let rows = all.iter().map(|arm| {
        let at = |place: &u32| values[arm].iter().find(|v| v.0 == *place).map(|v| v.1);
        let own = places.iter().map(|p| cell_of(at(p), form));
        std::iter::once((*arm).to_owned()).chain(own).collect()
    });
    let text = text.to_owned() + &not_shown(all.len(), arms.len());
    Ok(one(chart, id, text, head, rows.collect()))
}

pub(crate) fn point(arm: &str, x: f64, share: Share, form: fn(f64) -> String) -> Point {
    Point {
        x,
        y: share.value,
        interval: share.interval,
        says: format!("{arm} at {x}: {}", cell_of(Some(share), form)),
        label: None,
    }
}

/// A figure of one chart.
pub(crate) fn one(
    chart: LineChart,
    id: &str,
    text: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
) -> Figure {
    Figure {
        title: format!("{}.", chart.title),
        text,
        width: Width::One,
        drawings: vec![Drawing {
            heading: None,
            attrs: String::new(),
            svg: chart.svg(id),
        }],
        legend: Legend::Arms(chart.legend()),
        head,
        rows,
    }
}

fn by_position(data: &Data<'_>, setting: &Setting, id: &str) -> Made {
    let pools = data.pools.get(setting);
    let slots = |arm: &str| Some(pools?.get(arm)?.reached_positions());
    // A tree's rounds do not say how deep they verified.
    let all: Vec<(&str, Vec<Share>)> = data
        .arms_of(setting)
        .into_iter()
        .filter(|arm| !is_tree(arm))
        .filter_map(|arm| Some((arm, slots(arm)?)))
        .filter(|(_, slots)| !slots.is_empty())
        .collect();
    let n_slots = all.iter().map(|a| a.1.len()).max().unwrap_or(0);
    if n_slots == 0 {
        return Err("nothing was drafted in chains".into());
    }
    let arms = shown(data, all.iter().map(|a| a.0).collect());
    let values: BTreeMap<&str, &Vec<Share>> = all.iter().map(|(arm, s)| (*arm, s)).collect();
    let series = arms.iter().map(|arm| Series {
        arm: (*arm).to_owned(),
        look: data.look(arm),
        points: values[arm]
            .iter()
            .enumerate()
            .map(|(slot, share)| point(arm, (slot + 1) as f64, *share, percent))
            .collect(),
    });
    let n_shown = arms.iter().map(|a| values[a].len()).max().unwrap_or(0);
    let every = n_shown.div_ceil(8);
    let chart = LineChart {
        title: "Conditional acceptance by position".into(),
        desc: format!(
            "Share of judged drafts that were accepted, by position in the round, of {}; numbers are in the table below.",
            arms.join(", ")
        ),
        x: Axis {
            label: "draft position",
            step: Step::Even,
            places: Some((1..=n_shown).step_by(every).map(|n| n as f64).collect()),
        },
        y: Axis {
            places: Some([0.0, 0.25, 0.5, 0.75, 1.0].into()),
            ..even("accepted, of those judged")
        },
        guide: Guide::None,
        series: series.collect(),
    };
    let mut head = vec!["method".to_owned()];
    head.extend((1..=n_slots).map(|n| format!("position {n}")));
    let rows = all.iter().map(|(arm, slots)| {
        let own = (0..n_slots).map(|slot| cell_of(slots.get(slot).copied(), percent));
        std::iter::once((*arm).to_owned()).chain(own).collect()
    });
    let text = format!(
        "A draft is judged if all before it in its round were accepted ({}); trees are left out, whose rounds do not say how deep they verified. Positions past the last accepted draft are left out.{}",
        over(data, setting),
        not_shown(all.len(), arms.len())
    );
    Ok(one(chart, id, text, head, rows.collect()))
}
