//! Sums over answers, and the speedup that is a ratio of two of them.

use crate::bootstrap::sums_intervals;
use crate::metrics::Timed;

/// What answers add up to: counts, and nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) answers: u64,
    /// Answer tokens, the first included.
    pub(crate) tokens: u64,
    pub(crate) rounds: u64,
    pub(crate) verified: u64,
    pub(crate) accepted: u64,
    pub(crate) committed: u64,
    pub(crate) prefill_ns: u64,
    /// Of answers with a round.
    pub(crate) decode_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) grams: u64,
    pub(crate) repeated: u64,
    /// Answers that are loops.
    pub(crate) loops: u64,
    /// Rounds of the other answers.
    pub(crate) loopless_rounds: u64,
    /// Tokens that these committed.
    pub(crate) loopless_committed: u64,
}

impl Sums {
    /// An answer that ended with prefill has no round, so its decode time belongs to no token and is left out.
    pub(crate) fn add(&mut self, timed: Timed<'_>) {
        let answer = timed.answer;
        let sum = |list: &[u32]| list.iter().map(|x| u64::from(*x)).sum::<u64>();
        self.answers += 1;
        self.tokens += u64::from(answer.n_tokens);
        let (rounds, committed) = (
            answer.rounds.committed.len() as u64,
            sum(&answer.rounds.committed),
        );
        self.rounds += rounds;
        self.committed += committed;
        if answer.grams.is_loop() {
            self.loops += 1;
        } else {
            self.loopless_rounds += rounds;
            self.loopless_committed += committed;
        }
        self.verified += sum(&answer.rounds.verified);
        self.accepted += sum(&answer.rounds.accepted);
        self.prefill_ns += answer.prefill_ns;
        if !answer.rounds.committed.is_empty() {
            self.decode_ns += answer.decode_ns;
        }
        self.busy_ns += timed.busy_ns;
        self.grams += u64::from(answer.grams.total);
        self.repeated += u64::from(answer.grams.repeated);
    }

    /// Adds what other answers add up to.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.answers += other.answers;
        self.tokens += other.tokens;
        self.rounds += other.rounds;
        self.verified += other.verified;
        self.accepted += other.accepted;
        self.committed += other.committed;
        self.prefill_ns += other.prefill_ns;
        self.decode_ns += other.decode_ns;
        self.busy_ns += other.busy_ns;
        self.grams += other.grams;
        self.repeated += other.repeated;
        self.loops += other.loops;
        self.loopless_rounds += other.loopless_rounds;
        self.loopless_committed += other.loopless_committed;
    }

    pub(crate) fn tau(&self) -> Option<f64> {
        ratio(self.committed, self.rounds)
    }

    /// Of the answers that are no loops.
    pub(crate) fn tau_without_loops(&self) -> Option<f64> {
        ratio(self.loopless_committed, self.loopless_rounds)
    }

    /// Committed tokens are the answer's tokens without the first.
    pub(crate) fn tokens_per_sec(&self) -> Option<f64> {
        ratio(self.committed, self.decode_ns).map(|per_ns| per_ns * 1e9)
    }
}

impl<'a> FromIterator<Timed<'a>> for Sums {
    fn from_iter<I: IntoIterator<Item = Timed<'a>>>(answers: I) -> Self {
        answers.into_iter().fold(Self::default(), |mut sums, a| {
            sums.add(a);
            sums
        })
    }
}

/// Which time of an answer a speedup compares, and over which tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The part of the machine's time that is the answer's own: decode time at concurrency 1, above it the part of the
    /// batch's wall time, so that the speedup is a ratio of throughputs. Over committed tokens.
    Busy,
    /// From the first token to the last, of one sequence. Over committed tokens.
    Decode,
    /// Prefill and decode. Over all answer tokens, so that for equal texts it is the ratio of latencies.
    EndToEnd,
}

impl Clock {
    /// Nanoseconds and tokens.
    pub(crate) fn read(self, sums: &Sums) -> [u64; 2] {
        match self {
            Self::Busy => [sums.busy_ns, sums.committed],
            Self::Decode => [sums.decode_ns, sums.committed],
            Self::EndToEnd => [sums.prefill_ns + sums.decode_ns, sums.tokens],
        }
    }

    /// Vanilla's time a token over the method's, pooled over prompts `(method's, vanilla's)`.
    pub(crate) fn speedup(self, prompts: &[(Sums, Sums)]) -> Option<f64> {
        let each = self.clusters(prompts);
        let pooled = each.iter().fold([0; 4], |mut sum, cluster| {
            sum.iter_mut().zip(cluster).for_each(|(s, x)| *s += x);
            sum
        });
        speedup(&pooled)
    }

    /// 95 % interval of [`Self::speedup`], the prompts resampled.
    pub(crate) fn speedup_interval(self, prompts: &[(Sums, Sums)]) -> Option<(f64, f64)> {
        let [found] = sums_intervals(&self.clusters(prompts), [speedup]);
        found
    }

    /// Time and tokens of the method, time and tokens of vanilla, for each prompt.
    fn clusters(self, prompts: &[(Sums, Sums)]) -> Vec<[u64; 4]> {
        prompts.iter().map(|prompt| self.cluster(prompt)).collect()
    }

    fn cluster(self, (mine, theirs): &(Sums, Sums)) -> [u64; 4] {
        let ([a, b], [c, d]) = (self.read(mine), self.read(theirs));
        [a, b, c, d]
    }
}

/// [`Clock::speedup_interval`] of [`Clock::Decode`], [`Clock::EndToEnd`] and [`Clock::Busy`], with one draw for all.
pub(crate) fn speedup_intervals(prompts: &[(Sums, Sums)]) -> [Option<(f64, f64)>; 3] {
    let clusters: Vec<[u64; 12]> = prompts
        .iter()
        .map(|prompt| {
            let mut cluster = [0; 12];
            let clocks = [Clock::Decode, Clock::EndToEnd, Clock::Busy];
            for (slots, clock) in cluster.chunks_exact_mut(4).zip(clocks) {
                slots.copy_from_slice(&clock.cluster(prompt));
            }
            cluster
        })
        .collect();
    let of = |at: usize| {
        move |sums: &[u64; 12]| speedup(&[sums[at], sums[at + 1], sums[at + 2], sums[at + 3]])
    };
    sums_intervals(&clusters, [of(0), of(4), of(8)])
}

/// The second pair's time a token over the first's.
pub(crate) fn speedup(sums: &[u64; 4]) -> Option<f64> {
    let per_token = |ns, tokens| ratio(ns, tokens).filter(|ns| *ns > 0.0);
    Some(per_token(sums[2], sums[3])? / per_token(sums[0], sums[1])?)
}

/// `None` for a denominator of 0.
pub(crate) fn ratio(num: u64, den: u64) -> Option<f64> {
    (den > 0).then(|| num as f64 / den as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::answer;

    fn sums(tokens: u64, prefill_ns: u64, decode_ns: u64, busy_ns: u64) -> Sums {
        Sums {
            tokens,
            committed: tokens - 1,
            prefill_ns,
            decode_ns,
            busy_ns,
            ..Sums::default()
        }
    }

    #[test]
    fn each_clock_reads_its_own_time() {
        // Of 11 tokens: 10 decoded in 100 against 400 ns, each after 50 ns of prefill.
        let pairs = [(sums(11, 50, 100, 200), sums(11, 50, 400, 500))];
        assert_eq!(Clock::Decode.speedup(&pairs), Some(4.0));
        // (450 / 11) / (150 / 11), rounded twice.
        let end_to_end = Clock::EndToEnd.speedup(&pairs).unwrap();
        assert!((end_to_end - 3.0).abs() < 1e-12);
        assert_eq!(Clock::Busy.speedup(&pairs), Some(2.5));
        assert_eq!(Clock::Busy.speedup_interval(&pairs), None);
        assert_eq!(
            Clock::Busy.speedup_interval(&[pairs[0]; 2]),
            Some((2.5, 2.5))
        );
        assert_eq!(Clock::Busy.speedup(&[]), None);
        let pairs = [
            pairs[0],
            (sums(5, 50, 90, 100), sums(9, 50, 700, 800)),
            pairs[0],
        ];
        let clocks = [Clock::Decode, Clock::EndToEnd, Clock::Busy];
        let apart = clocks.map(|clock| clock.speedup_interval(&pairs));
        assert!(apart[0] != apart[1]);
        assert_eq!(speedup_intervals(&pairs), apart);
    }

    #[test]
    fn merged_sums_are_the_sums_of_all_answers() {
        let answers = [answer(&[(2, 3), (0, 1)]), answer(&[])];
        let timed = answers
            .each_ref()
            .map(|answer| Timed { answer, busy_ns: 7 });
        let mut merged: Sums = [timed[0]].into_iter().collect();
        merged.merge(&[timed[1]].into_iter().collect());
        let all: Sums = timed.into_iter().collect();
        assert_eq!(format!("{merged:?}"), format!("{all:?}"));
        assert_eq!(
            (all.answers, all.tokens, all.rounds, all.committed),
            (2, 6, 2, 4)
        );
        assert_eq!((all.accepted, all.verified, all.busy_ns), (2, 6, 14));
        // The second answer has no round: its prefill counts, its decode time does not.
        assert_eq!((all.prefill_ns, all.decode_ns), (100, 4000));
    }
}
