//! What happens inside rounds: how many drafts are accepted, where the time goes, and what confidences are worth.

use super::bars::{Bar, BarChart, Histogram, Layer};
use super::chart::{Axis, Guide, LineChart, Point, Series};
use super::data::{Data, Setting};
use super::figure::{Drawing, Figure, Legend, Width};
use super::html::{attr, percent, two};
use super::plots::{Made, even, not_shown, one, over, shown};
use super::svg::Look;
use crate::study::pool::Pool;

/// Rounds by the number of drafts accepted, from 0 to the most that any round accepted: what a tree verifies is more
/// than its depth, which records do not hold.
pub(crate) fn counts(data: &Data<'_>, setting: &Setting, arm: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    for suite in data.suites_of(setting) {
        let Some(group) = data.groups.get(&setting.cell(suite, arm)) else {
            continue;
        };
        let rounds = group.answers.values().map(|t| &t.answer.rounds);
        for accepted in rounds.flat_map(|r| &r.accepted) {
            let at = *accepted as usize;
            if counts.len() <= at {
                counts.resize(at + 1, 0);
            }
            counts[at] += 1;
        }
    }
    counts
}

pub(crate) fn accepted(data: &Data<'_>, setting: &Setting, id: &str) -> Made {
    let drafting = data
        .arms_of(setting)
        .into_iter()
        .filter(|a| *a != "vanilla");
    let shares = |arm: &str| {
        let counts = counts(data, setting, arm);
        let all: u64 = counts.iter().sum();
        let share = |n: &u64| *n as f64 / all.max(1) as f64;
        (all > 0).then(|| counts.iter().map(share).collect::<Vec<f64>>())
    };
    let all: Vec<(&str, Vec<f64>)> = drafting
        .filter_map(|arm| Some((arm, shares(arm)?)))
        .collect();
    if all.is_empty() {
        return Err("nothing was drafted".into());
    }
    let arms = shown(data, all.iter().map(|a| a.0).collect());
    let its = |arm: &str| all.iter().find(|a| a.0 == arm).map_or(&[][..], |a| &a.1);
    let reach = arms
        .iter()
        .flat_map(|arm| its(arm))
        .fold(0.0, |a: f64, b| a.max(*b));
    let n_bars = arms.iter().map(|arm| its(arm).len()).max().unwrap_or(0);
    let drawings = arms.iter().enumerate().map(|(idx, arm)| {
        let chart = Histogram {
            title: format!("Accepted drafts a round, {arm}"),
            desc: format!(
                "Share of {arm}\u{2019}s rounds by the number of drafts accepted; numbers are in the table below."
            ),
            arm: (*arm).to_owned(),
            reach,
            n_bars,
            shares: its(arm).to_vec(),
        };
        Drawing {
            heading: Some((*arm).to_owned()),
            attrs: attr("data-method", arm),
            svg: chart.svg(&format!("{id}-{idx}")),
        }
    });
    let drawings = drawings.collect();
    let most = all.iter().map(|a| a.1.len()).max().unwrap_or(0);
    let mut head = vec!["method".to_owned()];
    head.extend((0..most).map(|n| format!("{n} accepted")));
    let rows = all.iter().map(|(arm, shares)| {
        let own = (0..most).map(|n| {
            shares
                .get(n)
                .map_or_else(|| "\u{2013}".into(), |s| percent(*s))
        });
        std::iter::once((*arm).to_owned()).chain(own).collect()
    });
    Ok(Figure {
        title: "Accepted drafts a round.".into(),
        text: format!(
            "Share of rounds by the number of drafts accepted ({}); a round commits one token more, cut where an answer ends.{}",
            over(data, setting),
            not_shown(all.len(), arms.len())
        ),
        width: Width::RowOfSmall,
        drawings,
        legend: Legend::None,
        head,
        rows: rows.collect(),
    })
}

/// Class and name of each part of a round's time.
const PARTS: [(usize, Option<&str>, &str); 4] = [
    (0, None, "draft"),
    (1, Some("hatched"), "head"),
    (2, None, "verify"),
    (
        3,
        Some("dotted"),
        "rest (drafter\u{2019}s start, schedule, acceptance, hand-over)",
    ),
];

/// Milliseconds a round of one sequence by part; nothing if no time was recorded.
pub(crate) fn parts(pool: &Pool) -> Option<[f64; 4]> {
    let total = pool.total();
    let phases = total.phases;
    let ms = |ns: u64| ns as f64 / 1e6 / total.rounds.max(1) as f64;
    let parts = [
        phases.draft_ns,
        phases.head_ns,
        phases.verify_ns,
        phases.start_ns + phases.schedule_ns + phases.judge_ns + phases.commit_ns,
    ];
    let parts = parts.map(ms);
    (parts.iter().sum::<f64>() > 0.0).then_some(parts)
}

pub(crate) fn time(data: &Data<'_>, settings: &[&Setting], id: &str) -> Made {
    let (mut drawings, mut rows, mut n_all, mut n_shown) = (Vec::new(), Vec::new(), 0, 0);
    for setting in settings {
        let pools = data.pools.get(*setting);
        let its = |arm: &str| parts(pools?.get(arm)?);
        let all: Vec<(&str, [f64; 4])> = data
            .arms_of(setting)
            .into_iter()
            .filter_map(|arm| Some((arm, its(arm)?)))
            .collect();
        let arms = shown(data, all.iter().map(|a| a.0).collect());
        n_all = n_all.max(all.len());
        n_shown = n_shown.max(arms.len());
        let concurrency = setting.concurrency;
        for (arm, parts) in &all {
            let sum: f64 = parts.iter().sum();
            let mut row = vec![(*arm).to_owned(), concurrency.to_string()];
            row.extend(parts.iter().chain([&sum]).map(|ms| format!("{ms:.3}")));
            rows.push(row);
        }
        let bars: Vec<Bar> = arms
            .iter()
            .filter_map(|arm| all.iter().find(|a| a.0 == *arm))
            .map(|(arm, parts)| bar(arm, parts))
            .collect();
        if !bars.is_empty() {
            let chart = BarChart {
                title: format!("Time of a round at concurrency {concurrency}"),
                desc: format!(
                    "Milliseconds of a round split into draft, head, verify and rest, by method, at concurrency {concurrency}; numbers are in the table below."
                ),
                label: "milliseconds a round of one sequence",
                reach: bars.iter().map(Bar::end).fold(0.0, f64::max),
                reference: None,
                bars,
            };
            drawings.push(Drawing {
                heading: Some(format!("concurrency {concurrency}")),
                attrs: attr("data-concurrency", &concurrency.to_string()),
                svg: chart.svg(&format!("{id}-{concurrency}")),
            });
        }
    }
    if drawings.is_empty() {
        return Err("the records hold no times of phases".into());
    }
    let head = [
        "method",
        "sequences at once",
        "draft, ms",
        "head, ms",
        "verify, ms",
        "rest, ms",
        "all, ms",
    ];
    let legend = PARTS.map(|(color, pattern, name)| {
        let pattern = pattern.map_or_else(String::new, |p| format!(" {p}"));
        (format!("{}{pattern}", Look::Arm(color).class()), name)
    });
    Ok(Figure {
        title: "Time of a round.".into(),
        text: format!(
            "Where the time goes, all suites together; a step that several sequences share is divided among them.{}{}",
            if drawings.len() > 1 {
                " Scales differ between concurrencies."
            } else {
                ""
            },
            not_shown(n_all, n_shown)
        ),
        width: match drawings.len() {
            1 => Width::One,
            _ => Width::Row,
        },
        drawings,
        legend: Legend::Parts(legend.to_vec()),
        head: head.map(str::to_owned).to_vec(),
        rows,
    })
}

fn bar(arm: &str, parts: &[f64; 4]) -> Bar {
    let layers = PARTS
        .iter()
        .zip(parts)
        .map(|((color, pattern, _), ms)| Layer {
            look: Look::Arm(*color),
            pattern: *pattern,
            length: *ms,
        });
    Bar {
        arm: arm.to_owned(),
        value: format!("{:.2} ms", parts.iter().sum::<f64>()),
        layers: layers.collect(),
        interval: None,
    }
}

/// Bins of a calibration diagram, of equal width.
const BINS: usize = 10;
/// A bin of fewer claims is not drawn.
const CLAIMS: u64 = 20;

/// Drafts whose confidence lies in one bin.
#[derive(Clone, Copy, Default)]
struct Bin {
    n: u64,
    claimed: f64,
    accepted: u64,
}

fn bins(pool: &Pool) -> [Bin; BINS] {
    let mut bins = [Bin::default(); BINS];
    for round in pool.rated() {
        let judged = round.verified.min(round.accepted + 1);
        for (slot, claim) in round.confidence.iter().take(judged).enumerate() {
            let claim = f64::from(*claim);
            let bin = &mut bins[((claim * BINS as f64) as usize).min(BINS - 1)];
            bin.n += 1;
            bin.claimed += claim;
            bin.accepted += u64::from(slot < round.accepted);
        }
    }
    bins
}

pub(crate) fn calibration(data: &Data<'_>, setting: &Setting, id: &str) -> Made {
    let pools = data.pools.get(setting);
    let its = |arm: &str| pools.and_then(|p| p.get(arm)).map(bins);
    let is_drawn = |bin: &&Bin| bin.n >= CLAIMS;
    let all: Vec<(&str, [Bin; BINS])> = data
        .arms_of(setting)
        .into_iter()
        .filter_map(|arm| Some((arm, its(arm)?)))
        .filter(|(_, bins)| bins.iter().any(|b| is_drawn(&b)))
        .collect();
    if all.is_empty() {
        return Err("no drafter gave confidences".into());
    }
    let arms = shown(data, all.iter().map(|a| a.0).collect());
    let share = |bin: &Bin| bin.accepted as f64 / bin.n.max(1) as f64;
    let dot = |arm: &str, bin: &Bin| Point {
        x: bin.claimed / bin.n.max(1) as f64,
        y: share(bin),
        interval: None,
        says: format!(
            "{arm}: {} drafts, claimed {}, accepted {}",
            bin.n,
            percent(bin.claimed / bin.n.max(1) as f64),
            percent(share(bin))
        ),
        label: None,
    };
    let drawn = all.iter().filter(|(arm, _)| arms.contains(arm));
    let series = drawn.map(|(arm, bins)| Series {
        arm: (*arm).to_owned(),
        look: data.look(arm),
        points: bins.iter().filter(is_drawn).map(|b| dot(arm, b)).collect(),
    });
    let places = || Some(vec![0.0, 0.25, 0.5, 0.75, 1.0]);
    let axis = |label| Axis {
        places: places(),
        ..even(label)
    };
    let chart = LineChart {
        title: "Calibration".into(),
        desc: format!(
            "Share of drafts accepted over the confidence that the drafter gave them, of {}; numbers are in the table below.",
            arms.join(", ")
        ),
        x: axis("confidence"),
        y: axis("accepted"),
        guide: Guide::Diagonal,
        series: series.collect(),
    };
    let mut head = vec!["method".to_owned()];
    head.extend((0..BINS).map(|i| {
        let edge = |i: usize| two(i as f64 / BINS as f64);
        format!("{} to {}", edge(i), edge(i + 1))
    }));
    let rows = all.iter().map(|(arm, bins)| {
        let own = bins.iter().map(|bin| match bin.n {
            0 => "\u{2013}".into(),
            n => format!("{} of {n}", percent(share(bin))),
        });
        std::iter::once((*arm).to_owned()).chain(own).collect()
    });
    let text = format!(
        "On the dashed line a confidence is the share accepted, above it the drafter is too modest. Judged drafts in ten bins, those of at least {CLAIMS} drawn ({}).{}",
        over(data, setting),
        not_shown(all.len(), arms.len())
    );
    Ok(one(chart, id, text, head, rows.collect()))
}
