//! What speed would follow from counts and costs: from this machine's phases, to see whether they explain the speedup
//! that was measured, and from another machine's, given as a table. Neither is a measurement, and the types say so.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::metrics::groups;
use crate::record::{Cell, Phases, Record, Rounds};
use crate::sums::{Clock, Sums};

/// Mean nanoseconds of one round by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundParts {
    /// The drafter's trunk.
    pub draft_ns: f64,
    /// The head that chooses tokens.
    pub head_ns: f64,
    /// The target's pass.
    pub verify_ns: f64,
    /// Schedule, rule, hand-over, and the drafter's start on a prompt spread over its rounds.
    pub rest_ns: f64,
}

impl RoundParts {
    /// All parts together.
    pub fn total_ns(&self) -> f64 {
        self.draft_ns + self.head_ns + self.verify_ns + self.rest_ns
    }
}

/// The speedup that phases explain, beside the measured one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Tokens committed a round.
    pub tau: f64,
    /// Of this method.
    pub round: RoundParts,
    /// Mean nanoseconds of one of vanilla's steps, all its phases.
    pub vanilla_step_ns: f64,
    /// `tau * vanilla_step_ns / round.total_ns()`.
    pub predicted: f64,
    /// [`crate::CellStats::speedup`]; time outside all phases is what sets the two apart.
    pub measured: Option<f64>,
}

impl Prediction {
    /// From what the method and vanilla spent on the same prompts; `None` if either has no round or no time.
    pub(crate) fn of(mine: &Spent, vanilla: &Spent, measured: Option<f64>) -> Option<Self> {
        let (tau, round) = mine.of_round()?;
        let vanilla_step_ns = vanilla.of_round()?.1.total_ns();
        Some(Self {
            tau,
            round,
            vanilla_step_ns,
            predicted: tau * vanilla_step_ns / round.total_ns(),
            measured,
        })
    }

    /// Predicted over measured, minus 1.
    pub fn error(&self) -> Option<f64> {
        Some(self.predicted / self.measured? - 1.0)
    }
}

/// Of each drafting cell whose vanilla cell has answers to the same prompts, both without trouble and with phases.
pub fn predictions(records: &[Record]) -> BTreeMap<Cell, Prediction> {
    let groups = groups(records);
    let mut found = BTreeMap::new();
    for (cell, group) in &groups {
        let vanilla = groups.get(&cell.vanilla());
        let Some(vanilla) = vanilla.filter(|v| v.trouble.is_none()) else {
            continue;
        };
        if cell.method == "vanilla" || group.trouble.is_some() {
            continue;
        }
        let (mut mine, mut theirs) = (Spent::default(), Spent::default());
        for (key, timed) in &group.answers {
            if let Some(other) = vanilla.answers.get(key) {
                mine.add_answer(&timed.answer.phases, &timed.answer.rounds);
                theirs.add_answer(&other.answer.phases, &other.answer.rounds);
            }
        }
        let pairs: Vec<(Sums, Sums)> = group.paired(vanilla).into_values().collect();
        if let Some(prediction) = Prediction::of(&mine, &theirs, Clock::Busy.speedup(&pairs)) {
            found.insert((*cell).clone(), prediction);
        }
    }
    found
}

/// Phases of answers with their rounds.
#[derive(Default)]
pub(crate) struct Spent {
    rounds: u64,
    committed: u64,
    draft_ns: u64,
    head_ns: u64,
    verify_ns: u64,
    decoding_ns: u64,
}

impl Spent {
    fn add_answer(&mut self, phases: &Phases, rounds: &Rounds) {
        if rounds.committed.is_empty() {
            return;
        }
        let committed = rounds.committed.iter().map(|c| u64::from(*c)).sum();
        self.add(phases, rounds.committed.len() as u64, committed);
    }

    /// Adds rounds that committed so many tokens.
    pub(crate) fn add(&mut self, phases: &Phases, rounds: u64, committed: u64) {
        self.rounds += rounds;
        self.committed += committed;
        self.draft_ns += phases.draft_ns;
        self.head_ns += phases.head_ns;
        self.verify_ns += phases.verify_ns;
        self.decoding_ns += phases.decoding_ns();
    }

    /// Tau and the mean round; `None` without a round or without time.
    fn of_round(&self) -> Option<(f64, RoundParts)> {
        if self.rounds == 0 || self.decoding_ns == 0 {
            return None;
        }
        let per_round = |ns: u64| ns as f64 / self.rounds as f64;
        let named = self.draft_ns + self.head_ns + self.verify_ns;
        let parts = RoundParts {
            draft_ns: per_round(self.draft_ns),
            head_ns: per_round(self.head_ns),
            verify_ns: per_round(self.verify_ns),
            rest_ns: per_round(self.decoding_ns - named),
        };
        Some((per_round(self.committed), parts))
    }
}

/// Costs of a machine that was not measured here, all in one unit of the user's choice.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostInput {
    /// Name of the unit, such as `ms`, or `step` for costs relative to vanilla's step.
    pub unit: String,
    /// One step of vanilla, above 0.
    pub vanilla_step: f64,
    /// One verify pass by its rows, rows rising from 1; between two entries the cost is on their line.
    pub verify: Vec<VerifyCost>,
    /// The drafter's trunk, once a round that drafts.
    pub draft_per_round: f64,
    /// The head, once a drafted token.
    pub head_per_draft: f64,
    /// Everything else of a round.
    pub rest_per_round: f64,
}

/// Cost of a verify pass.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyCost {
    /// Rows of the pass: drafts verified and the anchor.
    pub rows: u32,
    /// In the table's unit, above 0.
    pub cost: f64,
}

/// Why a cost table cannot be used.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// A cost is not finite, negative, or 0 where that makes no sense.
    #[error("cost {name} is {value}; it must be a number above 0, or 0 where a part costs nothing")]
    Value {
        /// Key of the table.
        name: &'static str,
        /// What it is.
        value: f64,
    },
    /// The rows of `verify` do not rise from 1.
    #[error("the rows of verify must rise from 1; they are {rows:?}")]
    Rows {
        /// As given.
        rows: Vec<u32>,
    },
    /// A record verified more rows than the table has costs for.
    #[error(
        "{cell}: a pass of {rows} rows was recorded, the table ends at {last}; add its cost to verify"
    )]
    Beyond {
        /// Where.
        cell: String,
        /// Recorded rows.
        rows: u32,
        /// Most rows of the table.
        last: u32,
    },
}

impl CostInput {
    /// Says what is wrong with the table.
    ///
    /// # Errors
    /// [`CostError::Value`] or [`CostError::Rows`].
    pub fn check(&self) -> Result<(), CostError> {
        let above = [("vanilla_step", self.vanilla_step)];
        let verify = self.verify.iter().map(|v| ("verify", v.cost));
        let parts = [
            ("draft_per_round", self.draft_per_round),
            ("head_per_draft", self.head_per_draft),
            ("rest_per_round", self.rest_per_round),
        ];
        let wrong_above = above
            .into_iter()
            .chain(verify)
            .find(|(_, v)| !(v.is_finite() && *v > 0.0));
        let wrong_part = parts
            .into_iter()
            .find(|(_, v)| !(v.is_finite() && *v >= 0.0));
        if let Some((name, value)) = wrong_above.or(wrong_part) {
            return Err(CostError::Value { name, value });
        }
        let rows: Vec<u32> = self.verify.iter().map(|v| v.rows).collect();
        match rows.first() == Some(&1) && rows.is_sorted_by(|a, b| a < b) {
            true => Ok(()),
            false => Err(CostError::Rows { rows }),
        }
    }

    /// Cost of a pass; `None` beyond the last entry.
    fn verify_cost(&self, rows: u32) -> Option<f64> {
        let above = self.verify.iter().position(|v| v.rows >= rows)?;
        let high = self.verify[above];
        let Some(low) = above.checked_sub(1).map(|at| self.verify[at]) else {
            return Some(high.cost);
        };
        let part = f64::from(rows - low.rows) / f64::from(high.rows - low.rows);
        Some(low.cost + part * (high.cost - low.cost))
    }
}

/// What recorded rounds would cost by a [`CostInput`]: no measurement. It takes the recorded acceptance to hold there.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// Recorded tokens, those of prefill left out.
    pub tokens: u64,
    /// Recorded rounds.
    pub rounds: u64,
    /// Tokens in one unit of the table.
    pub projected_tokens_per_unit: f64,
    /// Over a vanilla step a token.
    pub projected_speedup: f64,
    /// Unit of the table.
    pub unit: String,
}

/// Replays the recorded rounds of each cell without trouble under other costs; a cell without a round has none.
///
/// # Errors
/// [`CostError`] for a wrong table, or one that ends before a recorded pass.
pub fn project(
    records: &[Record],
    costs: &CostInput,
) -> Result<BTreeMap<Cell, Projection>, CostError> {
    costs.check()?;
    let mut found = BTreeMap::new();
    for (cell, group) in groups(records) {
        let (mut tokens, mut rounds, mut cost) = (0u64, 0u64, 0.0);
        for timed in group.answers.values().filter(|_| group.trouble.is_none()) {
            let own = &timed.answer.rounds;
            let lists = own.drafted.iter().zip(&own.verified);
            for ((drafted, verified), committed) in lists.zip(&own.committed) {
                let rows = verified + 1;
                let verify = costs.verify_cost(rows).ok_or_else(|| CostError::Beyond {
                    cell: cell.to_string(),
                    rows,
                    last: costs.verify.last().map_or(0, |v| v.rows),
                })?;
                let draft = match drafted {
                    0 => 0.0,
                    _ => costs.draft_per_round + costs.head_per_draft * f64::from(*drafted),
                };
                cost += draft + verify + costs.rest_per_round;
                tokens += u64::from(*committed);
                rounds += 1;
            }
        }
        if rounds > 0 {
            let projection = Projection {
                tokens,
                rounds,
                projected_tokens_per_unit: tokens as f64 / cost,
                projected_speedup: tokens as f64 * costs.vanilla_step / cost,
                unit: costs.unit.clone(),
            };
            found.insert(cell.clone(), projection);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Answer;
    use crate::record::tests::{answer, cell, record};

    const TABLE: &str = "
        unit = 'ms'
        vanilla_step = 10.0
        verify = [{ rows = 1, cost = 10.0 }, { rows = 2, cost = 11.0 }, { rows = 6, cost = 15.0 }]
        draft_per_round = 1.0
        head_per_draft = 0.5
        rest_per_round = 0.5
    ";

    fn table() -> CostInput {
        toml::from_str(TABLE).unwrap()
    }

    #[test]
    fn phases_explain_a_speedup() {
        let with = |phases: Phases, a: Answer| Answer { phases, ..a };
        let vanilla = Phases {
            verify_ns: 5400,
            commit_ns: 600,
            ..Phases::default()
        };
        let dflash = Phases {
            prefill_ns: 77,
            start_ns: 100,
            draft_ns: 400,
            head_ns: 200,
            verify_ns: 2200,
            judge_ns: 100,
            ..Phases::default()
        };
        let records = [
            record("vanilla", "a", with(vanilla, answer(&[(0, 1); 6]))),
            record("dflash", "a", with(dflash, answer(&[(2, 3), (2, 3)]))),
            record("dflash", "unpaired", with(dflash, answer(&[(0, 1)]))),
        ];
        let found = predictions(&records);
        assert_eq!(found.len(), 1);
        let got = found[&cell("dflash")];
        let parts = got.round;
        let all = [
            parts.draft_ns,
            parts.head_ns,
            parts.verify_ns,
            parts.rest_ns,
        ];
        assert_eq!(
            (got.tau, got.vanilla_step_ns, all),
            (3.0, 1000.0, [200.0, 100.0, 1100.0, 100.0])
        );
        // 3 tokens in 1500 ns against 1000 a token; the clock says that all tokens took equally long.
        assert_eq!((got.predicted, got.measured), (2.0, Some(1.0)));
        let apart = Prediction {
            predicted: 3.0,
            measured: Some(2.0),
            ..got
        };
        assert_eq!(apart.error(), Some(0.5));
        assert!(predictions(&records[1..]).is_empty());
    }

    #[test]
    fn recorded_rounds_are_replayed_under_other_costs() {
        // Three drafts a round: 1 + 3 * 0.5 + verify(4) = 13 + 0.5, 16 a round.
        let records = [
            record("dflash", "a", answer(&[(3, 4), (1, 2)])),
            record(
                "vanilla",
                "a",
                Answer {
                    rounds: Rounds {
                        drafted: vec![0; 6],
                        verified: vec![0; 6],
                        accepted: vec![0; 6],
                        committed: vec![1; 6],
                        confidence_ppm: None,
                    },
                    ..answer(&[(0, 1); 6])
                },
            ),
        ];
        let found = project(&records, &table()).unwrap();
        let got = &found[&cell("dflash")];
        assert_eq!((got.tokens, got.rounds, got.unit.as_str()), (6, 2, "ms"));
        assert_eq!(got.projected_speedup, 60.0 / 32.0);
        assert_eq!(got.projected_tokens_per_unit, 6.0 / 32.0);
        // Vanilla by the loop: a pass of one row and the rest.
        assert_eq!(found[&cell("vanilla")].projected_speedup, 60.0 / 63.0);
    }

    #[test]
    fn a_wrong_table_is_refused() {
        let records = [record("dflash", "a", answer(&[(3, 4)]))];
        let message = |change: fn(&mut CostInput)| {
            let mut costs = table();
            change(&mut costs);
            project(&records, &costs).unwrap_err().to_string()
        };
        assert!(message(|c| c.vanilla_step = 0.0).starts_with("cost vanilla_step is 0;"));
        assert!(message(|c| c.head_per_draft = f64::NAN).contains("head_per_draft is NaN"));
        assert!(message(|c| c.verify.swap(0, 1)).contains("must rise from 1; they are [2, 1, 6]"));
        assert!(message(|c| c.verify.clear()).contains("must rise from 1"));
        let short = message(|c| c.verify.truncate(2));
        assert!(
            short.ends_with(
                "a pass of 4 rows was recorded, the table ends at 2; add its cost to verify"
            ),
            "{short}"
        );
        assert!(toml::from_str::<CostInput>("unit = 'ms'\nspeed = 1").is_err());
    }
}
