//! How far drafts get: by position, and what became of all that were drafted.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::bootstrap::ratio_intervals;
use crate::metrics::groups;
use crate::record::{Cell, Record, Rounds};
use crate::stats::wilson;

/// A count out of another, with the 95 % interval of their ratio over prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Rounds that have the property.
    pub hits: u64,
    /// Rounds that could have had it.
    pub of: u64,
    /// Whole prompts resampled, those without such a round left out; needs 2 prompts. A share of exactly 0 or 1, which
    /// every resample repeats, has [`wilson`]'s interval with prompts as trials.
    pub interval: Option<(f64, f64)>,
}

impl Counted {
    /// From 0 to 1; `None` if no round could have had it.
    pub fn share(&self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }
}

/// One draft position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionStats {
    /// From 1; the draft behind the anchor is the first.
    pub position: u32,
    /// Rounds that accepted the draft here, of all rounds: what a schedule cuts lowers it.
    pub survival: Counted,
    /// The same rounds, of those that verified a draft here; `None` of a tree, whose rounds say how many nodes were
    /// verified but not how deep.
    pub survival_verified: Option<Counted>,
    /// The same rounds, of those that verified a draft here and accepted all before it; `None` of a tree likewise.
    pub conditional: Option<Counted>,
}

/// What became of one cell's drafts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survival {
    /// From 1 to the largest number of drafts verified in a round; of a tree to the deepest acceptance.
    pub positions: Vec<PositionStats>,
    /// Entry `n`: rounds that accepted exactly `n` drafts; as long as the most that any round accepted, plus 1.
    pub accepted_rounds: Vec<u64>,
    /// All rounds.
    pub n_rounds: u64,
    /// Drafts proposed.
    pub drafted: u64,
    /// Drafts verified.
    pub verified: u64,
    /// Drafts accepted.
    pub accepted: u64,
    /// Rounds that verified a draft and accepted none.
    pub n_fallback: u64,
    /// Rounds that verified a draft.
    pub n_drafting: u64,
    /// Rounds that verified fewer drafts than were proposed.
    pub n_cut: u64,
}

impl Survival {
    /// Drafts proposed in vain.
    pub fn wasted(&self) -> u64 {
        self.drafted - self.accepted
    }

    /// Rounds that got nothing out of a verified draft, of those that verified one.
    pub fn fallback_share(&self) -> Option<f64> {
        share(self.n_fallback, self.n_drafting)
    }

    /// Rounds that a schedule cut, of all rounds.
    pub fn cut_share(&self) -> Option<f64> {
        share(self.n_cut, self.n_rounds)
    }
}

fn share(hits: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| hits as f64 / of as f64)
}

/// Of each cell without trouble, in the order of [`crate::cells`].
pub fn survival(records: &[Record]) -> BTreeMap<Cell, Survival> {
    let groups = groups(records);
    let well = groups
        .par_iter()
        .filter(|(_, group)| group.trouble.is_none());
    well.map(|(cell, group)| {
        let mut tally = SurvivalTally::default();
        for ((prompt, ..), timed) in &group.answers {
            tally.add(prompt, &timed.answer.rounds);
        }
        let shape = match is_tree(&cell.method) {
            true => Shape::Tree,
            false => Shape::Chain,
        };
        ((*cell).clone(), tally.finish(shape))
    })
    .collect()
}

/// Whether an arm's rounds verify trees: its `verified` counts nodes, and records hold no depth.
pub(crate) fn is_tree(method: &str) -> bool {
    method.starts_with("eagle3-tree")
}

/// What a round's drafts are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Chain,
    Tree,
}

/// Rounds of one prompt at one position.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    verified: u64,
    /// Verified, and all before it accepted.
    judged: u64,
    accepted: u64,
}

#[derive(Clone, Debug, Default)]
struct PromptTally {
    rounds: u64,
    slots: Vec<Slot>,
}

/// Counts rounds by prompt; `P` is what makes a prompt.
#[derive(Clone, Debug)]
pub(crate) struct SurvivalTally<P> {
    prompts: BTreeMap<P, PromptTally>,
    totals: Survival,
}

impl<P> Default for SurvivalTally<P> {
    fn default() -> Self {
        Self {
            prompts: BTreeMap::new(),
            totals: Survival::default(),
        }
    }
}

impl<P: Ord> SurvivalTally<P> {
    pub(crate) fn add(&mut self, prompt: P, rounds: &Rounds) {
        let own = self.prompts.entry(prompt).or_default();
        let all = &mut self.totals;
        let lists = rounds.drafted.iter().zip(&rounds.verified);
        for ((drafted, verified), accepted) in lists.zip(&rounds.accepted) {
            let (n_verified, n_accepted) = (*verified as usize, *accepted as usize);
            own.rounds += 1;
            if own.slots.len() < n_verified {
                own.slots.resize(n_verified, Slot::default());
            }
            for (at, slot) in own.slots[..n_verified].iter_mut().enumerate() {
                slot.verified += 1;
                slot.judged += u64::from(at <= n_accepted);
                slot.accepted += u64::from(at < n_accepted);
            }
            if all.accepted_rounds.len() <= n_accepted {
                all.accepted_rounds.resize(n_accepted + 1, 0);
            }
            all.accepted_rounds[n_accepted] += 1;
            all.n_rounds += 1;
            all.drafted += u64::from(*drafted);
            all.verified += u64::from(*verified);
            all.accepted += u64::from(*accepted);
            all.n_drafting += u64::from(*verified > 0);
            all.n_fallback += u64::from(*verified > 0 && *accepted == 0);
            all.n_cut += u64::from(verified < drafted);
        }
    }

    /// All but the positions.
    pub(crate) fn counts(&self) -> &Survival {
        &self.totals
    }

    pub(crate) fn finish(&self, shape: Shape) -> Survival {
        let deepest = self.totals.accepted_rounds.len().saturating_sub(1);
        let n_positions = match shape {
            Shape::Chain => self.n_positions(),
            Shape::Tree => self.n_positions().min(deepest),
        };
        let of_chain = |counted| (shape == Shape::Chain).then_some(counted);
        let columns = (0..n_positions).flat_map(|at| {
            [
                self.column(at, |prompt, _| prompt.rounds),
                self.column(at, |_, slot| slot.verified),
                self.column(at, |_, slot| slot.judged),
            ]
        });
        let counted = counted(columns.collect());
        let positions = counted.chunks_exact(3).zip(1..);
        Survival {
            positions: positions
                .map(|(three, position)| PositionStats {
                    position,
                    survival: three[0],
                    survival_verified: of_chain(three[1]),
                    conditional: of_chain(three[2]),
                })
                .collect(),
            ..self.totals.clone()
        }
    }

    /// Conditional acceptance alone, first position first.
    pub(crate) fn conditional(&self) -> Vec<Counted> {
        let of = |at| self.column(at, |_, slot| slot.judged);
        counted((0..self.n_positions()).map(of).collect())
    }

    fn n_positions(&self) -> usize {
        let lens = self.prompts.values().map(|p| p.slots.len());
        lens.max().unwrap_or(0)
    }

    /// Accepted and `of` for each prompt that has any of the latter.
    fn column(&self, at: usize, of: fn(&PromptTally, &Slot) -> u64) -> Vec<(u64, u64)> {
        let each = self.prompts.values().map(|prompt| {
            let slot = prompt.slots.get(at).copied().unwrap_or_default();
            (slot.accepted, of(prompt, &slot))
        });
        each.filter(|(_, of)| *of > 0).collect()
    }
}

/// Sums of each column with their interval; equal columns are resampled once.
fn counted(columns: Vec<Vec<(u64, u64)>>) -> Vec<Counted> {
    let mut distinct: Vec<Vec<(u64, u64)>> = Vec::new();
    let places: Vec<usize> = columns
        .into_iter()
        .map(|column| {
            let known = distinct.iter().position(|d| *d == column);
            known.unwrap_or_else(|| {
                distinct.push(column);
                distinct.len() - 1
            })
        })
        .collect();
    let intervals = ratio_intervals(&distinct);
    places
        .into_iter()
        .map(|at| {
            let (hits, of) = distinct[at]
                .iter()
                .fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
            let n_prompts = distinct[at].len() as u64;
            let interval = match intervals[at] {
                Some(_) if hits == 0 => wilson(0, n_prompts),
                Some(_) if hits == of => wilson(n_prompts, n_prompts),
                resampled => resampled,
            };
            Counted { hits, of, interval }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use crate::record::tests::{answer, cell, record};

    /// Rounds of `(drafted, verified, accepted)`.
    fn rounds(of: &[(u32, u32, u32)]) -> Rounds {
        Rounds {
            drafted: of.iter().map(|r| r.0).collect(),
            verified: of.iter().map(|r| r.1).collect(),
            accepted: of.iter().map(|r| r.2).collect(),
            committed: of.iter().map(|r| r.2 + 1).collect(),
            confidence_ppm: None,
        }
    }

    fn parts(counted: Counted) -> (u64, u64) {
        (counted.hits, counted.of)
    }

    #[test]
    fn each_denominator_is_its_own() {
        let mut tally = SurvivalTally::default();
        // Cut to 1, uncut twice, nothing drafted.
        tally.add("a", &rounds(&[(3, 1, 1), (3, 3, 2), (3, 3, 0), (0, 0, 0)]));
        let got = tally.finish(Shape::Chain);
        let by_position: Vec<_> = got
            .positions
            .iter()
            .map(|p| {
                let of_chain = [p.survival_verified, p.conditional].map(Option::unwrap);
                let three = [p.survival, of_chain[0], of_chain[1]];
                (p.position, three.map(parts))
            })
            .collect();
        let want = [
            (1, [(2, 4), (2, 3), (2, 3)]),
            // The round cut to 1 accepted all it had and is no failure at 2.
            (2, [(1, 4), (1, 2), (1, 1)]),
            (3, [(0, 4), (0, 2), (0, 1)]),
        ];
        assert_eq!(by_position, want);
        assert_eq!(got.positions[1].survival.share(), Some(0.25));
        assert_eq!(got.positions[1].survival.interval, None);
    }

    #[test]
    fn drafts_and_rounds_are_accounted_for() {
        let mut tally = SurvivalTally::default();
        tally.add("a", &rounds(&[(3, 1, 1), (3, 3, 2), (3, 3, 0)]));
        tally.add("b", &rounds(&[(0, 0, 0)]));
        let got = tally.finish(Shape::Chain);
        assert_eq!((got.drafted, got.verified, got.accepted), (9, 7, 3));
        assert_eq!(got.wasted(), 6);
        assert_eq!(got.accepted_rounds, [2, 1, 1]);
        // One of the three rounds that verified a draft.
        assert_eq!(got.fallback_share(), Some(1.0 / 3.0));
        assert_eq!(got.cut_share(), Some(0.25));
        let none = SurvivalTally::<&str>::default().finish(Shape::Chain);
        assert_eq!((none.fallback_share(), none.cut_share()), (None, None));
        assert!(none.positions.is_empty());
    }

    #[test]
    fn survival_sums_to_the_drafts_accepted_a_round() {
        let mut tally = SurvivalTally::default();
        for (i, prompt) in ["a", "b", "c", "d"].iter().enumerate() {
            let accepted = |j: u32| (7 * j + i as u32) % 5;
            let of: Vec<_> = (0..9).map(|j| (5, 5, accepted(j))).collect();
            tally.add(*prompt, &rounds(&of));
        }
        let got = tally.finish(Shape::Chain);
        let sum: f64 = got
            .positions
            .iter()
            .filter_map(|p| p.survival.share())
            .sum();
        assert!((sum - got.accepted as f64 / got.n_rounds as f64).abs() < 1e-12);
        let product: f64 = got
            .positions
            .iter()
            .filter_map(|p| p.conditional?.share())
            .product();
        let last = got.positions[4].survival.share().unwrap();
        assert!((product - last).abs() < 1e-12);
        for p in &got.positions[..4] {
            let (low, high) = p.survival.interval.unwrap();
            let share = p.survival.share().unwrap();
            assert!(low <= share && share <= high && low < high, "{p:?}");
        }
    }

    #[test]
    fn a_tree_has_positions_down_to_its_deepest_acceptance_and_no_conditional_ones() {
        let mut tally = SurvivalTally::default();
        tally.add("a", &rounds(&[(60, 60, 3), (60, 60, 1)]));
        let of_tree = tally.finish(Shape::Tree);
        let got: Vec<_> = of_tree
            .positions
            .iter()
            .map(|p| parts(p.survival))
            .collect();
        assert_eq!(got, [(2, 2), (1, 2), (1, 2)]);
        let unknown = |p: &PositionStats| (p.survival_verified, p.conditional) == (None, None);
        assert!(of_tree.positions.iter().all(unknown));
        assert_eq!(tally.finish(Shape::Chain).positions.len(), 60);
    }

    #[test]
    fn a_share_of_all_or_none_has_an_interval_of_some_width() {
        let mut tally = SurvivalTally::default();
        for prompt in ["a", "b", "c", "d"] {
            tally.add(prompt, &rounds(&[(2, 2, 1); 9]));
        }
        let got = tally.finish(Shape::Chain);
        let shares: Vec<_> = got.positions.iter().map(|p| p.survival.share()).collect();
        assert_eq!(shares, [Some(1.0), Some(0.0)]);
        // Wilson's interval of 4 of 4 prompts begins at 4 / (4 + 1.96^2), that of none ends as far from 0.
        let end = 4.0 / (4.0 + 1.959_963_984_540_054f64.powi(2));
        let intervals = got.positions.iter().map(|p| p.survival.interval.unwrap());
        let ends: Vec<_> = intervals.collect();
        assert!(
            (ends[0].0 - end).abs() < 1e-12 && ends[0].1 > 1.0 - 1e-12,
            "{ends:?}"
        );
        assert!(
            ends[1].0 < 1e-12 && (ends[1].1 - (1.0 - end)).abs() < 1e-12,
            "{ends:?}"
        );
    }

    #[test]
    fn prompts_are_the_clusters_and_trouble_has_no_survival() {
        let good = |prompt: &str, accepted: u32| {
            record("dflash", prompt, answer(&[(accepted, accepted + 1); 2]))
        };
        let mut failed = record("dcoco", "a", answer(&[]));
        failed.outcome = Outcome::Failed { why: "nan".into() };
        let got = survival(&[good("a", 0), good("b", 1), failed]);
        assert_eq!(got.len(), 1);
        let first = got[&cell("dflash")].positions[0];
        assert_eq!(first.survival.interval, Some((0.0, 1.0)));
    }
}
