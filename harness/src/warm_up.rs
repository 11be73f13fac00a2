//! What is decoded unmeasured before a cell's first answer: every class of shape that the cell can come to, then short
//! batches until steps take equally long.

use std::collections::BTreeMap;

use decode::RequestId;

use crate::engine::Ask;
use crate::measure::Times;

/// Tokens of an answer while shapes are covered: at least one round, in which every drafter proposes all it can.
pub(crate) const COVER_TOKENS: usize = 3;
/// Tokens of an answer while steps settle.
pub(crate) const SETTLE_TOKENS: usize = 16;
/// Tokens of a prompt where its length does not matter: prefill is covered by itself and would take longest.
const SHORT: usize = 64;
/// Batches after which settling is given up, at the latest.
const MOST_BATCHES: usize = 10;
/// Batches that must agree.
const ALIKE: usize = 3;
/// By how much of the shortest the longest median step of these may differ from it.
const SPREAD: f64 = 0.03;

/// A prompt, or the end of one.
pub(crate) type Warm<'a> = (RequestId, &'a [u32]);

/// Batches that come to every class of shape: a prefill for each power of two among the lengths of prompts, of the
/// longest prompt in it; then 2, 4, 8 .. sequences at once up to as many as the cell can hold, of the ends of prompts.
/// Each answers with a round of the arm's own proposals, so verify passes have the rows that the cell's will have.
pub(crate) fn shapes(asks: &[Ask], slots: usize) -> Vec<Vec<Warm<'_>>> {
    let mut by_length: Vec<&Ask> = asks.iter().collect();
    by_length.sort_by_key(|ask| ask.tokens.len());
    let classes: BTreeMap<u32, &Ask> = by_length
        .iter()
        .filter_map(|ask| Some((ask.tokens.len().checked_ilog2()?, *ask)))
        .collect();
    let alone = classes.into_values().map(|ask| vec![whole(ask)]);
    let mut batches: Vec<Vec<Warm<'_>>> = alone.collect();
    let most = slots.min(asks.len());
    let mut n_at_once = 2;
    while n_at_once / 2 < most {
        batches.push(repeated(asks, n_at_once.min(most)));
        n_at_once *= 2;
    }
    batches
}

fn whole(ask: &Ask) -> Warm<'_> {
    (ask.id, &ask.tokens)
}

/// The batch that is repeated until steps settle: the ends of as many prompts as the cell can hold at once.
pub(crate) fn repeated(asks: &[Ask], slots: usize) -> Vec<Warm<'_>> {
    let end = |ask: &'_ Ask| ask.tokens.len().saturating_sub(SHORT);
    let each = asks.iter().take(slots);
    each.map(|ask| (ask.id, &ask.tokens[end(ask)..])).collect()
}

/// Median steps of the batches so far.
#[derive(Debug)]
pub(crate) struct Settling {
    medians: Vec<u64>,
    /// Batches after which it is given up.
    most: usize,
}

impl Settling {
    /// Of a cell that decodes `n_tokens` at most, in batches of `n_batch` here: settling may take as many tokens as the
    /// cell itself, so that a short cell is not mostly warm-up, but three batches at least and ten at most.
    pub(crate) fn new(n_tokens: usize, n_batch: usize) -> Self {
        Self {
            medians: Vec::new(),
            most: (n_tokens / n_batch.max(1)).clamp(ALIKE, MOST_BATCHES),
        }
    }

    /// Adds a batch; one without steps counts by its prefills.
    pub(crate) fn add<'a>(&mut self, times: impl Iterator<Item = &'a Times>) {
        let (mut steps, mut prefills) = (Vec::new(), Vec::new());
        for times in times {
            steps.extend_from_slice(&times.timeline.step_ns);
            prefills.push(times.prefill_ns);
        }
        let mut values = if steps.is_empty() { prefills } else { steps };
        values.sort_unstable();
        let median = values.get(values.len() / 2).copied();
        self.medians.push(median.unwrap_or(0));
    }

    /// Whether the last batches agree.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(from) = self.medians.len().checked_sub(ALIKE) else {
            return false;
        };
        let last = &self.medians[from..];
        let (low, high) = (last.iter().min(), last.iter().max());
        low.zip(high)
            .is_some_and(|(low, high)| (high - low) as f64 <= SPREAD * *low as f64)
    }

    /// Whether there is no more to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.is_settled() || self.medians.len() >= self.most
    }

    /// The medians, in order.
    pub(crate) fn into_medians(self) -> Vec<u64> {
        self.medians
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_tests::asks_of;

    fn lengths(batches: &[Vec<Warm<'_>>]) -> Vec<Vec<usize>> {
        let of = |batch: &Vec<Warm<'_>>| batch.iter().map(|warm| warm.1.len()).collect();
        batches.iter().map(of).collect()
    }

    #[test]
    fn every_class_of_prompt_length_and_every_power_of_two_of_sequences_is_covered() {
        let asks = asks_of(&[9, 2, 3, 90, 8, 70]);
        let got = lengths(&shapes(&asks, 5));
        let want: [&[usize]; 6] = [
            &[3],
            &[9],
            &[90],
            &[9, 2],
            &[9, 2, 3, 64],
            &[9, 2, 3, 64, 8],
        ];
        assert_eq!(got, want);
        assert_eq!(lengths(&shapes(&asks, 1)), [[3], [9], [90]]);
        assert_eq!(lengths(&shapes(&asks[..1], 4)), [[9]]);
        assert_eq!(lengths(&[repeated(&asks, 2)]), [[9, 2]]);
    }

    #[test]
    fn steps_have_settled_when_three_batches_agree_and_ten_are_the_end() {
        let times = |step_ns: &[u64]| {
            let mut times = Times {
                prefill_ns: 7,
                ..Times::default()
            };
            times.timeline.step_ns = step_ns.to_vec();
            times
        };
        let mut settling = Settling::new(1000, 1);
        for median in [200, 150, 100, 102] {
            settling.add([times(&[1, median, 900])].iter());
            assert!(!settling.is_over(), "{settling:?}");
        }
        settling.add([times(&[103])].iter());
        assert!(settling.is_settled() && settling.is_over());
        assert_eq!(settling.into_medians(), [200, 150, 100, 102, 103]);
        let mut restless = Settling::new(1000, 1);
        for batch in 0..10 {
            assert!(!restless.is_over());
            restless.add([times(&[100 + 10 * (batch % 2)])].iter());
        }
        assert!(!restless.is_settled() && restless.is_over());
        let most = |n_tokens, n_batch| Settling::new(n_tokens, n_batch).most;
        assert_eq!([most(256, 128), most(128, 16), most(9999, 16)], [3, 8, 10]);
        let mut short = Settling::new(1, 1);
        short.add([times(&[])].iter());
        assert_eq!(short.into_medians(), [7]);
    }
}
