use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use crate::SamplingKey;
use crate::bootstrap::ratio_interval;
use crate::latency::Latency;
use crate::record::{Answer, Cell, Outcome, PromptKey, Record, Startup};
use crate::sums::{Clock, Sums, ratio};

/// Share of repeated 8-grams above which a cell's text is called degenerate.
const DEGENERATE: f64 = 0.2;

/// Everything a table says about one cell. A number that cannot be computed is `None`, never 0.
#[derive(Clone, Debug, PartialEq)]
pub struct CellStats {
    /// Answers in the cell, every pass counted.
    pub n_answers: usize,
    /// Acceptance length: tokens committed / rounds, pooled over all rounds of the cell. The token that prefill
    /// gives belongs to no round; a last round is cut where its answer ends.
    pub tau: Option<f64>,
    /// 95 % interval of `tau`, whole prompts resampled with a fixed seed; needs 2 prompts.
    pub tau_interval: Option<(f64, f64)>,
    /// Mean over answers of each answer's own committed / rounds.
    pub tau_macro: Option<f64>,
    /// Decode tokens a second of one sequence: (answer tokens - 1) / decode time, pooled.
    pub tokens_per_sec: Option<f64>,
    /// Tokens committed a second of wall time by all sequences of a batch together, prefills taken out, pooled over
    /// passes. At concurrency 1 the same as `tokens_per_sec`; none in open loop, where requests set the pace.
    pub throughput: Option<f64>,
    /// Vanilla's time a token / this method's, each pooled over the answers that both have: decode time at
    /// concurrency 1 and in open loop, else the batch's wall time, so that it is the ratio of throughputs there.
    pub speedup: Option<f64>,
    /// 95 % interval of `speedup` over prompts, resampled as for `tau_interval`; what the machine does between two
    /// runs is not in it.
    pub speedup_interval: Option<(f64, f64)>,
    /// `speedup` of each pass alone, in order; what the machine does between passes, or between the processes of a
    /// repeated run, shows here. Empty at concurrency 1 in one process, where there is one pass.
    pub speedup_by_pass: Vec<f64>,
    /// Drafts accepted / drafts verified.
    pub accepted_share: Option<f64>,
    /// 8-grams that occurred before in the same answer / all 8-grams.
    pub repeated_share: Option<f64>,
    /// Answers that are loops: over 30 % of their 8-grams occurred before.
    pub n_loops: u64,
    /// `tau` over the other answers; where decoding is greedy these are the same for every method.
    pub tau_without_loops: Option<f64>,
    /// Answers that are right, and answers that could be checked; `None` if none could.
    pub correct: Option<(usize, usize)>,
    /// Prompts that were not asked, since they do not fit the target.
    pub n_skipped: usize,
    /// Later turns of prompts that were not asked, since the conversation had become too long.
    pub n_skipped_turns: usize,
    /// Whether the text is vanilla's.
    pub equality: Equality,
    /// What a client waits for, and throughput over whole batches.
    pub latency: Latency,
    /// Nanoseconds of warm-up, of all processes that worked on the cell.
    pub warm_up_ns: u64,
    /// Whether steps had not become equally long when a process began to measure.
    pub is_unsettled: bool,
    /// Why the cell has no numbers a reader should see: the first failure, or the reason it was skipped.
    pub trouble: Option<String>,
}

impl CellStats {
    /// Whether so much of the text repeats itself that a tau says little about other text.
    pub fn is_degenerate(&self) -> bool {
        self.repeated_share.is_some_and(|share| share > DEGENERATE)
    }
}

/// What is known about a cell's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equality {
    /// The cell is vanilla's own.
    Reference,
    /// Greedy: answers equal to vanilla's token by token, of all answers.
    Exact {
        /// Equal answers.
        equal: usize,
        /// All answers.
        of: usize,
    },
    /// Sampled: draws differ, the law they come from is vanilla's by the acceptance rule; the rule is tested
    /// where it lives, not in this run.
    Law,
    /// No answer.
    Unknown,
}

impl Equality {
    /// The verdict over two cells of one method.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Exact { equal, of }, Self::Exact { equal: e, of: o }) => Self::Exact {
                equal: equal + e,
                of: of + o,
            },
            _ if self == other => self,
            _ => Self::Unknown,
        }
    }
}

/// Groups records by cell and computes each cell's numbers.
pub fn cells(records: &[Record]) -> BTreeMap<Cell, CellStats> {
    let groups = groups(records);
    let none = Group::default();
    groups
        .par_iter()
        .map(|(cell, group)| {
            let vanilla = groups.get(&cell.vanilla()).unwrap_or(&none);
            ((*cell).clone(), group.stats(cell, vanilla))
        })
        .collect()
}

/// The answers of each cell, with the time that is each one's own.
pub(crate) fn groups(records: &[Record]) -> BTreeMap<&Cell, Group<'_>> {
    let mut groups: BTreeMap<&Cell, Group<'_>> = BTreeMap::new();
    for record in records {
        groups.entry(&record.cell).or_default().add(record);
    }
    for (cell, group) in &mut groups {
        group.divide_time(cell);
        if group.answers.is_empty() {
            // Every prompt was skipped.
            let why = group.skipped.values().next().copied();
            group.trouble = group.trouble.or(why);
        }
    }
    groups
}

/// What an answer is paired by: id of the prompt, sample, pass, turn.
pub(crate) type Pair<'a> = (&'a str, u32, u32, u32);

fn pair(prompt: &PromptKey) -> Pair<'_> {
    (&prompt.id, prompt.sample, prompt.pass, prompt.turn)
}

#[derive(Default)]
pub(crate) struct Group<'a> {
    pub(crate) answers: BTreeMap<Pair<'a>, Timed<'a>>,
    pub(crate) trouble: Option<&'a str>,
    /// Ids of the runs that the answers are from.
    pub(crate) runs: BTreeSet<&'a str>,
    /// Prompts and later turns that were skipped, by id and turn, and why.
    skipped: BTreeMap<(&'a str, u32), &'a str>,
    /// One a process that worked on the cell.
    startups: Vec<&'a Startup>,
}

/// An answer and the part of the machine's time that is its own.
#[derive(Clone, Copy)]
pub(crate) struct Timed<'a> {
    pub(crate) answer: &'a Answer,
    pub(crate) busy_ns: u64,
}

impl<'a> Group<'a> {
    fn add(&mut self, record: &'a Record) {
        match (&record.outcome, &record.prompt) {
            (Outcome::Ok(answer), Some(prompt)) => {
                let timed = Timed {
                    answer,
                    busy_ns: match answer.rounds.committed.is_empty() {
                        true => 0,
                        false => answer.decode_ns,
                    },
                };
                self.answers.insert(pair(prompt), timed);
                self.runs.insert(&record.run);
            }
            (Outcome::Skipped { why }, Some(prompt)) => {
                self.skipped.insert((&prompt.id, prompt.turn), why);
            }
            (Outcome::Started(startup), _) => self.startups.push(startup),
            (Outcome::Failed { why } | Outcome::Skipped { why }, _) => {
                self.trouble.get_or_insert(why);
            }
            (Outcome::Ok(_), None) => {}
        }
    }

    /// In closed loop above concurrency 1 sequences overlap, so the wall time of a pass, prefills taken out, is divided among its
    /// answers by what each took of the loop's phases; the parts of a pass add up to its wall time.
    fn divide_time(&mut self, cell: &Cell) {
        // In open loop the machine also waits for requests, so that its wall time is nobody's.
        if cell.concurrency == 1 || !cell.arrivals.is_closed() {
            return;
        }
        // A later turn is a batch of its own.
        let mut passes: BTreeMap<(u32, u32), Pass> = BTreeMap::new();
        for (key, timed) in &self.answers {
            let pass = passes.entry((key.2, key.3)).or_default();
            pass.n_answers += 1;
            pass.batch_ns = pass.batch_ns.max(timed.answer.batch_ns);
            pass.prefill_ns += timed.answer.prefill_ns;
            pass.decoding_ns += timed.answer.phases.decoding_ns();
        }
        for (key, timed) in &mut self.answers {
            timed.busy_ns = passes[&(key.2, key.3)].part(timed.answer);
        }
    }

    fn stats(&self, cell: &Cell, vanilla: &Group<'_>) -> CellStats {
        let answers = || self.answers.values().copied();
        let sums: Sums = answers().collect();
        let pairs: Vec<(Sums, Sums)> = self.paired(vanilla).into_values().collect();
        let taus: Vec<f64> = answers()
            .filter_map(|a| Sums::from_iter([a]).tau())
            .collect();
        CellStats {
            n_answers: self.answers.len(),
            tau: sums.tau(),
            tau_interval: self.tau_interval(),
            tau_macro: (!taus.is_empty()).then(|| taus.iter().sum::<f64>() / taus.len() as f64),
            tokens_per_sec: sums.tokens_per_sec(),
            throughput: match cell.arrivals.is_closed() {
                true => ratio(sums.committed, sums.busy_ns).map(|per_ns| per_ns * 1e9),
                false => None,
            },
            speedup: Clock::Busy.speedup(&pairs),
            speedup_interval: match cell.method.as_str() {
                // Its speedup is 1 by definition.
                "vanilla" => None,
                _ => Clock::Busy.speedup_interval(&pairs),
            },
            speedup_by_pass: self.speedup_by_pass(cell, vanilla),
            accepted_share: ratio(sums.accepted, sums.verified),
            repeated_share: ratio(sums.repeated, sums.grams),
            n_loops: sums.loops,
            tau_without_loops: sums.tau_without_loops(),
            n_skipped: self.skipped.keys().filter(|at| at.1 == 0).count(),
            n_skipped_turns: self.skipped.keys().filter(|at| at.1 > 0).count(),
            correct: self.correct(),
            equality: self.equality(cell, vanilla),
            latency: Latency::of(self, cell),
            warm_up_ns: self.startups.iter().map(|s| s.cover_ns + s.settle_ns).sum(),
            is_unsettled: self.startups.iter().any(|s| !s.settled),
            trouble: self.trouble.map(str::to_owned),
        }
    }

    pub(crate) fn correct(&self) -> Option<(usize, usize)> {
        let checked = || self.answers.values().filter_map(|a| a.answer.correct);
        let n_right = checked().filter(|is_right| *is_right).count();
        Some((n_right, checked().count())).filter(|(_, of)| *of > 0)
    }

    fn tau_interval(&self) -> Option<(f64, f64)> {
        let mut prompts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for ((id, ..), answer) in &self.answers {
            let sums = Sums::from_iter([*answer]);
            let cluster = prompts.entry(id).or_default();
            *cluster = (cluster.0 + sums.committed, cluster.1 + sums.rounds);
        }
        let clusters: Vec<(u64, u64)> = prompts.into_values().collect();
        ratio_interval(&clusters)
    }

    /// Empty for vanilla, and where there is one pass alone or one without a speedup.
    fn speedup_by_pass(&self, cell: &Cell, vanilla: &Group<'_>) -> Vec<f64> {
        let passes: BTreeSet<u32> = self.answers.keys().map(|key| key.2).collect();
        if cell.method == "vanilla" || passes.len() < 2 {
            return Vec::new();
        }
        let of_pass = |pass: &u32| {
            let pairs = self.paired_where(vanilla, |key| key.2 == *pass);
            Clock::Busy.speedup(&pairs.into_values().collect::<Vec<_>>())
        };
        let each: Option<Vec<f64>> = passes.iter().map(of_pass).collect();
        each.unwrap_or_default()
    }

    /// For each prompt that both have answered, this method's sums and vanilla's; none if vanilla has trouble.
    pub(crate) fn paired(&self, vanilla: &Group<'_>) -> BTreeMap<&'a str, (Sums, Sums)> {
        self.paired_where(vanilla, |_| true)
    }

    /// [`Self::paired`] over some answers alone.
    fn paired_where(
        &self,
        vanilla: &Group<'_>,
        is_meant: impl Fn(&Pair<'_>) -> bool,
    ) -> BTreeMap<&'a str, (Sums, Sums)> {
        let mut prompts: BTreeMap<&'a str, (Sums, Sums)> = BTreeMap::new();
        if vanilla.trouble.is_none() {
            for (key, answer) in self.answers.iter().filter(|(key, _)| is_meant(key)) {
                if let Some(other) = vanilla.answers.get(key) {
                    let (mine, theirs) = prompts.entry(key.0).or_default();
                    mine.add(*answer);
                    theirs.add(*other);
                }
            }
        }
        prompts
    }

    pub(crate) fn equality(&self, cell: &Cell, vanilla: &Group<'_>) -> Equality {
        if self.answers.is_empty() {
            return Equality::Unknown;
        }
        if cell.method == "vanilla" {
            return Equality::Reference;
        }
        if cell.sampling != SamplingKey::Greedy {
            return Equality::Law;
        }
        if vanilla.trouble.is_some() || vanilla.answers.is_empty() {
            return Equality::Unknown;
        }
        let same = |key, timed: &Timed<'_>| {
            let answer = timed.answer;
            vanilla.answers.get(key).map(|v| v.answer).is_some_and(|v| {
                (v.n_tokens, &v.tokens_sha256) == (answer.n_tokens, &answer.tokens_sha256)
            })
        };
        Equality::Exact {
            equal: self.answers.iter().filter(|(k, a)| same(k, a)).count(),
            of: self.answers.len(),
        }
    }
}

/// What the answers of one pass add up to.
#[derive(Default)]
struct Pass {
    n_answers: u64,
    batch_ns: u64,
    prefill_ns: u64,
    decoding_ns: u64,
}

impl Pass {
    /// One answer's part of the wall time.
    fn part(&self, answer: &Answer) -> u64 {
        let wall_ns = self.batch_ns.saturating_sub(self.prefill_ns);
        if self.decoding_ns == 0 {
            return wall_ns / self.n_answers.max(1);
        }
        let part = u128::from(wall_ns) * u128::from(answer.phases.decoding_ns())
            / u128::from(self.decoding_ns);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
