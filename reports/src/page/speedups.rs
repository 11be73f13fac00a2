//! The plot of speedups: bars by method, a drawing a suite.

use super::bars::{Bar, BarChart, Layer};
use super::data::{Data, Setting};
use super::figure::{Drawing, Figure, Legend, Width};
use super::html::{attr, known, span, times};
use super::plots::{Made, not_shown, shown};
use crate::metrics::CellStats;

/// The cell's numbers if it is one to show.
fn stat<'a>(
    data: &'a Data<'_>,
    setting: &Setting,
    suite: &str,
    arm: &str,
) -> Option<&'a CellStats> {
    let stat = data.stat(setting, suite, arm);
    stat.filter(|s| s.trouble.is_none() && s.speedup.is_some())
}

pub(crate) fn figure(data: &Data<'_>, setting: &Setting, id: &str) -> Made {
    let suites = data.suites_of(setting);
    let has_any = |arm: &&str| suites.iter().any(|s| stat(data, setting, s, arm).is_some());
    let drafting = data
        .arms_of(setting)
        .into_iter()
        .filter(|a| *a != "vanilla");
    let all: Vec<&str> = drafting.filter(has_any).collect();
    if all.is_empty() {
        return Err("no method has a vanilla cell beside it".into());
    }
    let mut arms = shown(data, all.clone());
    let mean = |arm: &str| {
        let standing = data.standing(setting, arm);
        standing.speedup.map_or(f64::MIN, |s| s.value)
    };
    arms.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let mut head = vec!["method".to_owned()];
    head.extend(suites.iter().map(|s| (*s).to_owned()));
    let rows = all.iter().map(|arm| {
        let own = suites.iter().map(|suite| {
            let stat = stat(data, setting, suite, arm);
            let interval = stat.and_then(|s| s.speedup_interval).map(span);
            let interval = interval.map_or_else(String::new, |i| format!(" ({i})"));
            known(stat.and_then(|s| s.speedup), times) + &interval
        });
        std::iter::once((*arm).to_owned()).chain(own).collect()
    });
    Ok(Figure {
        title: "Speedup by suite.".into(),
        text: format!(
            "Bars end at the speedup, whiskers are 95\u{a0}% intervals over prompts, the upright line is vanilla.{}",
            not_shown(all.len(), arms.len())
        ),
        width: Width::Row,
        drawings: drawings(data, setting, id, &arms),
        legend: Legend::None,
        head,
        rows: rows.collect(),
    })
}

fn drawings(data: &Data<'_>, setting: &Setting, id: &str, arms: &[&str]) -> Vec<Drawing> {
    let bars = |suite: &str| -> Vec<Bar> {
        let bar = |arm: &&str| {
            let stat = stat(data, setting, suite, arm);
            let speedup = stat.and_then(|s| s.speedup);
            Bar {
                arm: (*arm).to_owned(),
                value: known(speedup, times),
                layers: speedup.map(Layer::plain).into_iter().collect(),
                interval: stat.and_then(|s| s.speedup_interval),
            }
        };
        arms.iter().map(bar).collect()
    };
    let suites = data.suites_of(setting);
    let each: Vec<(&str, Vec<Bar>)> = suites.iter().map(|suite| (*suite, bars(suite))).collect();
    let ends = each.iter().flat_map(|(_, bars)| bars.iter().map(Bar::end));
    let reach = ends.fold(1.0, f64::max);
    let drawing = |(idx, (suite, bars)): (usize, (&str, Vec<Bar>))| {
        let chart = BarChart {
            title: format!("Speedup on {suite}"),
            desc: format!(
                "Speedup over vanilla on {suite} by method; numbers are in the table below."
            ),
            label: "speedup over vanilla",
            reach,
            reference: Some(1.0),
            bars,
        };
        Drawing {
            heading: Some(suite.to_owned()),
            attrs: attr("data-suite", suite),
            svg: chart.svg(&format!("{id}-{idx}")),
        }
    };
    each.into_iter().enumerate().map(drawing).collect()
}
