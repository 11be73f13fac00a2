//! Drafting methods held against each other, over a whole matrix.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::metrics::{CellStats, Group, groups};
use crate::places::Unranked;
use crate::rank::least_values;
use crate::record::{Cell, Record};
use crate::stats::{PairedSums, benjamini_hochberg, swap_test};
use crate::sums::{Clock, Sums};

/// Share of false discoveries that a contrast's `adjusted` is held against.
pub const FALSE_DISCOVERIES: f64 = 0.05;

/// What two methods are compared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Tokens committed a round.
    Tau,
    /// Tokens a second: of one sequence at concurrency 1, of all above. Vanilla cancels out.
    Speed,
}

impl Measure {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tau, Self::Speed];

    /// `(num, den)` of a prompt; the larger their ratio, the better.
    fn read(self, sums: &Sums) -> (u64, u64) {
        match self {
            Self::Tau => (sums.committed, sums.rounds),
            Self::Speed => {
                let [ns, tokens] = Clock::Busy.read(sums);
                (tokens, ns)
            }
        }
    }
}

/// Two drafting methods of one target, suite and setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// The method asked about and where.
    pub cell: Cell,
    /// The method it is held against, later by name.
    pub other: String,
    /// What is compared.
    pub measure: Measure,
    /// The method's value over the other's, over the prompts that both answered.
    pub ratio: f64,
    /// Of [`swap_test`].
    pub p_value: f64,
    /// Adjusted by [`benjamini_hochberg`] over all contrasts of the matrix.
    pub adjusted: f64,
}

impl Contrast {
    /// Whether the difference stands at [`FALSE_DISCOVERIES`].
    pub fn differs(&self) -> bool {
        self.adjusted <= FALSE_DISCOVERIES
    }
}

/// Every pair of drafting methods that stand beside each other, in both measures: which of them is best is read from
/// the same answers, so that tests against the best alone would be too few to adjust for. `stats` are those of
/// [`crate::cells`].
///
/// Vanilla takes no part, nor does a method with trouble, with text that is not vanilla's or with looping text. A pair
/// with fewer than 6 prompts in common, where no difference can be significant, has no contrast, nor has one from
/// different runs for [`Measure::Speed`]: speeds compare within one process, and what differs from process to process
/// is not tested.
pub fn contrasts(records: &[Record], stats: &BTreeMap<Cell, CellStats>) -> Vec<Contrast> {
    let groups = groups(records);
    let is_ranked = |cell: &Cell| stats.get(cell).is_none_or(|s| Unranked::of(s).is_none());
    let mut settings: BTreeMap<Cell, Vec<(&Cell, &Group<'_>)>> = BTreeMap::new();
    for (cell, group) in &groups {
        if cell.method != "vanilla" && group.trouble.is_none() && is_ranked(cell) {
            let own = settings.entry(cell.vanilla()).or_default();
            own.push((cell, group));
        }
    }
    let settings: Vec<_> = settings.into_values().collect();
    let of_setting = |methods: &Vec<(&Cell, &Group<'_>)>| {
        let firsts = methods.iter().enumerate();
        let pairs = firsts.flat_map(|(idx, one)| methods[idx + 1..].iter().map(move |b| (one, b)));
        let each = pairs.flat_map(|(one, other)| Measure::ALL.map(|m| contrast(one, other, m)));
        each.flatten().collect::<Vec<Contrast>>()
    };
    let mut found: Vec<Contrast> = settings.par_iter().flat_map_iter(of_setting).collect();
    let p_values: Vec<f64> = found.iter().map(|c| c.p_value).collect();
    for (contrast, adjusted) in found.iter_mut().zip(benjamini_hochberg(&p_values)) {
        contrast.adjusted = adjusted;
    }
    found
}

fn contrast(
    (cell, group): &(&Cell, &Group<'_>),
    (other, other_group): &(&Cell, &Group<'_>),
    measure: Measure,
) -> Option<Contrast> {
    if measure == Measure::Speed && group.runs != other_group.runs {
        return None;
    }
    let pairs: Vec<PairedSums> = group
        .paired(other_group)
        .into_values()
        .map(|(mine, theirs)| PairedSums {
            mine: measure.read(&mine),
            theirs: measure.read(&theirs),
        })
        .collect();
    if pairs.len() < least_values(1.0 - FALSE_DISCOVERIES) {
        return None;
    }
    Some(Contrast {
        cell: (*cell).clone(),
        other: other.method.clone(),
        measure,
        ratio: pooled_ratio(&pairs)?,
        p_value: swap_test(&pairs)?,
        adjusted: 1.0,
    })
}

fn pooled_ratio(pairs: &[PairedSums]) -> Option<f64> {
    let of = |pick: fn(&PairedSums) -> (u64, u64)| {
        let each = pairs.iter().map(pick);
        let (num, den) = each.fold((0, 0), |s, p| (s.0 + p.0, s.1 + p.1));
        crate::sums::ratio(num, den)
    };
    let theirs = of(|p| p.theirs).filter(|t| *t > 0.0)?;
    Some(of(|p| p.mine)? / theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SamplingKey;
    use crate::metrics::cells;
    use crate::record::Outcome;
    use crate::record::tests::{answer, record};

    /// Ten prompts each: `better` is always ahead, `close` as often ahead of it as behind, `worse` far behind.
    fn matrix() -> Vec<Record> {
        let mut records = Vec::new();
        for i in 0..10 {
            let prompt = i.to_string();
            let turn = if i % 2 == 0 { (3, 4) } else { (1, 2) };
            for (method, rounds) in [
                ("vanilla", [(0, 1), (0, 1)]),
                ("better", [(2, 3), (2, 3)]),
                ("close", [(2, 3), turn]),
                ("worse", [(0, 1), (0, 1)]),
            ] {
                let mut rec = record(method, &prompt, answer(&rounds));
                // Sampled, so that texts may differ.
                rec.cell.sampling = SamplingKey::at(1000);
                records.push(rec);
            }
        }
        records
    }

    fn found(records: &[Record]) -> Vec<Contrast> {
        contrasts(records, &cells(records))
    }

    #[test]
    fn all_pairs_are_tested_in_both_measures() {
        let found = found(&matrix());
        // All tokens take equally long, so that nothing differs in speed.
        let speed: Vec<_> = found
            .iter()
            .filter(|c| c.measure == Measure::Speed)
            .collect();
        assert!(speed.len() == 3 && speed.iter().all(|c| c.p_value == 1.0 && !c.differs()));
        let tau: Vec<_> = found.iter().filter(|c| c.measure == Measure::Tau).collect();
        let of = |method: &str, other: &str| {
            let is_it = |c: &&&Contrast| c.cell.method == method && c.other == other;
            *tau.iter().find(is_it).unwrap()
        };
        assert_eq!(tau.len(), 3);
        // 2 of 1024 swaps are as far, for both pairs with the worse one: the second of six is multiplied by 6 / 2.
        assert_eq!(of("better", "worse").p_value, 2.0 / 1024.0);
        assert_eq!(of("close", "worse").p_value, 2.0 / 1024.0);
        assert_eq!(of("better", "worse").adjusted, 6.0 / 1024.0);
        assert!((of("better", "worse").ratio - 3.0).abs() < 1e-12);
        assert!(of("better", "worse").differs() && !of("better", "close").differs());
    }

    #[test]
    fn what_is_no_pair_has_no_contrast() {
        let mut records = matrix();
        for rec in records.iter_mut().filter(|r| r.cell.method == "worse") {
            rec.run = "another process".into();
        }
        let failed = records
            .iter_mut()
            .find(|r| r.cell.method == "close")
            .unwrap();
        failed.outcome = Outcome::Failed { why: "nan".into() };
        let left: Vec<_> = found(&records)
            .into_iter()
            .map(|c| (c.cell.method, c.other, c.measure))
            .collect();
        assert_eq!(left, [("better".into(), "worse".into(), Measure::Tau)]);
        assert!(found(&records[..1]).is_empty());
    }

    #[test]
    fn five_prompts_have_no_contrast_and_six_have() {
        let upto = |n: usize| found(&matrix()[..4 * n]).len();
        assert_eq!((upto(5), upto(6)), (0, 6));
    }

    #[test]
    fn text_that_is_not_vanillas_or_loops_is_in_no_contrast() {
        let mut records = matrix();
        for rec in &mut records {
            if let (Outcome::Ok(answer), true) = (&mut rec.outcome, rec.cell.method == "close") {
                answer.grams.repeated = 10;
            }
        }
        let left = found(&records);
        let is_left =
            |c: &Contrast| (c.cell.method.as_str(), c.other.as_str()) == ("better", "worse");
        assert!(left.len() == 2 && left.iter().all(is_left), "{left:?}");
        // Greedy text is held against vanilla's, of which "worse" alone is as long.
        let mut records = matrix();
        for rec in &mut records {
            rec.cell.sampling = SamplingKey::Greedy;
        }
        assert!(found(&records).is_empty());
    }
}
