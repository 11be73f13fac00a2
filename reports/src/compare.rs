//! What differs between runs: acceptance length, throughput, speedup and text, paired by prompt.

mod show;

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::bootstrap::Draws;
use crate::paired::{
    DrafterRule, Effect, Figure, Pairs, is_greedy, mismatch, other_machine, percent,
};
use crate::rank::least_values;
use crate::record::Cell;
use crate::run_data::{PoolKey, RunData};

/// Version of the JSON that a comparison becomes.
pub const COMPARISON_SCHEMA: u32 = 1;

/// Fewer prompts than these tell nothing.
const MIN_PROMPTS: usize = 5;

/// A log-ratio of acceptance lengths that matters to nobody.
const TAU_MARGIN: f64 = 0.01;

/// A log-ratio of times that matters to nobody.
const TIME_MARGIN: f64 = 0.03;

/// Some runs against one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: u32,
    /// The run that the others are held against.
    pub reference: String,
    /// The others, in the order they were given.
    pub others: Vec<Versus>,
}

/// One run against the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Versus {
    /// The run.
    pub label: String,
    /// Why no cell can be compared, if none can.
    pub incomparable: Option<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// Each pool, followed by its cells.
    pub rows: Vec<Row>,
}

/// One cell, or the cells of all suites together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Coordinates without the suite.
    pub pool: PoolKey,
    /// The suite; `None` is all suites together.
    pub suite: Option<String>,
    /// Prompts that both runs answered.
    pub n_prompts: usize,
    /// Acceptance lengths of the reference and of this run, over those prompts.
    pub taus: Option<(f64, f64)>,
    /// Acceptance length, throughput, and but for vanilla speedup.
    pub findings: Vec<Finding>,
    /// Greedy: answers with the same text, of all pairs. `None` of sampled ones, which only share a law.
    pub equal: Option<(usize, usize)>,
}

/// What is known of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The figure.
    pub figure: Figure,
    /// By how much it differs, this run over the reference, with a 95 % interval over prompts.
    pub effect: Option<Effect>,
    /// In a word.
    pub word: Word,
    /// Why the word is no verdict, if it is none.
    pub why: Option<String>,
}

/// A finding in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The interval lies above zero, and not within the margin around it.
    Better,
    /// The interval lies below zero, and not within the margin around it.
    Worse,
    /// The interval lies within the margin around zero: 1 % of tau, 3 % of a time.
    NoDifference,
    /// Too few prompts, or an interval that holds zero and more than the margin.
    Inconclusive,
    /// The two are no pair.
    Incomparable,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no difference",
            Self::Inconclusive => "inconclusive",
            Self::Incomparable => "incomparable",
        })
    }
}

/// Holds all runs but the first against the first. No run, or one alone, is a comparison without rows.
pub fn compare(runs: &[RunData]) -> Comparison {
    let versus = |reference: &RunData| {
        let others = runs[1..].iter();
        others.map(|run| Versus::of(reference, run)).collect()
    };
    Comparison {
        schema: COMPARISON_SCHEMA,
        reference: runs.first().map_or(String::new(), |r| r.label.clone()),
        others: runs.first().map_or(Vec::new(), versus),
    }
}

impl Versus {
    fn of(old: &RunData, new: &RunData) -> Self {
        let answered = |run: &RunData| -> BTreeSet<Cell> {
            let cells = run.cells.iter().filter(|(_, d)| !d.answers.is_empty());
            cells.map(|(cell, _)| cell.clone()).collect()
        };
        let (before, now) = (answered(old), answered(new));
        let common: Vec<&Cell> = before.intersection(&now).collect();
        let machine = other_machine(old, new);
        let mut rows = Vec::new();
        let mut reasons = BTreeSet::new();
        let pools: BTreeSet<PoolKey> = common.iter().map(|c| PoolKey::of(c)).collect();
        for pool in pools {
            let cells: Vec<&Cell> = common
                .iter()
                .filter(|c| PoolKey::of(c) == pool)
                .copied()
                .collect();
            let why = |cell: &&Cell| mismatch(old, new, cell, DrafterRule::Any);
            let comparable: Vec<&Cell> =
                cells.iter().filter(|c| why(c).is_none()).copied().collect();
            reasons.extend(cells.iter().filter_map(why));
            let of = |cells: &[&Cell], suite: Option<String>, why: Option<String>| {
                let pairs = Pairs::of(old, new, cells.iter().copied());
                Row::of(&pool, suite, &pairs, why, machine.as_deref())
            };
            if cells.len() > 1 {
                let why = comparable.is_empty().then(|| why(&cells[0])).flatten();
                rows.push(of(&comparable, None, why));
            }
            for cell in &cells {
                rows.push(of(&[cell], Some(cell.suite.clone()), why(cell)));
            }
        }
        let is_hopeless = rows
            .iter()
            .all(|r| r.findings[0].word == Word::Incomparable);
        let incomparable = match common.is_empty() {
            true => Some(apart(&before, &now)),
            false => is_hopeless.then(|| reasons.iter().cloned().collect::<Vec<_>>().join("; ")),
        };
        let mut notes = notes(old, new, &common);
        notes.extend([old, new].into_iter().filter_map(synthetic));
        notes.extend(rows.iter().filter_map(Row::vanilla_moved));
        notes.extend(alone(&old.label, &before, &now));
        notes.extend(alone(&new.label, &now, &before));
        Self {
            label: new.label.clone(),
            incomparable,
            notes,
            rows,
        }
    }
}

impl Row {
    fn of(
        pool: &PoolKey,
        suite: Option<String>,
        pairs: &Pairs,
        why: Option<String>,
        machine: Option<&str>,
    ) -> Self {
        let total = pairs.total();
        let finding = |figure: Figure| {
            let why = why.clone().or_else(|| {
                let of_time = machine.filter(|_| figure != Figure::Tau);
                of_time.map(str::to_owned)
            });
            match why {
                Some(why) => Finding {
                    figure,
                    effect: None,
                    word: Word::Incomparable,
                    why: Some(why),
                },
                None => Finding::of(figure, pairs),
            }
        };
        let mut figures = vec![Figure::Tau, Figure::Throughput];
        if pool.method != "vanilla" {
            figures.push(Figure::Speedup);
        }
        let is_greedy = pool.sampling == crate::SamplingKey::Greedy;
        Self {
            pool: pool.clone(),
            suite,
            n_prompts: pairs.prompts.len(),
            taus: total.old.tau().zip(total.new.tau()),
            findings: figures.into_iter().map(finding).collect(),
            equal: (is_greedy && why.is_none()).then_some((pairs.n_equal, pairs.n_pairs)),
        }
    }
}

impl Row {
    /// A warning where vanilla itself became faster or slower over all suites: no interval of a method's time holds
    /// that.
    fn vanilla_moved(&self) -> Option<String> {
        let of_all = self.pool.method == "vanilla" && self.suite.is_none();
        let time = self
            .findings
            .iter()
            .find(|f| f.figure == Figure::Throughput)?;
        let moved = of_all && matches!(time.word, Word::Better | Word::Worse);
        let (effect, pool) = (time.effect.filter(|_| moved)?, &self.pool);
        Some(format!(
            "{}, {}: vanilla's own throughput is another, {effect}: the machine or the target is, so read speedups and gate with a null control",
            pool.target, pool.sampling
        ))
    }
}

impl Finding {
    fn of(figure: Figure, pairs: &Pairs) -> Self {
        let effect = pairs.effect(figure, Draws::default());
        let margin = match figure {
            Figure::Tau => TAU_MARGIN,
            Figure::Throughput | Figure::Speedup => TIME_MARGIN,
        };
        let (word, why) = match &effect {
            None => (Word::Inconclusive, Some("nothing to divide by".to_owned())),
            Some(effect) => word(effect, margin),
        };
        Self {
            figure,
            effect,
            word,
            why,
        }
    }
}

/// The verdict on an interval, and why it is none.
fn word(effect: &Effect, margin: f64) -> (Word, Option<String>) {
    if effect.n < MIN_PROMPTS {
        let n = effect.n;
        let why = format!("{n} prompts in common, fewer than {MIN_PROMPTS}");
        return (Word::Inconclusive, Some(why));
    }
    if effect.is_degenerate() && effect.n < least_values(0.95) {
        let why = "all prompts differ by one factor, and so few may do so by chance".to_owned();
        return (Word::Inconclusive, Some(why));
    }
    if -margin <= effect.low && effect.high <= margin {
        return (Word::NoDifference, None);
    }
    match (effect.low > 0.0, effect.high < 0.0) {
        (true, _) => (Word::Better, None),
        (_, true) => (Word::Worse, None),
        _ => {
            let margin = percent(margin);
            let why =
                format!("the interval holds zero and goes beyond {margin} %: take more prompts");
            (Word::Inconclusive, Some(why))
        }
    }
}

/// Why two runs have no cell in common, by the first coordinate that they share no value of.
fn apart(before: &BTreeSet<Cell>, now: &BTreeSet<Cell>) -> String {
    type Of = fn(&Cell) -> String;
    let coordinates: [(&str, Of); 7] = [
        ("target", |c| c.target.clone()),
        ("suite", |c| c.suite.clone()),
        ("sampling", |c| c.sampling.to_string()),
        ("thinking", |c| c.thinking.to_string()),
        ("concurrency", |c| c.concurrency.to_string()),
        ("arrivals", |c| c.arrivals.to_string()),
        ("method", |c| c.method.clone()),
    ];
    for (name, of) in coordinates {
        let values = |cells: &BTreeSet<Cell>| cells.iter().map(of).collect::<BTreeSet<String>>();
        let (a, b) = (values(before), values(now));
        if a.is_disjoint(&b) {
            let list = |v: BTreeSet<String>| v.into_iter().collect::<Vec<_>>().join(", ");
            return format!(
                "no cell in common: {name} was {} and is {}",
                list(a),
                list(b)
            );
        }
    }
    "no cell in common".to_owned()
}

/// How many cells of a run are left out, since their acceptance was given.
fn synthetic(run: &RunData) -> Option<String> {
    let n = run.synthetic.len();
    (n > 0).then(|| {
        format!(
            "{}: left out {n} with synthetic acceptance, which was given and not measured",
            run.label
        )
    })
}

fn notes(old: &RunData, new: &RunData, common: &[&Cell]) -> Vec<String> {
    let mut notes = BTreeSet::new();
    for run in [old, new] {
        if !run.faults.is_empty() {
            let (n, first) = (run.faults.len(), &run.faults[0]);
            notes.insert(format!(
                "{}: {n} records contradict themselves and are left out; the first: {first}",
                run.label
            ));
        }
    }
    if old.identity.run == new.identity.run && !old.identity.run.is_empty() {
        notes.insert(format!("both are the run {}", old.identity.run));
    }
    let (a, b) = (&old.identity.program, &new.identity.program);
    if a != b {
        notes.insert(format!("program: was {a}, is {b}"));
    } else if old.identity.run != new.identity.run && !a.is_empty() {
        notes.insert(format!(
            "both are of program {a}: what differs in time at equal tokens is the machine's"
        ));
    }
    for cell in common {
        let pairs = Pairs::of(old, new, [*cell]);
        if pairs.n_lost + pairs.n_more > 0 && cell.method == "vanilla" {
            let (n, lost, more) = (pairs.n_pairs, pairs.n_lost, pairs.n_more);
            notes.insert(format!(
                "suite {}, {}: {n} answers in common, {lost} only in the reference, {more} only in this run",
                cell.suite, cell.sampling
            ));
        }
        if is_greedy(cell) && cell.method == "vanilla" && pairs.n_equal < pairs.n_pairs {
            let n = pairs.n_pairs - pairs.n_equal;
            notes.insert(format!(
                "suite {}: vanilla's own greedy text differs in {n} of {} answers: the target computes otherwise",
                cell.suite, pairs.n_pairs
            ));
        }
        let (Some(before), Some(now)) = (old.group(cell), new.group(cell)) else {
            notes.insert("which checkpoints were measured is not known of both runs".to_owned());
            continue;
        };
        if before.seed != now.seed && !is_greedy(cell) {
            notes.insert(format!(
                "seed: was {}, is {}; sampled answers are other draws",
                before.seed, now.seed
            ));
        }
        let drafter = |of: &crate::GroupIdentity| of.drafters_sha256.get(&cell.method).cloned();
        if drafter(before) != drafter(now) {
            notes.insert(format!("drafter of {}: another checkpoint", cell.method));
        }
    }
    notes.into_iter().collect()
}

/// How many cells one run has alone.
fn alone(label: &str, own: &BTreeSet<Cell>, other: &BTreeSet<Cell>) -> Option<String> {
    let methods: BTreeSet<&str> = own.difference(other).map(|c| c.method.as_str()).collect();
    let methods: Vec<&str> = methods.into_iter().collect();
    let n = own.difference(other).count();
    (n > 0).then(|| format!("only in {label}: {n} cells of {}", methods.join(", ")))
}

#[cfg(test)]
mod tests;
