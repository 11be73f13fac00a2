//! L1: greedy text is vanilla's, whatever the method and however many sequences share the machine.

use std::collections::BTreeMap;

use super::{Check, Verdict};
use crate::paired::is_greedy;
use crate::record::{Cell, Thinking};
use crate::run_data::{AnswerKey, Brief, PoolKey, RunData};

/// Target, suite, thinking, prompt, turn.
type Place<'a> = (&'a str, &'a str, Thinking, &'a str, u32);

fn place<'a>(cell: &'a Cell, key: &'a AnswerKey) -> Place<'a> {
    (&cell.target, &cell.suite, cell.thinking, &key.id, key.turn)
}

fn greedy(run: &RunData) -> impl Iterator<Item = (&Cell, &AnswerKey, &Brief)> {
    let cells = run.cells.iter().filter(|(cell, _)| is_greedy(cell));
    cells.flat_map(|(cell, data)| {
        data.answers
            .iter()
            .map(move |(key, brief)| (cell, key, brief))
    })
}

/// Vanilla's answers, those at the lowest concurrency and of the first pass.
fn references(run: &RunData) -> BTreeMap<Place<'_>, &Brief> {
    let mut found = BTreeMap::new();
    for (cell, key, brief) in greedy(run).filter(|(cell, ..)| cell.method == "vanilla") {
        found.entry(place(cell, key)).or_insert(brief);
    }
    found
}

fn is_same(a: &Brief, b: &Brief) -> bool {
    (a.n_tokens, &a.text) == (b.n_tokens, &b.text)
}

/// One check a pool with greedy answers.
pub(super) fn checks(run: &RunData) -> Vec<Check> {
    let references = references(run);
    // Equal answers, all answers, the first that differs.
    let mut pools: BTreeMap<PoolKey, (usize, usize, Option<String>)> = BTreeMap::new();
    for (cell, key, brief) in greedy(run) {
        let Some(vanilla) = references.get(&place(cell, key)) else {
            continue;
        };
        let (equal, of, first) = pools.entry(PoolKey::of(cell)).or_default();
        *of += 1;
        match is_same(brief, vanilla) {
            true => *equal += 1,
            false => {
                let (suite, id, n, want) = (&cell.suite, &key.id, brief.n_tokens, vanilla.n_tokens);
                first.get_or_insert_with(|| {
                    format!("suite {suite}, prompt {id}: {n} tokens, vanilla's are {want}")
                });
            }
        }
    }
    if pools.is_empty() {
        let why = "no greedy answer: add --sampling greedy to the run, sampled text has no equal";
        return vec![Check::new("greedy text", Verdict::Inconclusive, why)];
    }
    let check = |(pool, (equal, of, first)): (PoolKey, (usize, usize, Option<String>))| match first
    {
        None => Check::new(
            pool.to_string(),
            Verdict::Pass,
            format!("{equal} of {of} answers are vanilla's"),
        ),
        Some(first) => {
            let n = of - equal;
            let detail = format!("{n} of {of} answers are not vanilla's; the first is of {first}");
            Check::new(pool.to_string(), Verdict::Fail, detail)
        }
    };
    pools.into_iter().map(check).collect()
}

/// Whether the target itself gives other greedy text than in the reference. That breaks no promise of a drafter, and
/// tau is then of other text.
pub(super) fn moved(old: &RunData, new: &RunData) -> Option<String> {
    let (before, now) = (references(old), references(new));
    let pairs = before
        .iter()
        .filter_map(|(at, brief)| Some((at, *brief, *now.get(at)?)));
    let pairs: Vec<_> = pairs.filter(|(_, a, b)| a.prompt == b.prompt).collect();
    let n = pairs.iter().filter(|(_, a, b)| !is_same(a, b)).count();
    (n > 0).then(|| {
        let of = pairs.len();
        format!("vanilla's own greedy text is not the reference's in {n} of {of} answers: the target computes otherwise")
    })
}
