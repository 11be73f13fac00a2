//! L0: what must hold of any run, without a reference.

use std::collections::BTreeSet;

use super::{Check, GateError, Verdict};
use crate::record::Cell;
use crate::run_data::{AnswerKey, CellData, RunData};

/// Examples that a message names.
const MAX_TOLD: usize = 3;

/// Every method with answers has vanilla's, or a record that says why not.
pub(super) fn vanilla_is_there(run: &RunData) -> Result<(), GateError> {
    let lacks = |cell: &&Cell| {
        let vanilla = run.cells.get(&cell.vanilla());
        vanilla.is_none_or(|v| v.answers.is_empty() && v.trouble.is_none())
    };
    let answered = run.cells.iter().filter(|(_, d)| !d.answers.is_empty());
    // Where records were faulty, vanilla's may be among them, and that is what must be said.
    match answered.map(|(c, _)| c).find(lacks) {
        Some(cell) if run.faults.is_empty() => Err(GateError::NoVanilla {
            label: run.label.clone(),
            cell: cell.to_string(),
        }),
        _ => Ok(()),
    }
}

pub(super) fn checks(run: &RunData) -> Vec<Check> {
    let n = run.n_answers();
    let each = || run.cells.iter().filter(|(_, d)| !d.answers.is_empty());
    let failed = run.cells.iter().filter(|(_, d)| d.n_failed > 0);
    let failed = failed.map(|(cell, data)| {
        let why = data.trouble.as_deref().unwrap_or("unknown");
        format!("{cell}: {why}")
    });
    let rounds = each().flat_map(|(cell, data)| odd_rounds(cell, data));
    let lost = each().filter_map(|(cell, data)| lost(cell, data, run.cells.get(&cell.vanilla())));
    let told = |name: &str, wrong: Vec<String>, right: &str| match wrong.len() {
        0 => Check::new(name, Verdict::Pass, right),
        n => {
            let more = match n > MAX_TOLD {
                true => format!("; and {} more", n - MAX_TOLD),
                false => String::new(),
            };
            let first = wrong[..n.min(MAX_TOLD)].join("; ");
            Check::new(name, Verdict::Fail, format!("{first}{more}"))
        }
    };
    vec![
        told(
            "records agree with themselves",
            run.faults.clone(),
            &format!("{n} answers, no fault"),
        ),
        told("every answer was given", failed.collect(), "none failed"),
        told(
            "rounds commit what they accept and one more",
            rounds.collect(),
            "all but last rounds do; vanilla drafts nothing",
        ),
        told(
            "methods were asked what vanilla was",
            lost.collect(),
            "the same prompts",
        ),
    ]
}

/// A round adds one token to those it accepted, unless the answer ends in it; vanilla verifies no draft.
fn odd_rounds(cell: &Cell, data: &CellData) -> Option<String> {
    let is_vanilla = cell.method == "vanilla";
    data.answers.iter().find_map(|(key, brief)| {
        let whole = brief.rounds.len().saturating_sub(1);
        let odd = brief.rounds[..whole]
            .iter()
            .position(|[_, a, c]| *c != a + 1);
        let drafted = brief.rounds.iter().position(|[v, ..]| is_vanilla && *v > 0);
        let at = odd.or(drafted)?;
        let [v, a, c] = brief.rounds[at];
        Some(format!(
            "{cell}: prompt {}: round {at} verified {v}, accepted {a} and committed {c}",
            key.id
        ))
    })
}

/// First turns that vanilla answered and the method did not, or that were other prompts; an arm that failed is told
/// elsewhere.
fn lost(cell: &Cell, data: &CellData, vanilla: Option<&CellData>) -> Option<String> {
    let vanilla = vanilla?;
    let first = |data: &CellData| -> BTreeSet<(AnswerKey, String)> {
        let answers = data.answers.iter().filter(|(key, _)| key.turn == 0);
        answers
            .map(|(key, brief)| (key.clone(), brief.prompt.clone()))
            .collect()
    };
    let (own, its) = (first(data), first(vanilla));
    let is_excused = data.n_failed > 0 || vanilla.n_failed > 0 || vanilla.answers.is_empty();
    if is_excused || own == its {
        return None;
    }
    let (key, _) = own.symmetric_difference(&its).next()?;
    let n = own.symmetric_difference(&its).count();
    Some(format!(
        "{cell}: {n} answers are not vanilla's prompts, the first to prompt {}",
        key.id
    ))
}
