//! Acceptance length and speedup suite by suite, by the number of sequences, and with and without looping answers.

use std::collections::BTreeSet;

use super::cells::{plain_percent, range, tau_cells, text, times, two};
use super::{BY_SLOT, Pools};
use crate::study::pool::{ArmKey, Pool};
use crate::study::sheet::Sheet;
use crate::{SamplingKey, Share};

/// What intervals are of.
const RESAMPLED: &str = "Brackets and intervals are of 95 %, whole prompts resampled.";

/// An arm of one setting.
type Arm<'a> = (&'a ArmKey, &'a Pool);

/// Methods without options in one setting, those of [`BY_SLOT`] first.
pub(super) fn plain_arms(
    pools: &Pools,
    sampling: SamplingKey,
    concurrency: u32,
) -> Vec<(&ArmKey, &Pool)> {
    let is_meant = |key: &ArmKey| {
        (key.sampling, key.concurrency) == (sampling, concurrency)
            && !key.method.contains(':')
            && key.method != "vanilla"
    };
    let mut arms: Vec<Arm<'_>> = pools.iter().filter(|(key, _)| is_meant(key)).collect();
    let place = |key: &ArmKey| BY_SLOT.iter().position(|m| *m == key.method);
    arms.sort_by_key(|(key, _)| place(key).unwrap_or(BY_SLOT.len()));
    arms
}

/// Vanilla beside an arm.
pub(super) fn vanilla_of<'a>(pools: &'a Pools, key: &ArmKey) -> Option<&'a Pool> {
    pools.get(&ArmKey {
        method: "vanilla".into(),
        ..key.clone()
    })
}

/// tau, then speedup, of greedy and of sampled answers of one sequence.
pub(super) fn by_suite(pools: &Pools) -> [Sheet; 4] {
    let (greedy, sampled) = (SamplingKey::Greedy, SamplingKey::at(1000));
    let tau = |pool: &Pool, _: Option<&Pool>| pool.tau();
    let speedup = |pool: &Pool, vanilla: Option<&Pool>| pool.speedup(vanilla?);
    let sheet = |id, title, sampling| Sheet {
        notes: vec![format!(
            "One sequence, methods without options. {RESAMPLED} all: every round or token of the suites pooled."
        )],
        ..Sheet::new(id, &format!("{title}, {sampling}, by suite"), &[])
    };
    [
        fill(
            sheet("suite-tau", "tau", "greedy"),
            pools,
            greedy,
            (tau, two),
        ),
        fill(
            sheet("suite-speedup", "Speedup over vanilla", "greedy"),
            pools,
            greedy,
            (speedup, times),
        ),
        fill(
            sheet("suite-tau-sampled", "tau", "temperature 1"),
            pools,
            sampled,
            (tau, two),
        ),
        fill(
            sheet(
                "suite-speedup-sampled",
                "Speedup over vanilla",
                "temperature 1",
            ),
            pools,
            sampled,
            (speedup, times),
        ),
    ]
}

/// What a cell says of an arm and its vanilla, and how the number is written.
type Value = (fn(&Pool, Option<&Pool>) -> Option<Share>, fn(f64) -> String);

fn fill(mut sheet: Sheet, pools: &Pools, sampling: SamplingKey, value: Value) -> Sheet {
    let arms = plain_arms(pools, sampling, 1);
    sheet.header = vec!["suite".into(), "prompts".into()];
    sheet
        .header
        .extend(arms.iter().map(|(key, _)| key.method.clone()));
    let suites: BTreeSet<&str> = arms.iter().flat_map(|(_, pool)| pool.suites()).collect();
    let (of, form) = value;
    let cell = |pool: &Pool, vanilla: Option<&Pool>| {
        let share = of(pool, vanilla);
        match share.and_then(|s| s.interval) {
            None => text(share.map(|s| s.value), form),
            Some(_) => format!(
                "{} ({})",
                text(share.map(|s| s.value), form),
                range(share, form)
            ),
        }
    };
    for suite in &suites {
        let on = |pool: &Pool| pool.on(suite);
        let its: Vec<(Pool, Option<Pool>)> = arms
            .iter()
            .map(|(key, pool)| (on(pool), vanilla_of(pools, key).map(on)))
            .collect();
        let n_prompts = its.iter().map(|(pool, _)| pool.prompts().len()).max();
        let mut row = vec![(*suite).to_owned(), n_prompts.unwrap_or(0).to_string()];
        row.extend(
            its.iter()
                .map(|(pool, vanilla)| cell(pool, vanilla.as_ref())),
        );
        sheet.rows.push(row);
    }
    if suites.len() > 1 {
        let n_prompts = arms.iter().map(|(_, pool)| pool.prompts().len()).max();
        let mut row = vec!["all".into(), n_prompts.unwrap_or(0).to_string()];
        row.extend(
            arms.iter()
                .map(|(key, pool)| cell(pool, vanilla_of(pools, key))),
        );
        sheet.rows.push(row);
    }
    sheet
}

/// Numbers of sequences that have answers in one sampling, in order.
pub(super) fn concurrencies(pools: &Pools, sampling: SamplingKey) -> BTreeSet<u32> {
    let its = pools.keys().filter(|key| key.sampling == sampling);
    its.map(|key| key.concurrency).collect()
}

/// Samplings that have answers, in order.
pub(super) fn samplings(pools: &Pools) -> BTreeSet<SamplingKey> {
    pools.keys().map(|key| key.sampling).collect()
}

/// tau and speedup by the number of sequences.
pub(super) fn by_concurrency(pools: &Pools) -> Sheet {
    let header = [
        "sampling",
        "sequences",
        "arm",
        "prompts",
        "tau",
        "95 % interval",
        "tokens/s, all sequences",
        "vanilla's",
        "speedup",
        "95 % interval",
    ];
    let mut sheet = Sheet::new(
        "concurrency",
        "tau and speedup by the number of sequences",
        &header,
    );
    for sampling in samplings(pools) {
        for concurrency in concurrencies(pools, sampling) {
            for (key, pool) in plain_arms(pools, sampling, concurrency) {
                let vanilla = vanilla_of(pools, key);
                let rate = |pool: &Pool| pool.total().throughput();
                let whole = |v: f64| format!("{v:.0}");
                let speedup = vanilla.and_then(|v| pool.speedup(v));
                let mut row = vec![
                    sampling.to_string(),
                    concurrency.to_string(),
                    key.method.clone(),
                    pool.prompts().len().to_string(),
                ];
                row.extend(tau_cells(pool.tau()));
                row.push(text(rate(pool), whole));
                row.push(text(vanilla.and_then(rate), whole));
                row.push(text(speedup.map(|s| s.value), times));
                row.push(range(speedup, times));
                sheet.rows.push(row);
            }
        }
    }
    sheet.notes = vec![format!(
        "Methods without options, all suites pooled; rows of different numbers of sequences may be of different prompts. Speedup: tokens a second of all sequences over vanilla's at the same number, prefills out. {RESAMPLED}"
    )];
    sheet
}

/// How much of the text repeats itself, and tau without the answers that loop.
pub(super) fn repetition(pools: &Pools) -> Sheet {
    let header = [
        "sampling",
        "arm",
        "answers",
        "repeated 8-grams",
        "loops",
        "tau",
        "95 % interval",
        "tau without loops",
        "95 % interval",
        "difference",
    ];
    let title = "Repeated text, and tau without answers that loop";
    let mut sheet = Sheet::new("repetition", title, &header);
    for sampling in samplings(pools) {
        let arms = plain_arms(pools, sampling, 1);
        let vanilla = arms
            .first()
            .and_then(|(key, _)| vanilla_of(pools, key))
            .map(|pool| ("vanilla", pool));
        let named = arms.iter().map(|(key, pool)| (key.method.as_str(), *pool));
        for (method, pool) in vanilla.into_iter().chain(named) {
            let (all, rest) = (pool.total(), pool.without_loops());
            let share = (all.grams > 0).then(|| all.repeated as f64 / all.grams as f64);
            let mut row = vec![
                sampling.to_string(),
                method.to_owned(),
                all.answers.to_string(),
                text(share, plain_percent),
                (all.answers - rest.total().answers).to_string(),
            ];
            let taus = [pool.tau(), rest.tau()].map(|tau| tau.filter(|_| method != "vanilla"));
            row.extend(taus.into_iter().flat_map(tau_cells));
            let change = taus[0]
                .zip(taus[1])
                .map(|(all, rest)| rest.value / all.value - 1.0);
            row.push(text(change, super::cells::percent));
            sheet.rows.push(row);
        }
    }
    sheet.notes = vec![format!(
        "One sequence, methods without options. Repeated: 8-grams that occurred before in the same answer, of all. Loops: answers with over 30 % of them, which are easy to draft; a greedy answer is the same for every arm. {RESAMPLED}"
    )];
    sheet
}
