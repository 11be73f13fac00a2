//! L1: greedy text is vanilla's, whatever the method and however many sequences share the machine, and vanilla's is the
//! reference's.

use std::collections::{BTreeMap, BTreeSet};

use super::policy::VanillaText;
use super::{Check, Policy, Verdict};
use crate::paired::{DrafterRule, is_greedy, mismatch};
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

/// Every check of L1.
pub(super) fn checks(old: &RunData, new: &RunData, policy: &Policy) -> Vec<Check> {
    let mut checks = own_text(new);
    checks.extend(vanilla_text(old, new, policy.losslessness.vanilla_text));
    checks.extend(super::right::checks(old, new, policy));
    checks
}

/// One check a pool with greedy answers.
fn own_text(run: &RunData) -> Vec<Check> {
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

/// Greedy answers of vanilla in two runs that should give the same: of one target, dtype and suite.
#[derive(Default)]
pub(super) struct Moved {
    /// Target, suite, thinking and id of prompts with an answer that is another.
    prompts: BTreeSet<(String, String, Thinking, String)>,
    /// Answers that are another, and all.
    n: usize,
    of: usize,
}

impl Moved {
    pub(super) fn between(old: &RunData, new: &RunData) -> Self {
        let now = references(new);
        let mut pairs = BTreeMap::new();
        let mut comparable: BTreeMap<&Cell, bool> = BTreeMap::new();
        for (cell, key, brief) in greedy(old).filter(|(cell, ..)| cell.method == "vanilla") {
            let is_pair = *comparable
                .entry(cell)
                .or_insert_with(|| mismatch(old, new, cell, DrafterRule::Any).is_none());
            if let Some(now) = now.get(&place(cell, key)).filter(|_| is_pair) {
                pairs.entry(place(cell, key)).or_insert((brief, *now));
            }
        }
        let mut moved = Self::default();
        for ((target, suite, thinking, id, _), (before, now)) in pairs {
            // A later turn holds the answers before it: the prompt has moved, and its own answer tells nothing.
            let is_asked_alike = before.prompt == now.prompt;
            let is_other = is_asked_alike && !is_same(before, now);
            moved.of += usize::from(is_asked_alike);
            moved.n += usize::from(is_other);
            if is_other || !is_asked_alike {
                let at = (target.to_owned(), suite.to_owned(), thinking, id.to_owned());
                moved.prompts.insert(at);
            }
        }
        moved
    }

    /// Whether a prompt of a cell is one of them.
    pub(super) fn holds(&self, cell: &Cell, id: &str) -> bool {
        // An answer that was sampled is a draw anyway.
        is_greedy(cell)
            && !self.prompts.is_empty()
            && self.prompts.contains(&(
                cell.target.clone(),
                cell.suite.clone(),
                cell.thinking,
                id.to_owned(),
            ))
    }
}

/// Whether the target itself writes what it wrote. That it does not breaks no promise of a drafter, but the run is of
/// another target than the reference's.
fn vanilla_text(old: &RunData, new: &RunData, rule: VanillaText) -> Option<Check> {
    let Moved { n, of, .. } = Moved::between(old, new);
    let (verdict, detail) = match (n, rule) {
        _ if of == 0 => return None,
        (0, _) => (
            Verdict::Pass,
            format!("the reference's in {of} of {of} answers"),
        ),
        (_, VanillaText::Same) => (
            Verdict::Inconclusive,
            format!(
                "vanilla's own greedy text is not the reference's in {n} of {of} answers: the target has changed; look at it, and record a new reference, or set losslessness.vanilla_text = \"any\""
            ),
        ),
        (_, VanillaText::Any) => (
            Verdict::Pass,
            format!(
                "vanilla's own greedy text is not the reference's in {n} of {of} answers, and losslessness.vanilla_text = \"any\" lets it"
            ),
        ),
    };
    Some(Check::new("vanilla's own text", verdict, detail))
}
