use std::num::NonZeroU32;

use candle_core::{DType, Tensor};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{Error, Result};
use crate::target::TokenId;

/// How the target's next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sampling {
    /// The largest logit; the lowest id wins a tie.
    Greedy,
    /// A draw from `softmax(logits / T)`, of which only some tokens are kept.
    Sampled {
        /// Temperature times 1000; [`crate::decode`] refuses 0.
        temperature_milli: u32,
        /// Only the k likeliest tokens; the lowest id wins a tie.
        top_k: Option<NonZeroU32>,
        /// Then only the likeliest tokens that together have at least this probability, in thousandths, of what `top_k`
        /// left (nucleus sampling).
        top_p_milli: Option<NonZeroU32>,
    },
}

impl Sampling {
    /// A draw from all tokens, at this temperature in thousandths.
    pub const fn at(temperature_milli: u32) -> Self {
        Self::Sampled {
            temperature_milli,
            top_k: None,
            top_p_milli: None,
        }
    }

    /// The temperature; `None` if greedy.
    pub fn temperature(self) -> Option<f64> {
        match self {
            Self::Greedy => None,
            Self::Sampled {
                temperature_milli, ..
            } => Some(f64::from(temperature_milli) / 1000.0),
        }
    }
}

/// Random numbers of one request: a function of (seed, request id) alone, so the batch around a request does not
/// change them. ChaCha8 with the request id as stream number.
#[derive(Clone, Debug)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The stream of one request.
    pub fn new(seed: u64, request_id: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(request_id);
        Self(rng)
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws an index with probability `weights[i] / sum(weights)`; an index of weight 0 is never drawn.
    /// If every weight is 0 the answer is 0.
    pub fn pick(&mut self, weights: &[f32]) -> usize {
        let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        let mut left = self.uniform() * total;
        let mut last = 0;
        for (idx, weight) in weights.iter().enumerate() {
            if *weight > 0.0 {
                last = idx;
                left -= f64::from(*weight);
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }
}

/// A law over token ids.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// All mass on one token: greedy decoding.
    Point(TokenId),
    /// `[V]` weights, not negative; need not sum to 1.
    Weights(Vec<f32>),
}

impl Law {
    /// Draws a token.
    pub fn draw(&self, draws: &mut Draws) -> TokenId {
        match self {
            Self::Point(token) => *token,
            Self::Weights(weights) => draws.pick(weights) as TokenId,
        }
    }
}

/// Turns `[n, V]` logits into one law a row; softmax in f32 after division by the temperature.
///
/// # Errors
/// [`Error::NotFinite`] if a logit is NaN or infinite.
pub fn laws(logits: &Tensor, sampling: Sampling) -> Result<Vec<Law>> {
    let (n, vocab) = logits.dims2()?;
    let flat = logits
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    (0..n)
        .map(|row| {
            law(&flat[row * vocab..(row + 1) * vocab], sampling).ok_or(Error::NotFinite { row })
        })
        .collect()
}

/// `None` if a logit is not finite.
pub(crate) fn law(logits: &[f32], sampling: Sampling) -> Option<Law> {
    let mut best = 0;
    for (idx, value) in logits.iter().enumerate() {
        if !value.is_finite() {
            return None;
        }
        if *value > logits[best] {
            best = idx;
        }
    }
    let Sampling::Sampled {
        temperature_milli,
        top_k,
        top_p_milli,
    } = sampling
    else {
        return Some(Law::Point(best as TokenId));
    };
    let (top, scale) = (*logits.get(best)?, 1000.0 / temperature_milli as f32);
    let mut weights: Vec<f32> = logits.iter().map(|l| ((l - top) * scale).exp()).collect();
    if top_k.is_some() || top_p_milli.is_some() {
        truncate(&mut weights, top_k, top_p_milli);
    }
    normalise(&mut weights);
    Some(Law::Weights(weights))
}

/// Sets the weights of all tokens to 0 that `top_k`, then `top_p_milli` leave out.
fn truncate(weights: &mut [f32], top_k: Option<NonZeroU32>, top_p_milli: Option<NonZeroU32>) {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    let most = top_k.map_or(order.len(), |k| order.len().min(k.get() as usize));
    let mut n_kept = most;
    if let Some(milli) = top_p_milli {
        let share = f64::from(milli.get()) / 1000.0;
        n_kept = nucleus(weights, &mut order, most, share);
    } else {
        likeliest_first(weights, &mut order, most);
    }
    for idx in &order[n_kept..] {
        weights[*idx] = 0.0;
    }
}

/// Puts the `n` likeliest tokens of `order` first, the lowest id before others of its weight.
fn likeliest_first(weights: &[f32], order: &mut [usize], n: usize) {
    if n < order.len() {
        let rank = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
        order.select_nth_unstable_by(n, rank);
    }
}

/// How many of the `most` likeliest tokens it takes to have `share` of their weight together; these come first in
/// `order`. Few are looked at before many, since sorting a vocabulary would take longer than the step.
fn nucleus(weights: &[f32], order: &mut [usize], most: usize, share: f64) -> usize {
    const FEW: usize = 256;
    let of = |idx: &usize| f64::from(weights[*idx]);
    likeliest_first(weights, order, most);
    let enough = order[..most].iter().map(of).sum::<f64>() * share;
    let mut looked_at = FEW.min(most);
    loop {
        likeliest_first(weights, &mut order[..most], looked_at);
        let few = &mut order[..looked_at];
        few.sort_unstable_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
        let mut sum = 0.0;
        let crossing = few.iter().position(|idx| {
            sum += of(idx);
            sum >= enough
        });
        match crossing {
            Some(last) => return last + 1,
            None if looked_at == most => return most,
            None => looked_at = most.min(looked_at * 8),
        }
    }
}

/// Divides by the sum, which is taken in f64: the tail of a large vocabulary is lost in an f32 sum.
/// Returns the sum; weights that sum to less than 1e-8 stay as they are.
pub(crate) fn normalise(weights: &mut [f32]) -> f64 {
    let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    if total > 1e-8 {
        for weight in weights {
            *weight = (f64::from(*weight) / total) as f32;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(weights: &[f32], k: u32, p_milli: u32) -> Vec<usize> {
        let mut weights = weights.to_vec();
        truncate(&mut weights, NonZeroU32::new(k), NonZeroU32::new(p_milli));
        (0..weights.len()).filter(|i| weights[*i] > 0.0).collect()
    }

    #[test]
    fn top_k_comes_first_and_the_token_that_crosses_top_p_stays() {
        let weights = [0.1, 0.4, 0.2, 0.2, 0.1];
        assert_eq!(kept(&weights, 2, 0), [1, 2], "the lowest id wins a tie");
        assert_eq!(kept(&weights, 9, 0), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&weights, 0, 400), [1]);
        assert_eq!(kept(&weights, 0, 600), [1, 2]);
        assert_eq!(kept(&weights, 0, 610), [1, 2, 3]);
        assert_eq!(kept(&weights, 0, 1), [1], "one token always stays");
        let even = [1.0 / 1000.0; 1000];
        assert_eq!(kept(&even, 0, 900).len(), 900);
        assert_eq!(kept(&even, 600, 500), (0..300).collect::<Vec<_>>());
        assert_eq!(kept(&even, 600, 0), (0..600).collect::<Vec<_>>());
        // Of the two that top-k leaves, the first has two thirds.
        assert_eq!(kept(&weights, 2, 660), [1]);
        assert_eq!(kept(&weights, 2, 670), [1, 2]);
    }
}
