//! Answers of one arm pooled over suites, with the prompt of a suite as the unit that intervals resample.

use std::collections::{BTreeMap, BTreeSet};

use crate::bootstrap::interval;
use crate::metrics::{Group, groups};
use crate::record::{Cell, Phases, Record, Rounds, Thinking};
use crate::survival::{Counted, SurvivalTally};
use crate::{ArrivalKey, RatedRound, SamplingKey, Share};

/// What names an arm in one setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArmKey {
    pub(crate) sampling: SamplingKey,
    pub(crate) concurrency: u32,
    pub(crate) arrivals: ArrivalKey,
    pub(crate) method: String,
}

impl ArmKey {
    /// Greedy, one sequence.
    pub(crate) fn greedy(method: &str) -> Self {
        Self {
            sampling: SamplingKey::Greedy,
            concurrency: 1,
            arrivals: ArrivalKey::Closed,
            method: method.to_owned(),
        }
    }
}

/// A suite and a prompt of it.
type PromptAt = (String, String);

/// One arm's answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    /// Ids of the runs that the answers are from.
    runs: BTreeSet<String>,
    prompts: BTreeMap<PromptAt, Tally>,
    /// The same without answers that are loops.
    loopless: BTreeMap<PromptAt, Tally>,
    slots: SurvivalTally<PromptAt>,
    rated: Vec<Rated>,
}

/// One round of a drafter that rates its drafts.
#[derive(Clone, Debug)]
struct Rated {
    confidence: Vec<f32>,
    verified: usize,
    accepted: usize,
}

/// Sums over answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) grams: u64,
    pub(crate) repeated: u64,
    pub(crate) rounds: u64,
    pub(crate) drafted: u64,
    pub(crate) verified: u64,
    pub(crate) accepted: u64,
    pub(crate) committed: u64,
    /// Decode time at concurrency 1, the part of the batch's wall time above.
    pub(crate) busy_ns: u64,
    pub(crate) phases: Phases,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.grams += other.grams;
        self.repeated += other.repeated;
        self.rounds += other.rounds;
        self.drafted += other.drafted;
        self.verified += other.verified;
        self.accepted += other.accepted;
        self.committed += other.committed;
        self.busy_ns += other.busy_ns;
        let (mine, theirs) = (&mut self.phases, &other.phases);
        mine.prefill_ns += theirs.prefill_ns;
        mine.start_ns += theirs.start_ns;
        mine.draft_ns += theirs.draft_ns;
        mine.head_ns += theirs.head_ns;
        mine.schedule_ns += theirs.schedule_ns;
        mine.verify_ns += theirs.verify_ns;
        mine.judge_ns += theirs.judge_ns;
        mine.commit_ns += theirs.commit_ns;
    }

    /// Tokens committed a round.
    pub(crate) fn tau(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.committed as f64 / self.rounds as f64)
    }

    /// Tokens committed a second by all sequences.
    pub(crate) fn throughput(&self) -> Option<f64> {
        (self.busy_ns > 0).then(|| self.committed as f64 * 1e9 / self.busy_ns as f64)
    }
}

fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Tally {
    tallies.fold(Tally::default(), |mut sum, tally| {
        sum.add(tally);
        sum
    })
}

/// Pools the answers of one target, thinking off and in closed loop, by arm; an arm that failed or was skipped anywhere
/// in a setting has no pool there.
pub(crate) fn pools(records: &[Record], target: &str) -> BTreeMap<ArmKey, Pool> {
    let mut pools = pools_of(&groups(records), target, Thinking::Off);
    pools.retain(|key, _| key.arrivals.is_closed());
    pools
}

/// [`pools`] of either thinking and of any arrivals, of answers that are grouped already.
pub(crate) fn pools_of(
    groups: &BTreeMap<&Cell, Group<'_>>,
    target: &str,
    thinking: Thinking,
) -> BTreeMap<ArmKey, Pool> {
    let mut pools: BTreeMap<ArmKey, Pool> = BTreeMap::new();
    let mut troubled = Vec::new();
    for (cell, group) in groups {
        if cell.target != target || cell.thinking != thinking {
            continue;
        }
        let key = ArmKey {
            sampling: cell.sampling,
            concurrency: cell.concurrency,
            arrivals: cell.arrivals,
            method: cell.method.clone(),
        };
        if group.trouble.is_some() {
            troubled.push(key);
            continue;
        }
        let pool = pools.entry(key).or_default();
        pool.runs
            .extend(group.runs.iter().map(|run| (*run).to_owned()));
        for ((prompt, ..), timed) in &group.answers {
            let rounds = &timed.answer.rounds;
            let total = |list: &[u32]| list.iter().map(|x| u64::from(*x)).sum::<u64>();
            let grams = timed.answer.grams;
            let tally = Tally {
                answers: 1,
                grams: grams.total.into(),
                repeated: grams.repeated.into(),
                rounds: rounds.committed.len() as u64,
                drafted: total(&rounds.drafted),
                verified: total(&rounds.verified),
                accepted: total(&rounds.accepted),
                committed: total(&rounds.committed),
                busy_ns: timed.busy_ns,
                phases: timed.answer.phases,
            };
            let at = (cell.suite.clone(), (*prompt).to_owned());
            pool.prompts.entry(at.clone()).or_default().add(&tally);
            if !grams.is_loop() {
                pool.loopless.entry(at.clone()).or_default().add(&tally);
            }
            pool.slots.add(at, rounds);
            pool.add_rated(rounds);
        }
    }
    pools.retain(|key, _| !troubled.contains(key));
    pools
}

impl Pool {
    fn add_rated(&mut self, rounds: &Rounds) {
        let Some(confidences) = &rounds.confidence_ppm else {
            return;
        };
        for (round, ppm) in confidences.iter().enumerate() {
            self.rated.push(Rated {
                confidence: ppm.iter().map(|c| *c as f32 / 1e6).collect(),
                verified: rounds.verified[round] as usize,
                accepted: rounds.accepted[round] as usize,
            });
        }
    }

    /// Rounds whose drafts the drafter rated.
    pub(crate) fn rated(&self) -> Vec<RatedRound<'_>> {
        self.rated
            .iter()
            .map(|round| RatedRound {
                confidence: &round.confidence,
                verified: round.verified,
                accepted: round.accepted,
            })
            .collect()
    }

    /// Everything together.
    pub(crate) fn total(&self) -> Tally {
        sum(self.prompts.values())
    }

    /// The sums of each prompt, by suite and prompt.
    pub(crate) fn prompts(&self) -> &BTreeMap<(String, String), Tally> {
        &self.prompts
    }

    /// Whether the answers of both are from the same runs; times of different processes are no pair.
    pub(crate) fn is_of_runs_of(&self, other: &Self) -> bool {
        self.runs == other.runs
    }

    /// Suites with answers.
    pub(crate) fn suites(&self) -> Vec<&str> {
        let mut suites: Vec<&str> = self.prompts.keys().map(|at| at.0.as_str()).collect();
        suites.dedup();
        suites
    }

    /// The sums of one suite alone, for ratios of them; slots and confidences stay behind.
    pub(crate) fn on(&self, suite: &str) -> Self {
        let of = |all: &BTreeMap<PromptAt, Tally>| {
            let its = all.iter().filter(|(at, _)| at.0 == suite);
            its.map(|(at, tally)| (at.clone(), *tally)).collect()
        };
        Self {
            runs: self.runs.clone(),
            prompts: of(&self.prompts),
            loopless: of(&self.loopless),
            ..Self::default()
        }
    }

    /// The sums of answers of which at most 30 % of the 8-grams are repeated, as [`Self::on`] has them.
    pub(crate) fn without_loops(&self) -> Self {
        Self {
            runs: self.runs.clone(),
            prompts: self.loopless.clone(),
            ..Self::default()
        }
    }

    /// Acceptance length over one suite.
    pub(crate) fn tau_on(&self, suite: &str) -> Option<f64> {
        let its = self.prompts.iter().filter(|(at, _)| at.0 == suite);
        sum(its.map(|(_, tally)| tally)).tau()
    }

    /// Acceptance length over all suites.
    pub(crate) fn tau(&self) -> Option<Share> {
        let clusters: Vec<&Tally> = self.prompts.values().collect();
        let tau = |drawn: &[&Tally]| sum(drawn.iter().copied()).tau();
        Some(Share {
            value: tau(&clusters)?,
            interval: interval(&clusters, tau),
        })
    }

    /// Acceptance length over that of another arm, minus 1, on the prompts that both answered.
    pub(crate) fn tau_gain(&self, other: &Self) -> Option<Share> {
        self.gain(other, Tally::tau)
    }

    /// Throughput over that of another arm, minus 1, on the prompts that both answered; nothing if the two were not
    /// measured in the same runs, since times of different processes are no pair.
    pub(crate) fn throughput_gain(&self, other: &Self) -> Option<Share> {
        match self.is_of_runs_of(other) {
            true => self.gain(other, Tally::throughput),
            false => None,
        }
    }

    /// [`Self::throughput_gain`] plus 1: the speedup over vanilla.
    pub(crate) fn speedup(&self, vanilla: &Self) -> Option<Share> {
        let gain = self.throughput_gain(vanilla)?;
        let ends = gain.interval;
        Some(Share {
            value: gain.value + 1.0,
            interval: ends.map(|(low, high)| (low + 1.0, high + 1.0)),
        })
    }

    fn gain(&self, other: &Self, of: fn(&Tally) -> Option<f64>) -> Option<Share> {
        let pairs: Vec<(&Tally, &Tally)> = self
            .prompts
            .iter()
            .filter_map(|(at, tally)| Some((tally, other.prompts.get(at)?)))
            .collect();
        let gain = |drawn: &[(&Tally, &Tally)]| {
            let mine = of(&sum(drawn.iter().map(|p| p.0)))?;
            let theirs = of(&sum(drawn.iter().map(|p| p.1)))?;
            (theirs > 0.0).then(|| mine / theirs - 1.0)
        };
        Some(Share {
            value: gain(&pairs)?,
            interval: interval(&pairs, gain),
        })
    }

    /// [`Self::conditional_acceptance`] up to the last position at which a draft was accepted: a tree verifies more
    /// drafts than it is deep, and records do not hold its depth.
    pub(crate) fn reached_positions(&self) -> Vec<Share> {
        let mut shares = self.conditional_acceptance();
        let last = shares.iter().rposition(|s| s.value > 0.0);
        shares.truncate(last.map_or(0, |last| last + 1));
        shares
    }

    /// For each slot, the share of its judged drafts that were accepted; a slot is judged if all before it were
    /// accepted.
    pub(crate) fn conditional_acceptance(&self) -> Vec<Share> {
        let share = |counted: &Counted| {
            Some(Share {
                value: counted.share()?,
                interval: counted.interval,
            })
        };
        self.slots.conditional().iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use crate::record::tests::{answer, record};

    fn on(suite: &str, mut record: Record) -> Record {
        record.cell.suite = suite.into();
        record
    }

    #[test]
    fn prompts_of_different_suites_are_different_clusters() {
        let records = [
            on("s", record("dflash", "1", answer(&[(3, 4), (1, 2)]))),
            on("t", record("dflash", "1", answer(&[(0, 1)]))),
            on("s", record("dcoco", "1", answer(&[(2, 3), (2, 3)]))),
            on("t", record("dcoco", "1", answer(&[(2, 3)]))),
            on("t", record("dcoco", "2", answer(&[(3, 4)]))),
        ];
        let pools = pools(&records, "toy");
        let of = |method| &pools[&ArmKey::greedy(method)];
        assert_eq!(of("dflash").tau().unwrap().value, 7.0 / 3.0);
        assert_eq!(of("dflash").suites(), ["s", "t"]);
        assert_eq!(of("dflash").tau_on("s"), Some(3.0));
        let on_s = of("dflash").on("s");
        assert_eq!(on_s.tau().unwrap().value, 3.0);
        assert_eq!(on_s.without_loops().total().answers, 1);
        // The prompt that dflash did not answer is left out: 9 / 3 against 7 / 3.
        let gain = of("dcoco").tau_gain(of("dflash")).unwrap();
        assert!((gain.value - (9.0 / 7.0 - 1.0)).abs() < 1e-12, "{gain:?}");
        let (low, high) = gain.interval.unwrap();
        // Only the first prompts drawn: 3 / 3. Only the second ones: 3 / 1.
        assert!(
            (low - 0.0).abs() < 1e-12 && (high - 2.0).abs() < 1e-12,
            "{low} {high}"
        );
        assert!(of("dflash").tau_gain(of("dflash")).unwrap().value.abs() < 1e-12);
        assert!(of("dcoco").throughput_gain(of("dflash")).is_some());
        let mut apart = records;
        apart[0].run = "another process".into();
        let pools = super::pools(&apart, "toy");
        let of = |method| &pools[&ArmKey::greedy(method)];
        assert!(of("dcoco").throughput_gain(of("dflash")).is_none());
        assert!(of("dcoco").tau_gain(of("dflash")).is_some());
    }

    #[test]
    fn a_slot_is_judged_where_all_before_it_passed() {
        // Three drafts a round.
        let records = [record(
            "dflash",
            "a",
            answer(&[(3, 4), (1, 2), (0, 1), (2, 3)]),
        )];
        let pools = pools(&records, "toy");
        let got = pools[&ArmKey::greedy("dflash")].conditional_acceptance();
        let got: Vec<f64> = got.iter().map(|s| s.value).collect();
        assert_eq!(got, [3.0 / 4.0, 2.0 / 3.0, 1.0 / 2.0]);
    }

    #[test]
    fn an_arm_in_trouble_has_no_pool_there() {
        let mut skipped = on("t", record("dflash", "1", answer(&[])));
        skipped.outcome = Outcome::Skipped { why: "x".into() };
        let good = on("s", record("dflash", "1", answer(&[(0, 1)])));
        let other_target = pools(std::slice::from_ref(&good), "tiny");
        assert!(other_target.is_empty());
        assert!(pools(&[good, skipped], "toy").is_empty());
    }
}
