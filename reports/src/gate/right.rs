//! L1, too: right answers must not become fewer, where it is known which are right.

use std::collections::BTreeMap;

use super::acceptance::family;
use super::{Check, Policy, Verdict};
use crate::paired::{DrafterRule, mismatch};
use crate::rank::sign_tail;
use crate::run_data::{PoolKey, RunData};

/// Right answers of a pool, before and now.
#[derive(Default)]
struct Tally {
    /// By suite and prompt; answers that are checked in both runs.
    prompts: BTreeMap<(String, String), [u64; 2]>,
    /// Pairs of answers that both are checked.
    n_pairs: usize,
    /// Those that are checked in the reference alone.
    n_unknown: usize,
}

impl Tally {
    fn of(old: &RunData, new: &RunData, pool: &PoolKey) -> Self {
        let mut tally = Self::default();
        for (cell, data) in old.of_pool(pool) {
            let now = new.cells.get(cell);
            let Some(now) = now.filter(|_| mismatch(old, new, cell, DrafterRule::Any).is_none())
            else {
                continue;
            };
            let pairs = data
                .answers
                .iter()
                .filter_map(|(key, before)| Some((key, before.correct?, now.answers.get(key)?)));
            for (key, was, now) in pairs {
                let Some(is) = now.correct else {
                    tally.n_unknown += 1;
                    continue;
                };
                tally.n_pairs += 1;
                let at = (cell.suite.clone(), key.id.clone());
                let counts = tally.prompts.entry(at).or_default();
                counts[0] += u64::from(was);
                counts[1] += u64::from(is);
            }
        }
        tally
    }

    /// Prompts with fewer right answers, and with more.
    fn moved(&self) -> (u64, u64) {
        let count = |is: fn(&[u64; 2]) -> bool| self.prompts.values().filter(|c| is(c)).count();
        (count(|c| c[1] < c[0]) as u64, count(|c| c[1] > c[0]) as u64)
    }
}

/// One check a pool of the reference whose answers are checked.
pub(super) fn checks(old: &RunData, new: &RunData, policy: &Policy) -> Vec<Check> {
    let methods = &policy.acceptance.methods;
    let is_judged = |pool: &PoolKey| {
        pool.method == "vanilla" || methods.is_empty() || methods.contains(&pool.method)
    };
    let pools = old.pools().into_iter().filter(is_judged);
    let tallies: Vec<(PoolKey, Tally)> = pools
        .map(|pool| {
            let tally = Tally::of(old, new, &pool);
            (pool, tally)
        })
        .filter(|(_, tally)| tally.n_pairs + tally.n_unknown > 0)
        .collect();
    let can_err = tallies.iter().filter(|(_, t)| t.moved() != (0, 0));
    let confidence = family(policy.confidence, can_err.count());
    let each = tallies.iter();
    each.map(|(pool, tally)| check(pool, tally, confidence))
        .collect()
}

fn check(pool: &PoolKey, tally: &Tally, confidence: f64) -> Check {
    let name = format!("right answers of {pool}");
    let n = tally.n_pairs;
    if n == 0 {
        let n = tally.n_unknown;
        let why = format!(
            "{n} of the reference are checked and none of the candidate: check them there too"
        );
        return Check::new(name, Verdict::Inconclusive, why);
    }
    let sum = |side: usize| tally.prompts.values().map(|c| c[side]).sum::<u64>();
    let (was, is) = (sum(0), sum(1));
    let (fewer, more) = tally.moved();
    // The same tail as an interval's lower one.
    let fell = fewer > more && sign_tail(fewer, more) <= (1.0 - confidence) / 2.0;
    let detail = format!(
        "{was} > {is} of {n} answers: {fewer} prompts have fewer right answers, {more} have more"
    );
    match fell {
        true => Check::new(name, Verdict::Fail, format!("{detail}; that is no chance")),
        false => Check::new(name, Verdict::Pass, detail),
    }
}
