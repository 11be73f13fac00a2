//! Two runs side by side: answers to the same prompts, and by how much a ratio of sums differs between them.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::SamplingKey;
use crate::bootstrap::{Draws, interval_with};
use crate::record::Cell;
use crate::run_data::{Brief, CellData, RunData};

/// By how much a figure differs, as the natural logarithm of the new one over the old one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The estimate.
    pub log_ratio: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// Prompts, or blocks, that it rests on.
    pub n: usize,
}

impl Effect {
    /// No difference, and no room for one: all counts are equal.
    pub(crate) fn none(n: usize) -> Self {
        Self {
            log_ratio: 0.0,
            low: 0.0,
            high: 0.0,
            n,
        }
    }

    /// Whether the interval claims a difference without any doubt, as it does where all prompts differ by one and the
    /// same factor. A sign test of so few prompts may say otherwise.
    pub(crate) fn is_degenerate(&self) -> bool {
        self.low == self.high && self.log_ratio != 0.0
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [value, low, high] = [self.log_ratio, self.low, self.high].map(percent);
        write!(f, "{value} % ({low} to {high})")
    }
}

/// A log-ratio as a difference in percent, with its sign.
pub(crate) fn percent(log_ratio: f64) -> String {
    let value = log_ratio.exp_m1() * 100.0;
    // Neither +0.0 nor -0.0 where it rounds to nothing.
    match value.abs() < 0.05 {
        true => "0.0".to_owned(),
        false => format!("{value:+.1}"),
    }
}

/// What some answers add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) committed: u64,
    pub(crate) rounds: u64,
    pub(crate) busy_ns: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, brief: &Brief) {
        let committed = brief.rounds.iter().map(|r| u64::from(r[2]));
        self.committed += committed.sum::<u64>();
        self.rounds += brief.rounds.len() as u64;
        self.busy_ns += brief.busy_ns;
    }

    fn plus(self, other: Self) -> Self {
        Self {
            committed: self.committed + other.committed,
            rounds: self.rounds + other.rounds,
            busy_ns: self.busy_ns + other.busy_ns,
        }
    }

    pub(crate) fn tau(&self) -> Option<f64> {
        ratio(self.committed, self.rounds)
    }

    /// Tokens a nanosecond.
    pub(crate) fn rate(&self) -> Option<f64> {
        ratio(self.committed, self.busy_ns)
    }
}

/// `None` unless both are positive: its logarithm is taken.
fn ratio(num: u64, den: u64) -> Option<f64> {
    (num > 0 && den > 0).then(|| num as f64 / den as f64)
}

/// The same prompts in two runs, by the method and by vanilla.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quad {
    pub(crate) old: Sum,
    pub(crate) new: Sum,
    /// Of those answers, the ones that vanilla gave in both runs: a speedup is of these alone.
    pub(crate) old_raced: Sum,
    pub(crate) new_raced: Sum,
    pub(crate) old_vanilla: Sum,
    pub(crate) new_vanilla: Sum,
}

impl Quad {
    fn plus(self, other: &Self) -> Self {
        Self {
            old: self.old.plus(other.old),
            new: self.new.plus(other.new),
            old_raced: self.old_raced.plus(other.old_raced),
            new_raced: self.new_raced.plus(other.new_raced),
            old_vanilla: self.old_vanilla.plus(other.old_vanilla),
            new_vanilla: self.new_vanilla.plus(other.new_vanilla),
        }
    }

    /// Change of a figure.
    pub(crate) fn change(&self, figure: Figure) -> Option<f64> {
        change(figure, &self.parts(figure))
    }

    /// What a figure is made of: numerator and denominator, old and new, and of a speedup vanilla's too.
    fn parts(&self, figure: Figure) -> [u64; 8] {
        let tau = |s: &Sum| [s.committed, s.rounds];
        let rate = |s: &Sum| [s.committed, s.busy_ns];
        let [[a, b], [c, d], [e, f], [g, h]] = match figure {
            Figure::Tau => [tau(&self.old), tau(&self.new), [0; 2], [0; 2]],
            Figure::Throughput => [rate(&self.old), rate(&self.new), [0; 2], [0; 2]],
            Figure::Speedup => [
                rate(&self.old_raced),
                rate(&self.new_raced),
                rate(&self.old_vanilla),
                rate(&self.new_vanilla),
            ],
        };
        [a, b, c, d, e, f, g, h]
    }
}

/// Change of a figure whose parts are these, or sums of such.
fn change(figure: Figure, parts: &[u64; 8]) -> Option<f64> {
    let moved = |of: &[u64]| Some((ratio(of[2], of[3])? / ratio(of[0], of[1])?).ln());
    let own = moved(&parts[..4])?;
    match figure {
        Figure::Tau | Figure::Throughput => Some(own),
        Figure::Speedup => Some(own - moved(&parts[4..])?),
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Acceptance length.
    Tau,
    /// Tokens a second; what the machine does from run to run is in it.
    Throughput,
    /// Throughput over vanilla's of the same run: a machine that is slower as a whole cancels out.
    Speedup,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tau => "tau",
            Self::Throughput => "throughput",
            Self::Speedup => "speedup",
        })
    }
}

/// Cells of two runs, answer by answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pairs {
    /// By suite and prompt.
    pub(crate) prompts: BTreeMap<(String, String), Quad>,
    /// What was timed interleaved: a prompt at concurrency 1, a pass over all of them above.
    pub(crate) blocks: BTreeMap<(String, String), Quad>,
    /// Answers with the same text, of all pairs.
    pub(crate) n_equal: usize,
    /// Pairs of answers.
    pub(crate) n_pairs: usize,
    /// Whether all pairs have the same rounds.
    pub(crate) same_rounds: bool,
    /// Answers of the old run that the new one lacks.
    pub(crate) n_lost: usize,
    /// Those of first turns; whether a later one is asked depends on the answer before.
    pub(crate) n_lost_prompts: usize,
    /// Pairs of prompts that were not asked for.
    pub(crate) n_left_out: usize,
    /// Answers of the new run that the old one lacks.
    pub(crate) n_more: usize,
    /// By slot of a draft: judged and accepted, old and new. A slot is judged if all before it were accepted.
    pub(crate) slots: Vec<[(u64, u64); 2]>,
    /// Of the new run: runs of 8 tokens that occurred before in their answer, and all.
    pub(crate) grams: (u64, u64),
}

impl Pairs {
    /// Pairs the given cells.
    pub(crate) fn of<'a>(
        old: &RunData,
        new: &RunData,
        cells: impl IntoIterator<Item = &'a Cell>,
    ) -> Self {
        Self::of_prompts(old, new, cells, &|_, _| true)
    }

    /// Pairs the given cells, of each the prompts whose id `is_in` takes.
    pub(crate) fn of_prompts<'a>(
        old: &RunData,
        new: &RunData,
        cells: impl IntoIterator<Item = &'a Cell>,
        is_in: &dyn Fn(&Cell, &str) -> bool,
    ) -> Self {
        let mut pairs = Self {
            same_rounds: true,
            ..Self::default()
        };
        let none = CellData::default();
        for cell in cells {
            let vanilla = cell.vanilla();
            let sides = [old, new].map(|run| Side {
                own: run.cells.get(cell).unwrap_or(&none),
                vanilla: run.cells.get(&vanilla).unwrap_or(&none),
            });
            pairs.add(cell, &sides, is_in);
        }
        pairs
    }

    fn add(
        &mut self,
        cell: &Cell,
        [old, new]: &[Side<'_>; 2],
        is_in: &dyn Fn(&Cell, &str) -> bool,
    ) {
        for (key, before) in &old.own.answers {
            let Some(now) = new.own.answers.get(key) else {
                self.n_lost += 1;
                self.n_lost_prompts += usize::from(key.turn == 0);
                continue;
            };
            if !is_in(cell, &key.id) {
                self.n_left_out += 1;
                continue;
            }
            self.n_pairs += 1;
            self.n_equal +=
                usize::from((before.n_tokens, &before.text) == (now.n_tokens, &now.text));
            self.same_rounds &= before.rounds == now.rounds;
            self.add_slots(before, now);
            self.grams.0 += u64::from(now.grams.repeated);
            self.grams.1 += u64::from(now.grams.total);
            let mut quad = Quad::default();
            quad.old.add(before);
            quad.new.add(now);
            // Both or none: a speedup of one run alone is no pair.
            let vanilla = old
                .vanilla
                .answers
                .get(key)
                .zip(new.vanilla.answers.get(key));
            if let Some(vanilla) = vanilla {
                (quad.old_raced, quad.new_raced) = (quad.old, quad.new);
                quad.old_vanilla.add(vanilla.0);
                quad.new_vanilla.add(vanilla.1);
            }
            let prompt = (cell.suite.clone(), key.id.clone());
            let block = match cell.is_batched() {
                false => prompt.clone(),
                true => (cell.suite.clone(), format!("pass {}", key.pass)),
            };
            for (units, at) in [(&mut self.prompts, prompt), (&mut self.blocks, block)] {
                let sum = units.entry(at).or_default();
                *sum = sum.plus(&quad);
            }
        }
        let is_more = |key: &&_| !old.own.answers.contains_key(key);
        self.n_more += new.own.answers.keys().filter(is_more).count();
    }

    fn add_slots(&mut self, before: &Brief, now: &Brief) {
        for (side, brief) in [before, now].into_iter().enumerate() {
            for [verified, accepted, _] in &brief.rounds {
                let judged = (*verified).min(accepted.saturating_add(1)) as usize;
                if self.slots.len() < judged {
                    self.slots.resize(judged, [(0, 0); 2]);
                }
                for (slot, counts) in self.slots[..judged].iter_mut().enumerate() {
                    counts[side].0 += 1;
                    counts[side].1 += u64::from(slot < *accepted as usize);
                }
            }
        }
    }

    /// Change of a figure over all prompts together, with its interval over prompts. `None` where one side has none.
    pub(crate) fn effect(&self, figure: Figure, draws: Draws) -> Option<Effect> {
        let is_raced = |q: &&Quad| figure != Figure::Speedup || q.old_vanilla.rounds > 0;
        let prompts: Vec<&Quad> = self.prompts.values().filter(is_raced).collect();
        let n = prompts.len();
        let total = prompts
            .iter()
            .fold(Quad::default(), |sum, q| sum.plus(q))
            .change(figure);
        let log_ratio = total?;
        let is_same = prompts.iter().all(|q| match figure {
            Figure::Tau => q.old.committed == q.new.committed && q.old.rounds == q.new.rounds,
            Figure::Throughput => q.old == q.new,
            Figure::Speedup => q.old_raced == q.new_raced && q.old_vanilla == q.new_vanilla,
        });
        if is_same {
            return Some(Effect::none(n));
        }
        let parts: Vec<[u64; 8]> = prompts.iter().map(|q| q.parts(figure)).collect();
        let parts: Vec<&[u64; 8]> = parts.iter().collect();
        let (low, high) = interval_with(draws, &parts, |drawn| {
            let mut sums = [0; 8];
            for part in drawn {
                sums.iter_mut().zip(*part).for_each(|(sum, x)| *sum += x);
            }
            change(figure, &sums)
        })?;
        Some(Effect {
            log_ratio,
            low,
            high,
            n,
        })
    }

    /// Sums over all prompts.
    pub(crate) fn total(&self) -> Quad {
        let quads = self.prompts.values();
        quads.fold(Quad::default(), |sum, q| sum.plus(q))
    }

    /// The slot whose drafts lost most of their acceptance, 1-based, and the shares accepted before and now. Of a tree
    /// `verified` counts nodes: slots behind the deepest acceptance of either run may be no positions, and are left out.
    pub(crate) fn worst_slot(&self) -> Option<(usize, f64, f64)> {
        let share =
            |(judged, passed): (u64, u64)| (judged > 0).then(|| passed as f64 / judged as f64);
        let deepest = self
            .slots
            .iter()
            .rposition(|[old, new]| old.1 + new.1 > 0)?;
        let slots = self.slots[..=deepest].iter().enumerate();
        let changes =
            slots.filter_map(|(slot, [old, new])| Some((slot + 1, share(*old)?, share(*new)?)));
        changes.max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)))
    }
}

/// One run's part of a cell.
struct Side<'a> {
    own: &'a CellData,
    vanilla: &'a CellData,
}

/// Whether drafters must be the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrafterRule {
    Same,
    Any,
}

/// Why a cell's acceptance cannot be compared, if it cannot. What is known of only one run counts as different where
/// `rule` is strict.
pub(crate) fn mismatch(
    old: &RunData,
    new: &RunData,
    cell: &Cell,
    rule: DrafterRule,
) -> Option<String> {
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    let (before, now) = (&old.identity.dtype, &new.identity.dtype);
    if let (Some(before), Some(now)) = (before, now)
        && before != now
    {
        return Some(format!("dtype was {before} and is {now}"));
    }
    let (before, now) = (old.group(cell), new.group(cell));
    if let (Some(before), Some(now)) = (before, now) {
        if before.target_sha256 != now.target_sha256 {
            let (a, b) = (short(&before.target_sha256), short(&now.target_sha256));
            return Some(format!(
                "checkpoint of target {} was {a} and is {b}",
                cell.target
            ));
        }
        if before.max_new != now.max_new {
            let (a, b) = (before.max_new, now.max_new);
            return Some(format!(
                "sampling: most tokens of an answer were {a} and are {b}"
            ));
        }
        let drafter =
            |of: &crate::GroupIdentity| of.drafters_sha256.get(&cell.method).cloned().flatten();
        let (a, b) = (drafter(before), drafter(now));
        if rule == DrafterRule::Same && a != b {
            let [a, b] = [a, b].map(|h| h.as_deref().map_or("absent".to_owned(), short));
            return Some(format!(
                "checkpoint of drafter {} was {a} and is {b}",
                cell.method
            ));
        }
    } else if rule == DrafterRule::Same {
        return Some("it is not known which checkpoints were measured; name the folder of a run, with its plan.json".into());
    }
    let none = CellData::default();
    let [old, new] = [old, new].map(|run| run.cells.get(cell).unwrap_or(&none));
    let other_prompt = old.answers.iter().find(|(key, brief)| {
        let now = new.answers.get(key);
        // A later turn holds the method's own answers.
        key.turn == 0 && now.is_some_and(|now| now.prompt != brief.prompt)
    });
    other_prompt.map(|(key, _)| {
        let same_suite = before
            .zip(now)
            .is_some_and(|(a, b)| a.suite_sha256 == b.suite_sha256);
        match same_suite {
            true => format!(
                "chat template: prompt {} of suite {} is rendered otherwise",
                key.id, cell.suite
            ),
            false => format!("suite: prompt {} of {} is another text", key.id, cell.suite),
        }
    })
}

/// Why times cannot be compared, if they cannot.
pub(crate) fn other_machine(old: &RunData, new: &RunData) -> Option<String> {
    let (before, now) = (&old.identity.hardware, &new.identity.hardware);
    match (before, now) {
        (Some(before), Some(now)) if before == now => None,
        (Some(before), Some(now)) => Some(format!("hardware class was {before:?} and is {now:?}")),
        (None, _) => Some(format!(
            "{}: its hardware class is unknown, or it went over several machines",
            old.label
        )),
        (_, None) => Some(format!(
            "{}: its hardware class is unknown, or it went over several machines",
            new.label
        )),
    }
}

/// Whether answers of a cell should be the same text in every run.
pub(crate) fn is_greedy(cell: &Cell) -> bool {
    cell.sampling == SamplingKey::Greedy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{answer, record};
    use crate::run_data::Identity;

    /// A run of vanilla and dflash, whose answer to each prompt takes `slow` times as long as it would.
    fn run(rounds: &[(u32, u32)], slow: u64, n_vanilla: usize) -> RunData {
        let mut records = Vec::new();
        for i in 0..6 {
            let id = format!("p{i}");
            let mut drafted = answer(rounds);
            let single = vec![(0, 1); drafted.n_tokens as usize - 1];
            let mut vanilla = answer(&single);
            vanilla.rounds.drafted = vec![0; single.len()];
            vanilla.rounds.verified = vec![0; single.len()];
            // Only answers that vanilla gave too take their usual time.
            drafted.decode_ns *= if i < n_vanilla { 1 } else { slow };
            records.push(record("dflash", &id, drafted));
            if i < n_vanilla {
                records.push(record("vanilla", &id, vanilla));
            }
        }
        RunData::new("r", Identity::default(), &records).unwrap()
    }

    fn pairs(old: &RunData, new: &RunData) -> Pairs {
        let cells = old.cells.keys().filter(|c| c.method == "dflash");
        Pairs::of(old, new, cells)
    }

    #[test]
    fn a_speedup_is_of_the_answers_that_vanilla_gave_too() {
        let rounds = [(2, 3), (1, 2), (2, 3)];
        let pairs = pairs(&run(&rounds, 1, 4), &run(&rounds, 3, 4));
        let total = pairs.total();
        assert_eq!(total.change(Figure::Speedup), Some(0.0));
        assert!(total.change(Figure::Throughput).unwrap() < -0.3);
        let draws = Draws::default();
        assert_eq!(
            pairs.effect(Figure::Speedup, draws),
            Some(Effect::none(4)),
            "of four prompts"
        );
        assert_eq!(pairs.effect(Figure::Throughput, draws).unwrap().n, 6);
    }

    #[test]
    fn a_slot_behind_the_deepest_acceptance_of_a_tree_is_never_the_worst() {
        // Three nodes of depth 2. Both slots are accepted more often than before.
        let old = run(&[(2, 3), (0, 1), (1, 2)], 1, 6);
        let new = run(&[(2, 3), (2, 3)], 1, 6);
        let (slot, before, now) = pairs(&old, &new).worst_slot().unwrap();
        assert_eq!((slot, before < now), (1, true), "{before} {now}");
        // One that was accepted once and never again is a position.
        let (slot, before, now) = pairs(&new, &run(&[(1, 2), (1, 2), (1, 2)], 1, 6))
            .worst_slot()
            .unwrap();
        assert_eq!((slot, before, now), (2, 1.0, 0.0));
    }
}
