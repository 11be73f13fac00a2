//! What is known of drafters beside answers: whether the right token is among a slot's candidates, and how they were
//! trained.

use std::collections::BTreeMap;

use super::PageInput;
use super::chart::{Axis, Guide, LineChart, Point, Series};
use super::html::{percent, two};
use super::plots::{cell_of, even, one, point};
use super::svg::{Look, Step};
use crate::Share;
use crate::coverage::{COVERAGE_K, CoverageRecord, slot_coverage};
use crate::training_log::TrainingLog;

/// Steps of a training curve that are drawn.
const MOST_STEPS: usize = 60;

/// The section; empty if nothing is known.
pub(crate) fn html(input: &PageInput<'_>) -> String {
    let mut figures = String::new();
    let mut drafters: BTreeMap<(&str, &str), Vec<&CoverageRecord>> = BTreeMap::new();
    for record in input.coverage {
        let its = drafters.entry((&record.target, &record.checkpoint));
        its.or_default().push(record);
    }
    for (idx, ((target, checkpoint), records)) in drafters.iter().enumerate() {
        figures.push_str(&coverage(&format!("{target}, {checkpoint}"), records, idx));
    }
    for (idx, log) in input
        .training
        .iter()
        .enumerate()
        .filter(|l| !l.1.steps.is_empty())
    {
        figures.push_str(&training(log, idx));
    }
    match figures.is_empty() {
        true => figures,
        false => format!("<div class=\"figures\">{figures}</div>"),
    }
}

/// Lines of any names, looks in their order.
fn lines(all: &[(&str, Vec<Point>)]) -> Vec<Series> {
    let series = all.iter().enumerate().map(|(idx, (name, points))| Series {
        arm: (*name).to_owned(),
        look: Look::Arm(idx),
        points: points.clone(),
    });
    series.collect()
}

fn coverage(drafter: &str, records: &[&CoverageRecord], idx: usize) -> String {
    let slots = slot_coverage(records);
    let of = |name: &str, pick: &dyn Fn(usize) -> Share| -> Vec<Point> {
        let at = |slot: usize| point(name, (slot + 1) as f64, pick(slot), percent);
        (0..slots.len()).map(at).collect()
    };
    let names = [
        format!("in the top {COVERAGE_K}"),
        "first choice".to_owned(),
    ];
    let series = lines(&[
        (&names[0], of(&names[0], &|slot| slots[slot].covered)),
        (&names[1], of(&names[1], &|slot| slots[slot].top1)),
    ]);
    let chart = LineChart {
        title: format!("Coverage by position, {drafter}"),
        desc: format!(
            "Share of anchors at which a slot's first choice, and its first {COVERAGE_K} candidates, hold the right token; numbers are in the table below."
        ),
        x: Axis {
            label: "draft position",
            step: Step::Even,
            places: Some((1..=slots.len()).map(|n| n as f64).collect()),
        },
        y: Axis {
            places: Some([0.0, 0.25, 0.5, 0.75, 1.0].into()),
            ..even("share of anchors")
        },
        guide: Guide::None,
        series,
    };
    let head = ["position", "in the top", "first choice", "between them"];
    let rows = slots.iter().enumerate().map(|(slot, its)| {
        let each = [its.covered, its.top1, its.gap].map(|share| cell_of(Some(share), percent));
        std::iter::once((slot + 1).to_string())
            .chain(each)
            .collect()
    });
    let text = format!(
        "Of every answer position as anchor, whether the token that really follows is a slot's first choice, and whether it is among its first {COVERAGE_K}: what lies between is all that a re-ranking head can gain."
    );
    let head = head.map(str::to_owned).to_vec();
    let figure = one(chart, &format!("cov-{idx}"), text, head, rows.collect());
    figure.html("")
}

fn training(log: &TrainingLog, idx: usize) -> String {
    let every = log.steps.len().div_ceil(MOST_STEPS);
    let of = |name: &str, losses: &[f64]| -> Vec<Point> {
        let each = log.steps.iter().zip(losses).step_by(every);
        let at = |(step, loss): (&u64, &f64)| {
            let (value, interval) = (*loss, None);
            point(name, *step as f64, Share { value, interval }, two)
        };
        each.map(at).collect()
    };
    let (train, held) = ("training text", "held-out text, mean");
    let mut all = vec![(train, of(train, &log.loss))];
    if !log.held_out.is_empty() {
        all.push((held, of(held, &log.held_out)));
    }
    let chart = LineChart {
        title: format!("Training of {}", log.name),
        desc: "Loss by step; the first and the last are in the table below.".into(),
        x: even("step"),
        y: even("loss, nats a token"),
        guide: Guide::None,
        series: lines(&all),
    };
    let ends = [0, log.steps.len() - 1];
    let rows = ends.iter().map(|at| {
        let held = log
            .held_out
            .get(*at)
            .map_or_else(|| "\u{2013}".into(), |l| two(*l));
        vec![log.steps[*at].to_string(), two(log.loss[*at]), held]
    });
    let head = ["step", train, held].map(str::to_owned).to_vec();
    let text = format!(
        "Loss as logged; {} steps of {}.",
        log.steps.len().div_ceil(every),
        log.name
    );
    let figure = one(chart, &format!("train-{idx}"), text, head, rows.collect());
    figure.html("")
}
