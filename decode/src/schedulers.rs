//! Schedulers that spend verify rows where drafts are likely to be accepted.
//!
//! All of them admit slots so that slot k of a row is decided by what was known before its token was drawn.
//! Source: DSpark (arXiv 2607.05147), sections on the static threshold, Algorithm 1 and the production variant.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use crate::schedule::{Scheduler, StepCost};

/// Verifies a row's drafts before the first slot whose own confidence lies below the floor (0 to 1). A floor of 0
/// verifies all drafts.
///
/// Reads each slot's confidence, not the running product; a confidence is formed before its slot's token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold(pub f32);

impl Scheduler for Threshold {
    fn lengths(&mut self, survival: &[Vec<f32>], _cost: &StepCost) -> Vec<usize> {
        let keep = |row: &Vec<f32>| {
            (0..row.len())
                .take_while(|slot| self.0 <= 0.0 || confidence(row, *slot) >= self.0)
                .count()
        };
        survival.iter().map(keep).collect()
    }
}

/// A slot's own confidence from the running products; 0 behind a slot that cannot survive.
fn confidence(survival: &[f32], slot: usize) -> f32 {
    let before = match slot {
        0 => 1.0,
        _ => survival[slot - 1],
    };
    if before > 0.0 {
        survival[slot] / before
    } else {
        0.0
    }
}

/// Admits slots of all rows from the likeliest down for as long as each raises the expected tokens a second, and stops
/// at the first that does not.
///
/// The early stop is what keeps the law: a search for the best total would read the survival of later slots, which
/// were formed with the tokens in view that they decide about. Its price is timidity where the cost of a step has
/// steps.
///
/// Source: DSpark, Algorithm 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive;

impl Scheduler for Adaptive {
    fn lengths(&mut self, survival: &[Vec<f32>], cost: &StepCost) -> Vec<usize> {
        let order = likeliest_first(survival);
        let path = rates(survival.len(), &order, cost);
        let n_admitted = path.windows(2).take_while(|pair| pair[1] > pair[0]).count();
        lengths_of(survival.len(), &order[..n_admitted])
    }
}

/// Verifies as many of the likeliest drafts as would have given the most expected tokens a second some rounds ago.
///
/// The capacity is a search over all totals, which finds its way past steps in the cost of a step; since it reads
/// only confidences of past rounds, it says nothing about tokens that are drafted now. Which slots fill it is decided
/// from the likeliest down, so no slot's admission depends on its own token or later ones. Until enough rounds have
/// passed every draft is verified. The capacity counts drafts of all rows together and is not scaled when rows come or
/// go.
///
/// Source: DSpark, section 5.2; two rounds there.
#[derive(Clone, Debug)]
pub struct LaggedCapacity {
    lag: NonZeroUsize,
    /// What each of the last `lag` rounds would have wanted, oldest first.
    wanted: VecDeque<usize>,
}

impl LaggedCapacity {
    /// A capacity that is `lag` rounds old; a capacity of the same round would bend the law.
    pub fn new(lag: NonZeroUsize) -> Self {
        Self {
            lag,
            wanted: VecDeque::new(),
        }
    }
}

impl Scheduler for LaggedCapacity {
    fn lengths(&mut self, survival: &[Vec<f32>], cost: &StepCost) -> Vec<usize> {
        let order = likeliest_first(survival);
        let capacity = match self.wanted.len() < self.lag.get() {
            true => order.len(),
            false => self.wanted.pop_front().unwrap_or(order.len()),
        };
        self.wanted
            .push_back(best_total(&rates(survival.len(), &order, cost)));
        lengths_of(survival.len(), &order[..capacity.min(order.len())])
    }
}

/// A slot that may be verified.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    row: usize,
    slot: usize,
    survival: f32,
}

/// Slots of all rows by falling survival; of equals the earlier slot, then the earlier row, so that every head of the
/// list is a prefix of each row.
fn likeliest_first(survival: &[Vec<f32>]) -> Vec<Candidate> {
    let mut order: Vec<Candidate> = Vec::new();
    for (row, slots) in survival.iter().enumerate() {
        order.extend(slots.iter().enumerate().map(|(slot, survival)| Candidate {
            row,
            slot,
            survival: *survival,
        }));
    }
    order.sort_by(|a, b| {
        let likelier = b.survival.total_cmp(&a.survival);
        likelier.then(a.slot.cmp(&b.slot)).then(a.row.cmp(&b.row))
    });
    order
}

/// Expected tokens a second with the first 0, 1, 2, .. candidates verified: `(R + sum of survival) * steps a second`.
fn rates(n_rows: usize, order: &[Candidate], cost: &StepCost) -> Vec<f64> {
    let mut tokens = n_rows as f64;
    let alone = tokens * cost.steps_per_sec(n_rows);
    let with = order.iter().enumerate().map(|(i, candidate)| {
        tokens += f64::from(candidate.survival);
        tokens * cost.steps_per_sec(n_rows + i + 1)
    });
    std::iter::once(alone).chain(with).collect()
}

/// Index of the largest rate; of equals the first.
fn best_total(rates: &[f64]) -> usize {
    (0..rates.len()).fold(0, |best, i| if rates[i] > rates[best] { i } else { best })
}

fn lengths_of(n_rows: usize, admitted: &[Candidate]) -> Vec<usize> {
    let mut lengths = vec![0; n_rows];
    for candidate in admitted {
        lengths[candidate.row] = candidate.slot + 1;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::survival;

    /// Three rows of four confidences, as survival.
    fn rows() -> Vec<Vec<f32>> {
        let confidence = [[0.95, 0.9, 0.8, 0.7], [0.8, 0.6, 0.5, 0.4], [0.5; 4]];
        confidence.iter().map(|c| survival(c)).collect()
    }

    /// A pass over n rows takes 1 + 0.05 n seconds.
    fn linear() -> StepCost {
        StepCost::new(
            (1..=20)
                .map(|n| (n, 1e9 * (1.0 + 0.05 * n as f64)))
                .collect(),
        )
    }

    /// 1 pass a second up to 4 rows, 0.7 up to 8, 0.62 above.
    fn steps() -> StepCost {
        StepCost::new(vec![(1, 1e9), (5, 1e9 / 0.7), (9, 1e9 / 0.62)])
    }

    fn lag(rounds: usize) -> LaggedCapacity {
        LaggedCapacity::new(NonZeroUsize::new(rounds).unwrap())
    }

    #[test]
    fn slots_are_admitted_while_the_rate_rises() {
        let want = [
            2.608696, 3.291667, 3.844, 4.311538, 4.658519, 4.849286, 5.013103, 5.1652, 5.159871,
        ];
        let got = rates(3, &likeliest_first(&rows()), &linear());
        for (i, want) in want.iter().enumerate() {
            assert!((got[i] - want).abs() < 2e-5, "{i}: {}, want {want}", got[i]);
        }
        assert_eq!(Adaptive.lengths(&rows(), &linear()), [4, 2, 1]);
    }

    #[test]
    fn a_step_in_the_cost_stops_the_early_stop_and_not_the_search() {
        assert_eq!(Adaptive.lengths(&rows(), &steps()), [1, 0, 0]);
        let got = rates(3, &likeliest_first(&rows()), &steps());
        assert!((got[1] - 3.95).abs() < 2e-5, "{}", got[1]);
        let best = best_total(&got);
        assert_eq!(best, 12);
        assert!((got[best] - 5.283206).abs() < 2e-5, "{}", got[best]);
    }

    #[test]
    fn a_rate_that_only_stays_equal_ends_admission() {
        // One row: 1 token at 1 pass a second, then 2 tokens at half of it.
        let cost = StepCost::new(vec![(1, 1e9), (2, 2e9), (3, 1e9)]);
        assert_eq!(Adaptive.lengths(&[vec![1.0, 1.0]], &cost), [0]);
    }

    #[test]
    fn passes_of_equal_cost_verify_every_draft_that_can_survive() {
        let rows = vec![vec![1.0; 3], vec![0.5, 0.1, 0.0], vec![]];
        assert_eq!(Adaptive.lengths(&rows, &StepCost::flat()), [3, 2, 0]);
    }

    #[test]
    fn the_capacity_is_as_old_as_the_lag() {
        for rounds in [1, 2, 3] {
            let mut scheduler = lag(rounds);
            for _ in 0..rounds {
                assert_eq!(scheduler.lengths(&rows(), &linear()), [4, 4, 4]);
            }
            // 7 drafts were best then; they go to the likeliest of now.
            let now = vec![
                survival(&[0.1; 4]),
                survival(&[1.0; 4]),
                survival(&[0.9; 4]),
            ];
            assert_eq!(scheduler.lengths(&now, &linear()), [0, 4, 3]);
        }
        let mut scheduler = lag(2);
        let lengths = [0, 0, 0].map(|_| scheduler.lengths(&rows(), &steps()));
        assert_eq!(lengths[2], [4, 4, 4]);
    }

    #[test]
    fn a_capacity_of_nothing_verifies_nothing() {
        let falling = StepCost::new((1..=9).map(|n| (n, 1e9 * (n * n) as f64)).collect());
        let mut scheduler = lag(1);
        let rows = [vec![0.5, 0.5]];
        let lengths = [0, 0].map(|_| scheduler.lengths(&rows, &falling));
        assert_eq!(lengths, [[2], [0]]);
    }

    #[test]
    fn equal_survival_goes_to_the_earlier_slot() {
        let rows = vec![vec![0.5, 0.5, 0.5], vec![0.5, 0.5, 0.5]];
        let order = likeliest_first(&rows);
        let got: Vec<(usize, usize)> = order.iter().map(|c| (c.row, c.slot)).collect();
        assert_eq!(got, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    }

    #[test]
    fn a_threshold_reads_each_slots_own_confidence() {
        let rows = vec![
            survival(&[0.6, 0.6, 0.6, 0.2, 0.9]),
            survival(&[0.4, 0.9]),
            survival(&[0.9, 0.0, 0.9]),
            vec![1.0; 3],
            vec![],
        ];
        let cost = StepCost::flat();
        assert_eq!(Threshold(0.5).lengths(&rows, &cost), [3, 0, 1, 3, 0]);
        assert_eq!(Threshold(0.0).lengths(&rows, &cost), [5, 2, 3, 3, 0]);
        assert_eq!(Threshold(1.0).lengths(&rows, &cost), [0, 0, 0, 3, 0]);
    }

    #[test]
    fn what_a_token_decides_cannot_decide_about_it() {
        // The paper's counterexample: the second confidence depends on the first draft. A search over all totals
        // verifies both drafts or none; the early stop never sees the second.
        let cost = StepCost::new(vec![(1, 1e9), (2, 2e9), (3, 1e9 / 0.45)]);
        for (second, searched) in [(0.9, 2), (0.0, 0)] {
            let rows = [survival(&[0.8, second])];
            let rates = rates(1, &likeliest_first(&rows), &cost);
            assert_eq!(best_total(&rates), searched);
            assert_eq!(Adaptive.lengths(&rows, &cost), [0]);
        }
    }
}
