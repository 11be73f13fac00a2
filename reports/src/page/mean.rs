//! Means over suites, the papers' headline figures, with intervals whose unit is the prompt, and the lead of one arm
//! over another.

use std::collections::BTreeMap;

use crate::Share;
use crate::bootstrap::interval;
use crate::study::pool::{Pool, Tally};

/// The part of a prompt's sums that means read.
#[derive(Clone, Copy, Default)]
struct Sums {
    committed: u64,
    rounds: u64,
    busy_ns: u64,
}

impl From<&Tally> for Sums {
    fn from(tally: &Tally) -> Self {
        Self {
            committed: tally.committed,
            rounds: tally.rounds,
            busy_ns: tally.busy_ns,
        }
    }
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.rounds += other.rounds;
        self.busy_ns += other.busy_ns;
    }

    fn tau(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.committed as f64 / self.rounds as f64)
    }

    fn throughput(&self) -> Option<f64> {
        let is_timed = self.busy_ns > 0 && self.committed > 0;
        is_timed.then(|| self.committed as f64 / self.busy_ns as f64)
    }

    fn speedup(&self, vanilla: &Self) -> Option<f64> {
        Some(self.throughput()? / vanilla.throughput()?)
    }
}

/// A prompt with what each of `N` arms did on it: the number of its suite, then the arms' sums.
type Prompt<const N: usize> = (usize, [Sums; N]);

/// Prompts that all arms answered.
fn prompts<const N: usize>(pools: [&Pool; N]) -> Vec<Prompt<N>> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut out = Vec::new();
    for at in pools[0].prompts().keys() {
        let each = pools.map(|pool| pool.prompts().get(at).map(Sums::from));
        if each.iter().all(Option::is_some) {
            let next = numbers.len();
            let suite = *numbers.entry(&at.0).or_insert(next);
            out.push((suite, each.map(Option::unwrap_or_default)));
        }
    }
    out
}

/// The mean over suites of a number of each suite's pooled prompts; nothing if a suite has none or no number.
fn mean<const N: usize>(
    drawn: &[Prompt<N>],
    n_suites: usize,
    value: impl Fn(&[Sums; N]) -> Option<f64>,
) -> Option<f64> {
    let mut suites = vec![[Sums::default(); N]; n_suites];
    for (suite, each) in drawn {
        for (sums, own) in suites[*suite].iter_mut().zip(each) {
            sums.add(own);
        }
    }
    let values: Option<Vec<f64>> = suites.iter().map(value).collect();
    let values = values.filter(|v| !v.is_empty())?;
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

/// A number of prompts with its interval: whole prompts are drawn, of all suites together; a draw that misses a suite
/// is left out.
fn share<const N: usize>(
    pools: [&Pool; N],
    number: impl Fn(&[Prompt<N>], usize) -> Option<f64>,
) -> Option<Share> {
    let prompts = prompts(pools);
    let n_suites = prompts.iter().map(|p| p.0 + 1).max().unwrap_or(0);
    let number = |drawn: &[Prompt<N>]| number(drawn, n_suites);
    Some(Share {
        value: number(&prompts)?,
        interval: interval(&prompts, number),
    })
}

/// Mean over suites of the acceptance length.
pub(crate) fn tau(pool: &Pool) -> Option<Share> {
    share([pool], |drawn, n| mean(drawn, n, |[own]| own.tau()))
}

/// Mean over suites of the speedup; nothing if the two were not measured in the same runs.
pub(crate) fn speedup(pool: &Pool, vanilla: &Pool) -> Option<Share> {
    if !pool.is_of_runs_of(vanilla) {
        return None;
    }
    share([pool, vanilla], |drawn, n| {
        mean(drawn, n, |[own, vanilla]| own.speedup(vanilla))
    })
}

/// Mean over suites of the tokens a second of all sequences together.
pub(crate) fn throughput(pool: &Pool) -> Option<Share> {
    share([pool], |drawn, n| {
        mean(drawn, n, |[own]| {
            own.throughput().map(|per_ns| per_ns * 1e9)
        })
    })
}

/// Mean tau over that of another arm, minus 1, on the prompts that both answered.
pub(crate) fn tau_lead(pool: &Pool, other: &Pool) -> Option<Share> {
    share([pool, other], |drawn, n| {
        let mine = mean(drawn, n, |[own, _]| own.tau())?;
        Some(mine / mean(drawn, n, |[_, other]| other.tau())? - 1.0)
    })
}

/// Mean speedup over that of another arm, minus 1; nothing if the three were not measured in the same runs.
pub(crate) fn speedup_lead(pool: &Pool, other: &Pool, vanilla: &Pool) -> Option<Share> {
    if !pool.is_of_runs_of(other) || !pool.is_of_runs_of(vanilla) {
        return None;
    }
    share([pool, other, vanilla], |drawn, n| {
        let mine = mean(drawn, n, |[own, _, vanilla]| own.speedup(vanilla))?;
        Some(mine / mean(drawn, n, |[_, other, vanilla]| other.speedup(vanilla))? - 1.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::record::tests::{answer, record};
    use crate::study::pool::{ArmKey, pools};

    fn on(suite: &str, method: &str, prompt: &str, rounds: &[(u32, u32)]) -> Record {
        let mut record = record(method, prompt, answer(rounds));
        record.cell.suite = suite.into();
        record
    }

    #[test]
    fn a_mean_counts_each_suite_once() {
        let records = [
            on("s", "dcoco", "1", &[(3, 4), (3, 4), (3, 4)]),
            on("t", "dcoco", "1", &[(1, 2)]),
            on("s", "dflash", "1", &[(1, 2), (0, 1)]),
            on("t", "dflash", "1", &[(0, 1)]),
            on("t", "dflash", "not of both", &[(3, 4)]),
        ];
        let pools = pools(&records, "toy");
        let of = |method| &pools[&ArmKey::greedy(method)];
        assert_eq!(tau(of("dcoco")).unwrap().value, 3.0);
        // 3 over the mean of 1.5 and 1.
        let lead = tau_lead(of("dcoco"), of("dflash")).unwrap();
        assert!((lead.value - (3.0 / 1.25 - 1.0)).abs() < 1e-12, "{lead:?}");
        assert!(lead.interval.is_some());
    }

    #[test]
    fn speedups_are_led_by_times_and_need_one_process() {
        let slow = |mut record: Record, ns: u64| {
            if let crate::Outcome::Ok(answer) = &mut record.outcome {
                answer.decode_ns = ns;
            }
            record
        };
        let mut records = [
            slow(on("s", "vanilla", "1", &[(0, 1); 4]), 8000),
            slow(on("s", "dcoco", "1", &[(3, 4)]), 2000),
            slow(on("s", "dflash", "1", &[(1, 2), (1, 2)]), 4000),
        ];
        let lead = |records: &[Record]| {
            let pools = pools(records, "toy");
            let of = |method| &pools[&ArmKey::greedy(method)];
            let alone = speedup(of("dcoco"), of("vanilla")).map(|s| s.value);
            let lead = speedup_lead(of("dcoco"), of("dflash"), of("vanilla"));
            (alone, lead.map(|s| s.value))
        };
        assert_eq!(lead(&records), (Some(4.0), Some(1.0)));
        records[2].run = "another process".into();
        assert_eq!(lead(&records), (Some(4.0), None));
    }
}
