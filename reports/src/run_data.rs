//! A run as `compare` and `gate` see it: who measured what, and of every answer the counts, the text's hash and the
//! time.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arrival_key::ArrivalKey;
use crate::metrics::groups;
use crate::record::{Cell, Grams, Outcome, PromptKey, Record, Rounds, Thinking};
use crate::sampling_key::SamplingKey;
use crate::synthetic::Apart;

/// Hexadecimal digits of a hash that are kept: 128 bits.
const DIGEST_LEN: usize = 32;

/// Where a run comes from, as far as two runs must agree on it to be comparable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Id of the run.
    pub run: String,
    /// Version and commit of the program that measured.
    pub program: String,
    /// Class of the machine: processor, cores, threads. Times of two classes are no pair. `None` if unknown, or if
    /// the run went over several.
    pub hardware: Option<String>,
    /// Type that weights and activations had; `None` if unknown.
    pub dtype: Option<String>,
    /// What the groups of cells depend on.
    pub groups: Vec<GroupIdentity>,
}

/// What the cells of one setting depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupIdentity {
    /// The setting.
    pub setting: Setting,
    /// SHA-256 of the prompts taken.
    pub suite_sha256: String,
    /// SHA-256 of the target's files.
    pub target_sha256: String,
    /// SHA-256 of each drafter's files by method; null where the drafter is absent.
    pub drafters_sha256: BTreeMap<String, Option<String>>,
    /// Most tokens of an answer.
    pub max_new: u64,
    /// Seed of every random stream.
    pub seed: u64,
}

/// Coordinates of a cell without the method.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Id of the target.
    pub target: String,
    /// Id of the suite.
    pub suite: String,
    /// How tokens are chosen.
    pub sampling: SamplingKey,
    /// Thinking switch of the chat template.
    pub thinking: Thinking,
    /// Sequences decoded at once.
    pub concurrency: u32,
    /// When requests come.
    #[serde(default, skip_serializing_if = "ArrivalKey::is_closed")]
    pub arrivals: ArrivalKey,
}

impl Setting {
    /// That of a cell.
    pub fn of(cell: &Cell) -> Self {
        Self {
            target: cell.target.clone(),
            suite: cell.suite.clone(),
            sampling: cell.sampling,
            thinking: cell.thinking,
            concurrency: cell.concurrency,
            arrivals: cell.arrivals,
        }
    }
}

/// Cells that differ in the suite alone, whose prompts are pooled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PoolKey {
    /// Id of the target.
    pub target: String,
    /// How tokens are chosen.
    pub sampling: SamplingKey,
    /// Thinking switch of the chat template.
    pub thinking: Thinking,
    /// Sequences decoded at once.
    pub concurrency: u32,
    /// When requests come.
    #[serde(skip_serializing_if = "ArrivalKey::is_closed")]
    pub arrivals: ArrivalKey,
    /// Id of the method.
    pub method: String,
}

impl PoolKey {
    /// The pool that a cell belongs to.
    pub(crate) fn of(cell: &Cell) -> Self {
        Self {
            target: cell.target.clone(),
            sampling: cell.sampling,
            thinking: cell.thinking,
            concurrency: cell.concurrency,
            arrivals: cell.arrivals,
            method: cell.method.clone(),
        }
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, method, sampling) = (&self.target, &self.method, self.sampling);
        let (thinking, concurrency) = (self.thinking, self.concurrency);
        write!(
            f,
            "{target} / {method} / {sampling} / thinking {thinking} / concurrency {concurrency}"
        )?;
        match self.arrivals {
            ArrivalKey::Closed => Ok(()),
            open => write!(f, " / {open}"),
        }
    }
}

/// Which answer to which prompt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AnswerKey {
    /// Id of the prompt within its suite.
    pub(crate) id: String,
    pub(crate) sample: u32,
    pub(crate) pass: u32,
    pub(crate) turn: u32,
}

impl AnswerKey {
    fn of(prompt: &PromptKey) -> Self {
        Self {
            id: prompt.id.clone(),
            sample: prompt.sample,
            pass: prompt.pass,
            turn: prompt.turn,
        }
    }
}

/// What is kept of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Brief {
    /// Digest of the rendered prompt.
    pub(crate) prompt: String,
    /// Digest of the answer's token ids.
    pub(crate) text: String,
    pub(crate) n_tokens: u32,
    /// `verified`, `accepted` and `committed` of each round.
    pub(crate) rounds: Vec<[u32; 3]>,
    /// The part of the machine's decode time that is its own.
    pub(crate) busy_ns: u64,
    pub(crate) grams: Grams,
    /// Whether the final answer is right, where that was checked.
    pub(crate) correct: Option<bool>,
}

/// What is kept of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CellData {
    pub(crate) answers: BTreeMap<AnswerKey, Brief>,
    /// The first failure, or why the cell was skipped.
    pub(crate) trouble: Option<String>,
    /// Answers that failed.
    pub(crate) n_failed: usize,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunData {
    /// How messages name it: the folder or file it was read from.
    pub label: String,
    /// Where it comes from.
    pub identity: Identity,
    /// Records that contradict themselves or each other; those are in no cell.
    pub faults: Vec<String>,
    /// Cells whose acceptance was given instead of measured, and which are left out.
    pub synthetic: Vec<Cell>,
    pub(crate) cells: BTreeMap<Cell, CellData>,
}

/// Why records are no run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunDataError {
    /// Nothing was answered.
    #[error("{label}: holds no answer; name the folder of a run that has some")]
    Empty {
        /// The run.
        label: String,
    },
    /// Nothing was answered but by arms whose acceptance was given.
    #[error(
        "{label}: holds answers of synthetic acceptance alone, such as {method}, which can be compared with nothing and judged by nothing; measure methods without acceptance=synthetic-T"
    )]
    AllSynthetic {
        /// The run.
        label: String,
        /// The first such method.
        method: String,
    },
    /// One answer is there twice.
    #[error(
        "{label}: {cell}: prompt {prompt}, sample {sample}, pass {pass} is there twice; name one run, and put parts of one together with `draftbench merge`"
    )]
    Twice {
        /// The run.
        label: String,
        /// The cell.
        cell: Box<Cell>,
        /// The prompt's id and turn.
        prompt: String,
        /// Number of the sample.
        sample: u32,
        /// Number of the pass.
        pass: u32,
    },
    /// A method was measured and vanilla was not.
    #[error(
        "{label}: {cell} has answers and its vanilla cell has none; measure again with this version, which always measures vanilla too"
    )]
    NoVanilla {
        /// The run.
        label: String,
        /// The method's cell.
        cell: Box<Cell>,
    },
}

/// The first digits of a hash.
pub(crate) fn digest(sha256: &str) -> String {
    sha256.chars().take(DIGEST_LEN).collect()
}

fn counts(rounds: &Rounds) -> Vec<[u32; 3]> {
    let lists = rounds.verified.iter().zip(&rounds.accepted);
    lists
        .zip(&rounds.committed)
        .map(|((v, a), c)| [*v, *a, *c])
        .collect()
}

impl RunData {
    /// From records as they are stored; `label` is how messages name them.
    ///
    /// # Errors
    /// [`RunDataError::Empty`], [`RunDataError::AllSynthetic`], [`RunDataError::Twice`].
    pub fn new(label: &str, identity: Identity, records: &[Record]) -> Result<Self, RunDataError> {
        let mut faults = Vec::new();
        let mut sound = Vec::new();
        let apart = Apart::of(records.to_vec());
        for record in &apart.measured {
            match record.fault() {
                Some(why) => faults.push(format!("{}: {why}", place(record))),
                None => sound.push(record.clone()),
            }
        }
        let mut cells: BTreeMap<Cell, CellData> = BTreeMap::new();
        for record in &sound {
            let cell = cells.entry(record.cell.clone()).or_default();
            match (&record.outcome, &record.prompt) {
                (Outcome::Ok(answer), Some(prompt)) => {
                    let brief = Brief {
                        prompt: digest(&prompt.sha256),
                        text: digest(&answer.tokens_sha256),
                        n_tokens: answer.n_tokens,
                        rounds: counts(&answer.rounds),
                        busy_ns: 0,
                        grams: answer.grams,
                        correct: answer.correct,
                    };
                    if cell.answers.insert(AnswerKey::of(prompt), brief).is_some() {
                        return Err(RunDataError::Twice {
                            label: label.to_owned(),
                            cell: Box::new(record.cell.clone()),
                            prompt: prompt.name(),
                            sample: prompt.sample,
                            pass: prompt.pass,
                        });
                    }
                }
                (Outcome::Failed { why }, _) => {
                    cell.n_failed += 1;
                    cell.trouble.get_or_insert(why.clone());
                }
                // A whole cell that was skipped, and not a prompt that does not fit.
                (Outcome::Skipped { why }, None) => drop(cell.trouble.get_or_insert(why.clone())),
                _ => {}
            }
        }
        for (cell, group) in groups(&sound) {
            let Some(data) = cells.get_mut(cell) else {
                continue;
            };
            for ((id, sample, pass, turn), timed) in group.answers {
                let key = AnswerKey {
                    id: id.to_owned(),
                    sample,
                    pass,
                    turn,
                };
                if let Some(brief) = data.answers.get_mut(&key) {
                    brief.busy_ns = timed.busy_ns;
                }
            }
        }
        let run = Self {
            label: label.to_owned(),
            identity,
            faults,
            synthetic: apart.cells().into_iter().cloned().collect(),
            cells,
        };
        run.hold_answers()
    }

    /// Itself, if it holds an answer, sound or not.
    pub(crate) fn hold_answers(self) -> Result<Self, RunDataError> {
        let is_empty = self.cells.values().all(|c| c.answers.is_empty());
        match (is_empty && self.faults.is_empty(), self.synthetic.first()) {
            (true, None) => Err(RunDataError::Empty { label: self.label }),
            (true, Some(cell)) => Err(RunDataError::AllSynthetic {
                method: cell.method.clone(),
                label: self.label,
            }),
            (false, _) => Ok(self),
        }
    }

    /// Answers of all cells.
    pub fn n_answers(&self) -> usize {
        self.cells.values().map(|c| c.answers.len()).sum()
    }

    /// What a cell depends on, if it is known.
    pub(crate) fn group(&self, cell: &Cell) -> Option<&GroupIdentity> {
        let setting = Setting::of(cell);
        self.identity.groups.iter().find(|g| g.setting == setting)
    }

    /// Cells of a pool that have answers.
    pub(crate) fn of_pool<'a>(
        &'a self,
        pool: &PoolKey,
    ) -> impl Iterator<Item = (&'a Cell, &'a CellData)> {
        let pool = pool.clone();
        let cells = self.cells.iter();
        cells.filter(move |(cell, data)| PoolKey::of(cell) == pool && !data.answers.is_empty())
    }

    /// Every pool that has answers.
    pub(crate) fn pools(&self) -> Vec<PoolKey> {
        let answered = self.cells.iter().filter(|(_, d)| !d.answers.is_empty());
        let keys: std::collections::BTreeSet<PoolKey> =
            answered.map(|(cell, _)| PoolKey::of(cell)).collect();
        keys.into_iter().collect()
    }
}

fn place(record: &Record) -> String {
    match &record.prompt {
        None => record.cell.to_string(),
        Some(prompt) => format!("{}: prompt {}", record.cell, prompt.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{answer, record};

    #[test]
    fn a_run_without_an_answer_and_an_answer_that_is_there_twice_are_refused() {
        let err = RunData::new("runs/a", Identity::default(), &[]).unwrap_err();
        let want = "runs/a: holds no answer; name the folder of a run that has some";
        assert_eq!(err.to_string(), want);
        let twice = vec![record("dflash", "a", answer(&[(2, 3)])); 2];
        let err = RunData::new("runs/a", Identity::default(), &twice).unwrap_err();
        let err = err.to_string();
        assert!(err.starts_with("runs/a: toy / dflash / mini"), "{err}");
        assert!(
            err.contains("prompt a, sample 0, pass 0 is there twice"),
            "{err}"
        );
    }

    #[test]
    fn a_record_that_contradicts_itself_is_a_fault_and_in_no_cell() {
        let mut wrong = answer(&[(2, 3)]);
        wrong.rounds.accepted[0] = 9;
        let records = [
            record("dflash", "a", wrong),
            record("dflash", "b", answer(&[(2, 3)])),
        ];
        let run = RunData::new("a", Identity::default(), &records).unwrap();
        assert_eq!(run.n_answers(), 1);
        assert_eq!(run.faults.len(), 1);
        assert!(
            run.faults[0].contains("concurrency 1: prompt a: round 0 breaks"),
            "{:?}",
            run.faults
        );
    }
}
