//! Drafting methods held against the best of each cell, over a whole matrix.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::metrics::{Group, groups};
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

/// A method against the best drafting method of its target, suite and setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// The method asked about and where.
    pub cell: Cell,
    /// The best method there by this measure; of equals the first by name.
    pub best: String,
    /// What is compared.
    pub measure: Measure,
    /// The method's value over the best's, over the prompts that both answered; above 1 if the best is best only
    /// thanks to prompts that this one lacks.
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

/// Every drafting method against the best one beside it, in both measures. Vanilla takes no part, nor does a method
/// with trouble; a pair with fewer than 2 prompts in common, or from different runs for [`Measure::Speed`], has none.
pub fn contrasts(records: &[Record]) -> Vec<Contrast> {
    let groups = groups(records);
    let mut settings: BTreeMap<Cell, Vec<(&Cell, &Group<'_>)>> = BTreeMap::new();
    for (cell, group) in &groups {
        if cell.method != "vanilla" && group.trouble.is_none() {
            let own = settings.entry(cell.vanilla()).or_default();
            own.push((cell, group));
        }
    }
    let of_both = |methods: &Vec<_>| {
        Measure::ALL
            .map(|measure| of_setting(methods, measure))
            .concat()
    };
    let settings: Vec<_> = settings.into_values().collect();
    let mut found: Vec<Contrast> = settings.par_iter().flat_map_iter(of_both).collect();
    let p_values: Vec<f64> = found.iter().map(|c| c.p_value).collect();
    for (contrast, adjusted) in found.iter_mut().zip(benjamini_hochberg(&p_values)) {
        contrast.adjusted = adjusted;
    }
    found
}

fn of_setting(methods: &[(&Cell, &Group<'_>)], measure: Measure) -> Vec<Contrast> {
    let value = |group: &Group<'_>| {
        let sums: Sums = group.answers.values().copied().collect();
        let (num, den) = measure.read(&sums);
        crate::sums::ratio(num, den)
    };
    let mut best: Option<(f64, usize)> = None;
    for (idx, (_, group)) in methods.iter().enumerate() {
        let value = value(group);
        if let Some(value) = value.filter(|v| best.is_none_or(|(most, _)| *v > most)) {
            best = Some((value, idx));
        }
    }
    let Some((_, best)) = best else {
        return Vec::new();
    };
    let (best_cell, best_group) = methods[best];
    let others = methods.iter().enumerate().filter(|(idx, _)| *idx != best);
    others
        .filter_map(|(_, (cell, group))| {
            if measure == Measure::Speed && group.runs != best_group.runs {
                return None;
            }
            let pairs: Vec<PairedSums> = group
                .paired(best_group)
                .into_values()
                .map(|(mine, theirs)| PairedSums {
                    mine: measure.read(&mine),
                    theirs: measure.read(&theirs),
                })
                .collect();
            Some(Contrast {
                cell: (*cell).clone(),
                best: best_cell.method.clone(),
                measure,
                ratio: pooled_ratio(&pairs)?,
                p_value: swap_test(&pairs)?,
                adjusted: 1.0,
            })
        })
        .collect()
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
                records.push(record(method, &prompt, answer(&rounds)));
            }
        }
        records
    }

    #[test]
    fn methods_are_held_against_the_best_in_both_measures() {
        let found = contrasts(&matrix());
        // All tokens take equally long, so that nothing differs in speed.
        let speed: Vec<_> = found
            .iter()
            .filter(|c| c.measure == Measure::Speed)
            .collect();
        assert!(speed.len() == 2 && speed.iter().all(|c| c.p_value == 1.0 && !c.differs()));
        let tau: Vec<_> = found.iter().filter(|c| c.measure == Measure::Tau).collect();
        let of = |method: &str| *tau.iter().find(|c| c.cell.method == method).unwrap();
        assert_eq!((tau.len(), of("worse").best.as_str()), (2, "better"));
        // 2 of 1024 swaps are as far; the smallest of four is multiplied by four.
        assert_eq!(of("worse").p_value, 2.0 / 1024.0);
        assert_eq!(of("worse").adjusted, 8.0 / 1024.0);
        assert!((of("worse").ratio - 1.0 / 3.0).abs() < 1e-12);
        assert!(of("worse").differs() && !of("close").differs());
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
        let found = contrasts(&records);
        let left: Vec<_> = found
            .iter()
            .map(|c| (c.cell.method.as_str(), c.measure))
            .collect();
        assert_eq!(left, [("worse", Measure::Tau)]);
        assert!(contrasts(&records[..1]).is_empty());
    }
}
