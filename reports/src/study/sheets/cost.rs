//! What a round costs, and what schedules save.

use super::Pools;
use super::cells::{gain_cells, text, two};
use crate::SamplingKey;
use crate::study::pool::{ArmKey, Pool};
use crate::study::sheet::Sheet;

/// Arms of the cost table, in its order.
pub(crate) const COSTED: [&str; 5] = ["dflash", "dspark", "domino", "dcoco", "dcoco:pairs=visited"];

pub(crate) fn cost(pools: &Pools) -> Sheet {
    let mut sheet = Sheet::new(
        "cost",
        "Time of a round by part, and throughput",
        &[
            "sequences",
            "arm",
            "trunk, us",
            "head, us",
            "verify, us",
            "hand-over, us",
            "rest, us",
            "head's share",
            "tau",
            "tokens/s, all sequences",
            "over dflash",
            "95 % interval",
            "speedup",
        ],
    );
    for concurrency in [1, 4, 8, 16, 32] {
        let of = |method: &str| {
            pools.get(&ArmKey {
                concurrency,
                ..ArmKey::greedy(method)
            })
        };
        for method in COSTED {
            let Some(pool) = of(method) else { continue };
            let parts = CostParts::of(pool);
            let mut row = vec![concurrency.to_string(), method.to_owned()];
            row.extend(parts.each().map(|us| format!("{us:.1}")));
            row.push(format!("{:.1} %", parts.head_share() * 100.0));
            row.push(text(pool.total().tau(), two));
            row.push(text(pool.total().throughput(), |v| format!("{v:.0}")));
            let gain = of("dflash")
                .filter(|_| method != "dflash")
                .and_then(|d| pool.throughput_gain(d));
            row.extend(gain_cells(gain));
            let speedup = of("vanilla").and_then(|v| pool.throughput_gain(v));
            row.push(text(speedup, |g| format!("{:.2}x", g.value + 1.0)));
            sheet.rows.push(row);
        }
    }
    sheet.notes = vec!["Greedy. Microseconds a round of one sequence: a part that several sequences share is divided among them, so a column falls where a batch pays. Trunk: the drafter without its head. Hand-over: roll-back and the drafter's own cache. Rest: schedule and acceptance. Speedup and over dflash: tokens a second of all sequences, prefills out.".into()];
    sheet
}

/// Microseconds a round of one sequence.
pub(crate) struct CostParts {
    trunk: f64,
    head: f64,
    verify: f64,
    commit: f64,
    rest: f64,
}

impl CostParts {
    pub(crate) fn of(pool: &Pool) -> Self {
        let total = pool.total();
        let us = |ns: u64| ns as f64 / 1000.0 / total.rounds.max(1) as f64;
        let phases = total.phases;
        Self {
            trunk: us(phases.draft_ns),
            head: us(phases.head_ns),
            verify: us(phases.verify_ns),
            commit: us(phases.commit_ns),
            rest: us(phases.schedule_ns + phases.judge_ns),
        }
    }

    /// Trunk, head, verify, hand-over, rest.
    pub(crate) fn each(&self) -> [f64; 5] {
        [self.trunk, self.head, self.verify, self.commit, self.rest]
    }

    fn head_share(&self) -> f64 {
        let whole: f64 = self.each().iter().sum();
        if whole > 0.0 { self.head / whole } else { 0.0 }
    }
}

pub(crate) fn schedules(pools: &Pools) -> Sheet {
    let mut sheet = Sheet::new(
        "schedules",
        "Verify lengths by confidence",
        &[
            "sequences",
            "arm",
            "drafted a round",
            "verified a round",
            "tau",
            "tokens/s, all sequences",
            "over verifying all",
            "95 % interval",
        ],
    );
    for (key, pool) in pools
        .iter()
        .filter(|(k, _)| k.sampling == SamplingKey::Greedy)
    {
        let whole = match unscheduled(&key.method) {
            Some(whole) => whole,
            None if pools.keys().any(|k| is_scheduled(k, key)) => key.method.clone(),
            None => continue,
        };
        let reference = pools.get(&ArmKey {
            method: whole.clone(),
            ..key.clone()
        });
        let total = pool.total();
        let a_round = |n: u64| format!("{:.2}", n as f64 / total.rounds.max(1) as f64);
        let gain = reference
            .filter(|_| whole != key.method)
            .and_then(|r| pool.throughput_gain(r));
        let mut row = vec![
            key.concurrency.to_string(),
            key.method.clone(),
            a_round(total.drafted),
            a_round(total.verified),
            text(total.tau(), two),
            text(total.throughput(), |v| format!("{v:.0}")),
        ];
        row.extend(gain_cells(gain));
        sheet.rows.push(row);
    }
    sheet.notes = vec!["Greedy. A schedule that cuts what would have been refused keeps tau and saves rows of the verify pass; the cost of a step is measured at the start of the run and stored in run.json.".into()];
    sheet
}

/// Whether `scheduled` is `whole` with a schedule.
fn is_scheduled(scheduled: &ArmKey, whole: &ArmKey) -> bool {
    (scheduled.sampling, scheduled.concurrency) == (whole.sampling, whole.concurrency)
        && unscheduled(&scheduled.method).as_deref() == Some(whole.method.as_str())
}

/// The arm without its schedule, if it has one; its other options stay as they were typed.
fn unscheduled(arm: &str) -> Option<String> {
    let parts: Vec<&str> = arm.split(':').collect();
    let rest: Vec<&str> = parts
        .iter()
        .copied()
        .filter(|part| !part.starts_with("schedule="))
        .collect();
    (rest.len() < parts.len()).then(|| rest.join(":"))
}

#[cfg(test)]
mod tests {
    use super::unscheduled;

    #[test]
    fn a_schedule_is_left_out_wherever_it_stands() {
        let of = |arm| unscheduled(arm);
        assert_eq!(of("dspark"), None);
        assert_eq!(of("dspark:schedule=adaptive").as_deref(), Some("dspark"));
        let middle = of("dcoco:schedule=threshold-0.5:select=first");
        assert_eq!(middle.as_deref(), Some("dcoco:select=first"));
    }
}
