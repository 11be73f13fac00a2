use std::collections::{BTreeMap, BTreeSet};

use crate::SamplingKey;
use crate::bootstrap::{interval, ratio_interval};
use crate::latency::Latency;
use crate::record::{Answer, Cell, Outcome, PromptKey, Record};

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
    /// passes. At concurrency 1 the same as `tokens_per_sec`.
    pub throughput: Option<f64>,
    /// Vanilla's time a token / this method's, each pooled over the answers that both have: decode time at
    /// concurrency 1, the batch's wall time above, so that it is the ratio of throughputs there.
    pub speedup: Option<f64>,
    /// 95 % interval of `speedup` over prompts, resampled as for `tau_interval`; what the machine does between two
    /// runs is not in it.
    pub speedup_interval: Option<(f64, f64)>,
    /// Drafts accepted / drafts verified.
    pub accepted_share: Option<f64>,
    /// 8-grams that occurred before in the same answer / all 8-grams.
    pub repeated_share: Option<f64>,
    /// Answers whose final answer is the known one, and answers that could be checked; `None` if none could.
    pub correct: Option<(usize, usize)>,
    /// Prompts that were not asked, since they do not fit the target.
    pub n_skipped: usize,
    /// Later turns of prompts that were not asked, since the conversation had become too long.
    pub n_skipped_turns: usize,
    /// Whether the text is vanilla's.
    pub equality: Equality,
    /// What a client waits for, and throughput over whole batches.
    pub latency: Latency,
    /// Why the cell has no numbers a reader should see: the first failure, or the reason it was skipped.
    pub trouble: Option<String>,
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
        .iter()
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
        group.divide_time(cell.concurrency);
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
            (Outcome::Failed { why } | Outcome::Skipped { why }, _) => {
                self.trouble.get_or_insert(why);
            }
            (Outcome::Ok(_), None) => {}
        }
    }

    /// Above concurrency 1 sequences overlap, so the wall time of a pass, prefills taken out, is divided among its
    /// answers by what each took of the loop's phases; the parts of a pass add up to its wall time.
    fn divide_time(&mut self, concurrency: u32) {
        if concurrency == 1 {
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
        let taus: Vec<f64> = answers()
            .filter_map(|a| Sums::from_iter([a]).tau())
            .collect();
        CellStats {
            n_answers: self.answers.len(),
            tau: sums.tau(),
            tau_interval: self.tau_interval(),
            tau_macro: (!taus.is_empty()).then(|| taus.iter().sum::<f64>() / taus.len() as f64),
            tokens_per_sec: sums.tokens_per_sec(),
            throughput: ratio(sums.committed, sums.busy_ns).map(|per_ns| per_ns * 1e9),
            speedup: self.speedup(vanilla),
            speedup_interval: self.speedup_interval(cell, vanilla),
            accepted_share: ratio(sums.accepted, sums.verified),
            repeated_share: ratio(sums.repeated, sums.grams),
            n_skipped: self.skipped.keys().filter(|at| at.1 == 0).count(),
            n_skipped_turns: self.skipped.keys().filter(|at| at.1 > 0).count(),
            correct: self.correct(),
            equality: self.equality(cell, vanilla),
            latency: Latency::of(self, cell.concurrency),
            trouble: self.trouble.map(str::to_owned),
        }
    }

    fn correct(&self) -> Option<(usize, usize)> {
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

    fn speedup(&self, vanilla: &Group<'_>) -> Option<f64> {
        speedup(&self.paired(vanilla))
    }

    /// `None` for vanilla, whose speedup is 1 by definition.
    fn speedup_interval(&self, cell: &Cell, vanilla: &Group<'_>) -> Option<(f64, f64)> {
        match cell.method.as_str() {
            "vanilla" => None,
            _ => interval(&self.paired(vanilla), speedup),
        }
    }

    /// For each prompt that both have answered, this method's sums and vanilla's; none if vanilla has trouble.
    fn paired(&self, vanilla: &Group<'_>) -> Vec<(Sums, Sums)> {
        let mut prompts: BTreeMap<&str, (Sums, Sums)> = BTreeMap::new();
        if vanilla.trouble.is_none() {
            for (key, answer) in &self.answers {
                if let Some(other) = vanilla.answers.get(key) {
                    let (mine, theirs) = prompts.entry(key.0).or_default();
                    mine.add(*answer);
                    theirs.add(*other);
                }
            }
        }
        prompts.into_values().collect()
    }

    fn equality(&self, cell: &Cell, vanilla: &Group<'_>) -> Equality {
        if self.answers.is_empty() {
            return Equality::Unknown;
        }
        if cell.method == "vanilla" {
            return Equality::Reference;
        }
        if cell.sampling != SamplingKey::Greedy {
            return Equality::Law;
        }
        if vanilla.trouble.is_some() {
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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    rounds: u64,
    verified: u64,
    accepted: u64,
    committed: u64,
    decode_ns: u64,
    busy_ns: u64,
    grams: u64,
    repeated: u64,
}

impl Sums {
    /// An answer that ended with prefill has no round, so its decode time belongs to no token and is left out.
    fn add(&mut self, timed: Timed<'_>) {
        let answer = timed.answer;
        let sum = |list: &[u32]| list.iter().map(|x| u64::from(*x)).sum::<u64>();
        self.rounds += answer.rounds.committed.len() as u64;
        self.verified += sum(&answer.rounds.verified);
        self.accepted += sum(&answer.rounds.accepted);
        self.committed += sum(&answer.rounds.committed);
        if !answer.rounds.committed.is_empty() {
            self.decode_ns += answer.decode_ns;
        }
        self.busy_ns += timed.busy_ns;
        self.grams += u64::from(answer.grams.total);
        self.repeated += u64::from(answer.grams.repeated);
    }

    fn tau(&self) -> Option<f64> {
        ratio(self.committed, self.rounds)
    }

    /// Committed tokens are the answer's tokens without the first.
    fn tokens_per_sec(&self) -> Option<f64> {
        ratio(self.committed, self.decode_ns).map(|per_ns| per_ns * 1e9)
    }
}

/// Vanilla's time a token over the method's, pooled over prompts `(method's, vanilla's)`.
fn speedup(prompts: &[(Sums, Sums)]) -> Option<f64> {
    let pool = |pick: fn(&(Sums, Sums)) -> Sums| {
        let (ns, tokens) = prompts
            .iter()
            .map(pick)
            .fold((0, 0), |sum, s| (sum.0 + s.busy_ns, sum.1 + s.committed));
        ratio(ns, tokens).filter(|ns| *ns > 0.0)
    };
    Some(pool(|p| p.1)? / pool(|p| p.0)?)
}

impl<'a> FromIterator<Timed<'a>> for Sums {
    fn from_iter<I: IntoIterator<Item = Timed<'a>>>(answers: I) -> Self {
        answers.into_iter().fold(Self::default(), |mut sums, a| {
            sums.add(a);
            sums
        })
    }
}

fn ratio(num: u64, den: u64) -> Option<f64> {
    (den > 0).then(|| num as f64 / den as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{answer, cell, record};

    fn timed(rounds: &[(u32, u32)], ns_per_token: u64) -> Answer {
        let mut a = answer(rounds);
        a.decode_ns = ns_per_token * u64::from(a.n_tokens - 1);
        a
    }

    fn stats(records: &[Record], method: &str) -> CellStats {
        cells(records)[&cell(method)].clone()
    }

    #[test]
    fn tau_pools_rounds_and_its_macro_twin_averages_answers() {
        let got = stats(
            &[
                record("dflash", "a", answer(&[(3, 4), (3, 4), (3, 4)])),
                record("dflash", "b", answer(&[(1, 2)])),
            ],
            "dflash",
        );
        assert_eq!(got.tau, Some(14.0 / 4.0));
        assert_eq!(got.tau_macro, Some(3.0));
        assert_eq!(got.accepted_share, Some(10.0 / 12.0));
        assert_eq!(got.repeated_share, Some(0.1));
        let (low, high) = got.tau_interval.unwrap();
        assert_eq!((low, high), (2.0, 4.0));
    }

    #[test]
    fn an_answer_without_rounds_has_no_tau_and_adds_no_time() {
        let ended_at_once = timed(&[], 0);
        let got = stats(&[record("dflash", "a", ended_at_once.clone())], "dflash");
        assert_eq!(
            (got.tau, got.tau_macro, got.tokens_per_sec),
            (None, None, None)
        );
        let slow = Answer {
            decode_ns: 1_000_000,
            ..ended_at_once
        };
        let got = stats(
            &[
                record("dflash", "a", slow),
                record("dflash", "b", timed(&[(1, 2)], 500)),
            ],
            "dflash",
        );
        assert_eq!(got.tokens_per_sec, Some(2e6));
        assert_eq!(got.n_answers, 2);
    }

    #[test]
    fn a_speedup_uses_only_prompts_that_both_arms_answered() {
        let records = [
            record("vanilla", "a", timed(&[(0, 1); 6], 900)),
            record("vanilla", "only vanilla", timed(&[(0, 1); 6], 90_000)),
            record("dflash", "a", timed(&[(2, 3), (2, 3)], 300)),
            record("dflash", "only dflash", timed(&[(2, 3), (2, 3)], 1)),
        ];
        assert_eq!(stats(&records, "dflash").speedup, Some(3.0));
        assert_eq!(stats(&records, "vanilla").speedup, Some(1.0));
        assert_eq!(stats(&records[2..], "dflash").speedup, None);
    }

    #[test]
    fn above_concurrency_1_a_speedup_is_a_ratio_of_throughputs() {
        // Two sequences at once: vanilla's batch takes 1200 ns beside 100 of prefill, dflash's 400. The first answer
        // took three quarters of each. A sequence's own decode time would say something else.
        let of = |method: &str, prompt: &str, batch_ns: u64, spent_ns: u64| {
            let mut a = answer(&[(2, 3), (2, 3)]);
            a.prefill_ns = 50;
            a.batch_ns = batch_ns + 100;
            a.phases.verify_ns = spent_ns;
            a.decode_ns = batch_ns;
            let mut rec = record(method, prompt, a);
            rec.cell.concurrency = 2;
            rec
        };
        let records = [
            of("vanilla", "a", 1200, 600),
            of("vanilla", "b", 1200, 200),
            of("dflash", "a", 400, 300),
            of("dflash", "b", 400, 100),
        ];
        let all = cells(&records);
        let of = |method: &str| {
            let cell = Cell {
                concurrency: 2,
                ..cell(method)
            };
            all[&cell].clone()
        };
        assert_eq!(of("dflash").throughput, Some(12.0 / 400.0 * 1e9));
        assert_eq!(of("vanilla").throughput, Some(12.0 / 1200.0 * 1e9));
        assert_eq!(of("dflash").tokens_per_sec, Some(12.0 / 800.0 * 1e9));
        assert_eq!(of("dflash").speedup, Some(3.0));
        assert_eq!(of("dflash").speedup_interval, Some((3.0, 3.0)));
    }

    #[test]
    fn the_speedup_interval_spans_the_prompts_and_vanilla_has_none() {
        let mut records = Vec::new();
        for (prompt, ns) in [("a", 300), ("b", 450), ("c", 300), ("d", 450)] {
            records.push(record("vanilla", prompt, timed(&[(0, 1); 6], 900)));
            records.push(record("dflash", prompt, timed(&[(2, 3), (2, 3)], ns)));
        }
        let got = stats(&records, "dflash");
        assert_eq!(got.speedup, Some(2.4));
        // All four draws slow, or all four fast, are likelier than one in forty.
        assert_eq!(got.speedup_interval, Some((2.0, 3.0)));
        assert_eq!(stats(&records, "vanilla").speedup_interval, None);
    }

    #[test]
    fn greedy_equality_counts_answers_and_needs_vanilla_to_count_one() {
        let mut other = answer(&[(2, 3)]);
        other.tokens_sha256 = "something else".into();
        let records = [
            record("vanilla", "a", answer(&[(0, 1); 3])),
            record("vanilla", "b", answer(&[(0, 1); 3])),
            record("dflash", "a", answer(&[(2, 3)])),
            record("dflash", "b", other),
            record("dflash", "c", answer(&[(2, 3)])),
        ];
        let equality = stats(&records, "dflash").equality;
        assert_eq!(equality, Equality::Exact { equal: 1, of: 3 });
        assert_eq!(stats(&records, "vanilla").equality, Equality::Reference);
    }

    #[test]
    fn nothing_is_said_of_equality_where_vanilla_failed() {
        let mut failed = record("vanilla", "a", answer(&[]));
        failed.outcome = Outcome::Failed { why: "nan".into() };
        let records = [failed, record("dflash", "a", answer(&[(2, 3)]))];
        assert_eq!(stats(&records, "dflash").equality, Equality::Unknown);
    }

    #[test]
    fn sampled_text_is_equal_in_law_only() {
        let mut rec = record("dflash", "a", answer(&[(2, 3)]));
        rec.cell.sampling = SamplingKey::at(1000);
        let got = cells(std::slice::from_ref(&rec));
        assert_eq!(got[&rec.cell].equality, Equality::Law);
    }

    #[test]
    fn a_turn_is_an_answer_of_its_own_and_a_batch_of_its_own() {
        let turn = |turn: u32, batch_ns: u64| {
            let mut a = answer(&[(2, 3), (2, 3)]);
            a.prefill_ns = 0;
            a.batch_ns = batch_ns;
            let mut rec = record("dflash", "a", a);
            rec.cell.concurrency = 2;
            rec.prompt.as_mut().unwrap().turn = turn;
            rec
        };
        let records = [turn(0, 400), turn(1, 800)];
        let got = cells(&records)[&records[0].cell].clone();
        assert_eq!(got.n_answers, 2);
        assert_eq!(got.throughput, Some(12.0 / 1200.0 * 1e9));
    }

    #[test]
    fn answers_that_could_be_checked_are_counted_and_those_that_are_right() {
        let checked = |prompt: &str, correct: Option<bool>| {
            let a = Answer {
                correct,
                ..answer(&[(2, 3)])
            };
            record("dflash", prompt, a)
        };
        let records = [
            checked("a", Some(true)),
            checked("b", Some(false)),
            checked("c", None),
        ];
        assert_eq!(stats(&records, "dflash").correct, Some((1, 2)));
        assert_eq!(stats(&records[2..], "dflash").correct, None);
    }

    #[test]
    fn a_prompt_that_was_left_out_is_counted_and_is_trouble_only_if_all_were() {
        let mut left_out = record("dflash", "b", answer(&[]));
        left_out.outcome = Outcome::Skipped {
            why: "too long".into(),
        };
        let got = stats(
            &[record("dflash", "a", answer(&[(2, 3)])), left_out.clone()],
            "dflash",
        );
        assert_eq!((got.n_answers, got.n_skipped, got.trouble), (1, 1, None));
        let mut turn = left_out.clone();
        turn.prompt.as_mut().unwrap().turn = 1;
        let both_passes = [0, 1].map(|pass| {
            let mut record = turn.clone();
            record.prompt.as_mut().unwrap().pass = pass;
            record
        });
        let got = stats(&both_passes, "dflash");
        assert_eq!((got.n_skipped, got.n_skipped_turns), (0, 1));
        let got = stats(&[left_out], "dflash");
        assert_eq!(got.trouble.as_deref(), Some("too long"));
    }

    #[test]
    fn a_failure_and_a_skip_say_why() {
        let mut failed = record("dflash", "a", answer(&[]));
        failed.outcome = Outcome::Failed { why: "nan".into() };
        let got = stats(
            &[failed, record("dflash", "b", answer(&[(2, 3)]))],
            "dflash",
        );
        assert_eq!(got.trouble.as_deref(), Some("nan"));
        let mut skipped = record("eagle", "a", answer(&[]));
        skipped.prompt = None;
        skipped.outcome = Outcome::Skipped {
            why: "no drafter".into(),
        };
        let got = stats(&[skipped], "eagle");
        assert_eq!(got.trouble.as_deref(), Some("no drafter"));
        assert_eq!((got.tau, got.equality), (None, Equality::Unknown));
    }
}
