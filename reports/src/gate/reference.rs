//! A reference run small enough to be committed: of each answer the coordinates, the counts of each round, hashes and
//! time.
//!
//! JSON lines. The first is a [`Header`]; a [`CellLine`] opens a cell, and the answers of the cell follow. Vanilla's
//! cell comes before those of its methods: what is equal to vanilla's is left out there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::{Cell, Grams};
use crate::run_data::{AnswerKey, Brief, CellData, Identity, RunData, RunDataError};

/// Version of the file's layout.
pub const REFERENCE_SCHEMA: u32 = 2;

/// Equal counts in a row that are written as one run.
const MIN_RUN: usize = 4;

/// Why a reference cannot be read or made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// A line is not what it should be.
    #[error(
        "{label} line {line}: {why}; make the file again with `draftbench gate record RUN --out FILE`"
    )]
    Line {
        /// The file.
        label: String,
        /// 1-based line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The run contradicts itself.
    #[error(
        "{label}: its records contradict themselves, and make no reference; measure it again. The first: {fault}"
    )]
    Faulty {
        /// The run.
        label: String,
        /// The first fault.
        fault: String,
    },
    /// Acceptance of some arms was given.
    #[error(
        "{label}: {cell}: its acceptance is synthetic, given instead of measured, and makes no reference; record a run without such methods"
    )]
    Synthetic {
        /// The run.
        label: String,
        /// The first such cell.
        cell: Box<Cell>,
    },
    /// It holds no answer.
    #[error(transparent)]
    Run(#[from] RunDataError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    gate_reference: u32,
    /// Answers that follow; fewer are a file that was cut.
    answers: usize,
    identity: Identity,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CellLine {
    cell: Cell,
}

/// An answer. Absent: what is 0, and hashes that are vanilla's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    id: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    sample: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pass: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    turn: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    n: u32,
    ns: u64,
    /// Repeated 8-grams.
    #[serde(default, skip_serializing_if = "is_zero")]
    loops: u32,
    /// Whether it is right; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    correct: Option<bool>,
    verified: Vec<Count>,
    /// What a round committed follows from it: one more, but for the last round, which takes what is left of `n`.
    accepted: Vec<Count>,
}

/// In the shape that serde asks for.
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// A count, or a value and how often it comes in a row.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum Count {
    One(u32),
    Run([u32; 2]),
}

fn pack(counts: impl Iterator<Item = u32>) -> Vec<Count> {
    let counts: Vec<u32> = counts.collect();
    let runs = counts.chunk_by(|a, b| a == b);
    runs.flat_map(|run| match run.len() >= MIN_RUN {
        true => vec![Count::Run([run[0], run.len() as u32])],
        false => run.iter().map(|c| Count::One(*c)).collect(),
    })
    .collect()
}

/// `None` if there are more than an answer has tokens.
fn unpack(counts: &[Count], most: u32) -> Option<Vec<u32>> {
    let length = |count: &Count| match count {
        Count::One(_) => 1,
        Count::Run([_, n]) => u64::from(*n),
    };
    if counts.iter().map(length).sum::<u64>() > u64::from(most) {
        return None;
    }
    let each = counts.iter().flat_map(|count| match count {
        Count::One(value) => vec![*value; 1],
        Count::Run([value, n]) => vec![*value; *n as usize],
    });
    Some(each.collect())
}

/// The file's text.
///
/// # Errors
/// [`ReferenceError::Synthetic`], [`ReferenceError::Faulty`], [`ReferenceError::Run`].
pub fn reference_lines(run: &RunData) -> Result<String, ReferenceError> {
    if let Some(cell) = run.synthetic.first() {
        return Err(ReferenceError::Synthetic {
            label: run.label.clone(),
            cell: Box::new(cell.clone()),
        });
    }
    let faults = run.faults.iter().cloned();
    let odd = super::known::checks(run).into_iter();
    let odd = odd
        .filter(|c| c.verdict == super::Verdict::Fail)
        .map(|c| c.detail);
    if let Some(fault) = faults.chain(odd).next() {
        return Err(ReferenceError::Faulty {
            label: run.label.clone(),
            fault,
        });
    }
    let run = run.clone().hold_answers()?;
    let mut text = line(&Header {
        gate_reference: REFERENCE_SCHEMA,
        answers: run.n_answers(),
        identity: run.identity.clone(),
    });
    let is_vanilla = |cell: &Cell| cell.method == "vanilla";
    let answered = || run.cells.iter().filter(|(_, d)| !d.answers.is_empty());
    let first = answered().filter(|(cell, _)| is_vanilla(cell));
    let then = answered().filter(|(cell, _)| !is_vanilla(cell));
    for (cell, data) in first.chain(then) {
        text.push_str(&line(&CellLine { cell: cell.clone() }));
        let vanilla = run.cells.get(&cell.vanilla()).filter(|_| !is_vanilla(cell));
        for (key, brief) in &data.answers {
            let vanilla = vanilla.and_then(|v| v.answers.get(key));
            text.push_str(&line(&answer_line(key, brief, vanilla)));
        }
    }
    Ok(text)
}

fn answer_line(key: &AnswerKey, brief: &Brief, vanilla: Option<&Brief>) -> AnswerLine {
    let unlike = |of: fn(&Brief) -> &String| match vanilla {
        Some(vanilla) if of(vanilla) == of(brief) => None,
        _ => Some(of(brief).clone()),
    };
    AnswerLine {
        id: key.id.clone(),
        sample: key.sample,
        pass: key.pass,
        turn: key.turn,
        prompt: unlike(|b| &b.prompt),
        text: unlike(|b| &b.text),
        n: brief.n_tokens,
        ns: brief.busy_ns,
        loops: brief.grams.repeated,
        correct: brief.correct,
        verified: pack(brief.rounds.iter().map(|r| r[0])),
        accepted: pack(brief.rounds.iter().map(|r| r[1])),
    }
}

fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a reference has string keys") + "\n"
}

/// Reads a file's text; `label` is how messages name it.
///
/// # Errors
/// [`ReferenceError::Line`], [`ReferenceError::Run`].
pub fn parse_reference(label: &str, text: &str) -> Result<RunData, ReferenceError> {
    let broken = |idx: usize, why: String| ReferenceError::Line {
        label: label.to_owned(),
        line: idx + 1,
        why,
    };
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    let (idx, first) = lines.next().unwrap_or((0, ""));
    let header = header(first).map_err(|why| broken(idx, why))?;
    let mut cells: BTreeMap<Cell, CellData> = BTreeMap::new();
    let mut open: Option<Cell> = None;
    for (idx, line) in lines {
        if let Ok(CellLine { cell }) = serde_json::from_str(line) {
            if cells.insert(cell.clone(), CellData::default()).is_some() {
                return Err(broken(idx, format!("{cell} is there twice")));
            }
            open = Some(cell);
            continue;
        }
        let answer: AnswerLine =
            serde_json::from_str(line).map_err(|e| broken(idx, e.to_string()))?;
        let cell = open
            .as_ref()
            .ok_or_else(|| broken(idx, "an answer before the first cell".into()))?;
        let (key, brief) = brief(answer, cell, &cells).map_err(|why| broken(idx, why))?;
        let name = key.id.clone();
        let data = cells.entry(cell.clone()).or_default();
        if data.answers.insert(key, brief).is_some() {
            return Err(broken(
                idx,
                format!("{cell}: an answer to prompt {name} is there twice"),
            ));
        }
    }
    let run = RunData {
        label: label.to_owned(),
        identity: header.identity,
        faults: Vec::new(),
        synthetic: Vec::new(),
        cells,
    };
    let (n, stated) = (run.n_answers(), header.answers);
    if n != stated {
        let last = text.lines().count().saturating_sub(1);
        return Err(broken(
            last,
            format!("the file holds {n} of {stated} answers"),
        ));
    }
    Ok(run.hold_answers()?)
}

fn header(line: &str) -> Result<Header, String> {
    #[derive(Deserialize)]
    struct Versioned {
        gate_reference: u32,
    }
    let version: Versioned = serde_json::from_str(line).map_err(|_err| {
        "is no reference of a gate: the first line must say gate_reference".to_owned()
    })?;
    if version.gate_reference != REFERENCE_SCHEMA {
        let got = version.gate_reference;
        return Err(format!(
            "gate_reference is {got}, this program reads {REFERENCE_SCHEMA}"
        ));
    }
    serde_json::from_str(line).map_err(|e| e.to_string())
}

fn brief(
    line: AnswerLine,
    cell: &Cell,
    cells: &BTreeMap<Cell, CellData>,
) -> Result<(AnswerKey, Brief), String> {
    let key = AnswerKey {
        id: line.id,
        sample: line.sample,
        pass: line.pass,
        turn: line.turn,
    };
    let vanilla = cells.get(&cell.vanilla()).and_then(|v| v.answers.get(&key));
    let missing = || {
        format!(
            "prompt {}: a hash is missing, and so is vanilla's answer",
            key.id
        )
    };
    let prompt = line
        .prompt
        .or_else(|| Some(vanilla?.prompt.clone()))
        .ok_or_else(missing)?;
    let text = line
        .text
        .or_else(|| Some(vanilla?.text.clone()))
        .ok_or_else(missing)?;
    let odd = || {
        format!(
            "prompt {}: its rounds do not make {} tokens",
            key.id, line.n
        )
    };
    let verified = unpack(&line.verified, line.n).ok_or_else(odd)?;
    let accepted = unpack(&line.accepted, line.n).ok_or_else(odd)?;
    let n_rounds = accepted.len();
    let mut left = u64::from(line.n).checked_sub(1).ok_or_else(odd)?;
    let mut rounds = Vec::with_capacity(n_rounds);
    for (round, (v, a)) in verified.iter().zip(&accepted).enumerate() {
        let committed = match round + 1 == n_rounds {
            true => left,
            false => u64::from(*a) + 1,
        };
        left = left.checked_sub(committed).ok_or_else(odd)?;
        if committed == 0 || committed > u64::from(*a) + 1 || a > v {
            return Err(odd());
        }
        rounds.push([*v, *a, committed as u32]);
    }
    if left > 0 || verified.len() != n_rounds {
        return Err(odd());
    }
    let brief = Brief {
        prompt,
        text,
        n_tokens: line.n,
        rounds,
        busy_ns: line.ns,
        grams: Grams {
            total: line.n.saturating_sub(7),
            repeated: line.loops,
        },
        correct: line.correct,
    };
    Ok((key, brief))
}
