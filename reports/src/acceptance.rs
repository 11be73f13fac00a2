//! Acceptance length by every convention in use. One trace has as many lengths as there are tools, so a length is told
//! with its convention's name, and a comparison across tools with the spread over them.

use crate::record::Answer;

/// A definition of acceptance length. All are tokens per verify pass, at least 1 wherever a round drafts nothing or
/// more; they differ in the token from prefill, in the cut at the end of an answer, and in what is averaged.
///
/// Source: the tools' code as of 2026; an answer is a request, and each turn of a conversation is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Convention {
    /// A: `1 + sum(accepted) / rounds that verified a draft`, pooled. Drafts accepted behind a stop token count. A method
    /// that verifies none, as vanilla, has none.
    RawPooled,
    /// B: `sum(committed) / rounds`, pooled: tau.
    Tau,
    /// C: answer tokens over rounds, pooled; the token from prefill counts though it took no round.
    CompletionPooled,
    /// D: mean over answers of C.
    CompletionMean,
    /// E: mean over answers of A.
    RawMean,
    /// F: mean over answers of `n_tokens / (rounds + 1)`: prefill is a chunk of one token.
    ChunkMean,
}

impl Convention {
    /// A to F.
    pub const ALL: [Self; 6] = [
        Self::RawPooled,
        Self::Tau,
        Self::CompletionPooled,
        Self::CompletionMean,
        Self::RawMean,
        Self::ChunkMean,
    ];

    /// Its letter in docs, `A` to `F`.
    pub fn letter(self) -> char {
        match self {
            Self::RawPooled => 'A',
            Self::Tau => 'B',
            Self::CompletionPooled => 'C',
            Self::CompletionMean => 'D',
            Self::RawMean => 'E',
            Self::ChunkMean => 'F',
        }
    }

    /// Its name in columns and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::RawPooled => "raw_pooled",
            Self::Tau => "tau",
            Self::CompletionPooled => "completion_pooled",
            Self::CompletionMean => "completion_mean",
            Self::RawMean => "raw_mean",
            Self::ChunkMean => "chunk_mean",
        }
    }

    /// One sentence that a table can print.
    pub fn definition(self) -> &'static str {
        match self {
            Self::RawPooled => {
                "1 + drafts accepted / rounds that verified a draft, pooled; drafts behind a stop token count"
            }
            Self::Tau => {
                "tokens committed / rounds, pooled; cut where an answer ends, prefill's token out"
            }
            Self::CompletionPooled => "answer tokens / rounds, pooled; prefill's token in",
            Self::CompletionMean => {
                "mean over answers of answer tokens / rounds; prefill's token in"
            }
            Self::RawMean => {
                "mean over answers of 1 + drafts accepted / rounds that verified a draft; drafts behind a stop token count"
            }
            Self::ChunkMean => {
                "mean over answers of answer tokens / (rounds + 1); prefill is a chunk of one token"
            }
        }
    }

    /// Tools that report it.
    pub fn used_by(self) -> &'static str {
        match self {
            Self::RawPooled => "vLLM, llama.cpp, AIPerf weighted by tokens",
            Self::Tau => "draftbench, DeepSpec (nearly)",
            Self::CompletionPooled => "SpecForge",
            Self::CompletionMean => "z-lab's SGLang path",
            Self::RawMean => "z-lab's Transformers path, AIPerf by request",
            Self::ChunkMean => "specdec_bench",
        }
    }
}

/// What every convention needs of a set of answers; sets can be merged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AcceptanceSums {
    n_answers: u64,
    /// Answers with a round.
    n_decoded: u64,
    /// Answers with a round that verified a draft.
    n_drafted: u64,
    tokens: u64,
    rounds: u64,
    /// Rounds that verified a draft: vLLM's counter leaves the others out.
    drafting: u64,
    accepted: u64,
    committed: u64,
    completion_means: f64,
    raw_means: f64,
    chunk_means: f64,
}

impl AcceptanceSums {
    /// Adds one answer. An answer that ended with prefill took no round: it has no D, its token counts for C, and its
    /// one chunk for F. One that verified no draft has no E.
    pub fn add(&mut self, answer: &Answer) {
        let sum = |list: &[u32]| list.iter().map(|x| u64::from(*x)).sum::<u64>();
        let rounds = answer.rounds.committed.len() as u64;
        let (tokens, accepted) = (u64::from(answer.n_tokens), sum(&answer.rounds.accepted));
        let verified = answer.rounds.verified.iter();
        let drafting = verified.filter(|v| **v > 0).count() as u64;
        self.n_answers += 1;
        self.drafting += drafting;
        self.tokens += tokens;
        self.rounds += rounds;
        self.accepted += accepted;
        self.committed += sum(&answer.rounds.committed);
        self.chunk_means += tokens as f64 / (rounds + 1) as f64;
        if rounds > 0 {
            self.n_decoded += 1;
            self.completion_means += tokens as f64 / rounds as f64;
        }
        if drafting > 0 {
            self.n_drafted += 1;
            self.raw_means += 1.0 + accepted as f64 / drafting as f64;
        }
    }

    /// Adds the answers of another set.
    pub fn merge(&mut self, other: &Self) {
        self.n_answers += other.n_answers;
        self.n_decoded += other.n_decoded;
        self.n_drafted += other.n_drafted;
        self.drafting += other.drafting;
        self.tokens += other.tokens;
        self.rounds += other.rounds;
        self.accepted += other.accepted;
        self.committed += other.committed;
        self.completion_means += other.completion_means;
        self.raw_means += other.raw_means;
        self.chunk_means += other.chunk_means;
    }

    /// Acceptance length in tokens a round; `None` if no answer took a round, or none that the convention counts.
    pub fn length(&self, convention: Convention) -> Option<f64> {
        if self.rounds == 0 {
            return None;
        }
        let needs_drafts = matches!(convention, Convention::RawPooled | Convention::RawMean);
        if needs_drafts && self.drafting == 0 {
            return None;
        }
        let rounds = self.rounds as f64;
        Some(match convention {
            Convention::RawPooled => 1.0 + self.accepted as f64 / self.drafting as f64,
            Convention::Tau => self.committed as f64 / rounds,
            Convention::CompletionPooled => self.tokens as f64 / rounds,
            Convention::CompletionMean => self.completion_means / self.n_decoded as f64,
            Convention::RawMean => self.raw_means / self.n_drafted as f64,
            Convention::ChunkMean => self.chunk_means / self.n_answers as f64,
        })
    }

    /// Smallest and largest length over all conventions.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let lengths = Convention::ALL.iter().filter_map(|c| self.length(*c));
        lengths.fold(None, |range, length| {
            let (low, high) = range.unwrap_or((length, length));
            Some((f64::min(low, length), f64::max(high, length)))
        })
    }
}

impl<'a> FromIterator<&'a Answer> for AcceptanceSums {
    fn from_iter<I: IntoIterator<Item = &'a Answer>>(answers: I) -> Self {
        answers.into_iter().fold(Self::default(), |mut sums, a| {
            sums.add(a);
            sums
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::answer;

    fn lengths(answers: &[Answer]) -> [Option<f64>; 6] {
        let sums: AcceptanceSums = answers.iter().collect();
        Convention::ALL.map(|c| sums.length(c))
    }

    #[test]
    fn each_convention_is_as_computed_by_hand() {
        // 8 tokens in 2 rounds, the last cut at a stop token: 3 + 3 drafts accepted, 4 + 3 committed. 4 tokens in 3
        // rounds: nothing accepted.
        let answers = [answer(&[(3, 4), (3, 3)]), answer(&[(0, 1); 3])];
        let want = [
            1.0 + 6.0 / 5.0,
            10.0 / 5.0,
            12.0 / 5.0,
            (8.0 / 2.0 + 4.0 / 3.0) / 2.0,
            ((1.0 + 6.0 / 2.0) + 1.0) / 2.0,
            (8.0 / 3.0 + 4.0 / 4.0) / 2.0,
        ];
        assert_eq!(lengths(&answers), want.map(Some));
        let sums: AcceptanceSums = answers.iter().collect();
        assert_eq!(sums.spread(), Some((want[5], want[3])));
    }

    /// An answer whose rounds verified these numbers of drafts.
    fn verifying(rounds: &[(u32, u32)], verified: &[u32]) -> Answer {
        let mut answer = answer(rounds);
        answer.rounds.drafted = verified.to_vec();
        answer.rounds.verified = verified.to_vec();
        answer
    }

    #[test]
    fn a_round_without_a_draft_is_none_of_a_and_e() {
        // A schedule verified nothing in the second round: 3 accepted, 1 drafting round of 2, 1 + 4 + 1 tokens. The
        // other answer: 1 + 0 accepted in 2 drafting rounds of 2, 1 + 2 + 1 tokens.
        let answers = [
            verifying(&[(3, 4), (0, 1)], &[3, 0]),
            verifying(&[(1, 2), (0, 1)], &[3, 1]),
        ];
        let want = [
            1.0 + 4.0 / 3.0,
            8.0 / 4.0,
            10.0 / 4.0,
            (6.0 / 2.0 + 4.0 / 2.0) / 2.0,
            ((1.0 + 3.0 / 1.0) + (1.0 + 1.0 / 2.0)) / 2.0,
            (6.0 / 3.0 + 4.0 / 3.0) / 2.0,
        ];
        assert_eq!(lengths(&answers), want.map(Some));
    }

    #[test]
    fn vanilla_has_no_length_of_rounds_that_draft_and_1_where_prefills_token_is_left_out() {
        let of_vanilla = lengths(&[
            verifying(&[(0, 1); 4], &[0; 4]),
            verifying(&[(0, 1); 2], &[0; 2]),
        ]);
        let [a, b, c, d, e, f] = of_vanilla;
        assert_eq!([a, e], [None; 2]);
        assert_eq!([b, f], [Some(1.0); 2]);
        assert_eq!(c, Some(8.0 / 6.0));
        assert_eq!(d, Some((5.0 / 4.0 + 3.0 / 2.0) / 2.0));
    }

    #[test]
    fn an_answer_without_rounds_counts_where_it_has_a_length() {
        let got = lengths(&[answer(&[(1, 2)]), answer(&[])]);
        let want = [2.0, 2.0, 4.0, 3.0, 2.0, (3.0 / 2.0 + 1.0) / 2.0];
        assert_eq!(got, want.map(Some));
    }

    #[test]
    fn nothing_is_said_where_no_round_was() {
        assert_eq!(lengths(&[]), [None; 6]);
        assert_eq!(lengths(&[answer(&[])]), [None; 6]);
        assert_eq!(AcceptanceSums::default().spread(), None);
    }

    #[test]
    fn merged_sets_have_the_lengths_of_all_answers() {
        let answers = [answer(&[(3, 4), (1, 2)]), answer(&[]), answer(&[(2, 3)])];
        let mut merged: AcceptanceSums = answers[..1].iter().collect();
        merged.merge(&answers[1..].iter().collect());
        assert_eq!(merged, answers.iter().collect());
    }

    #[test]
    fn letters_and_names_are_distinct() {
        let letters: String = Convention::ALL.iter().map(|c| c.letter()).collect();
        assert_eq!(letters, "ABCDEF");
        let names = Convention::ALL.map(Convention::name);
        assert!((0..6).all(|i| !names[i + 1..].contains(&names[i])));
    }
}
