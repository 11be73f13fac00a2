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
    /// A draw from `softmax(logits / T)`, T in thousandths; [`crate::decode`] refuses 0.
    Sampled {
        /// Temperature times 1000.
        temperature_milli: u32,
    },
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
    let Sampling::Sampled { temperature_milli } = sampling else {
        return Some(Law::Point(best as TokenId));
    };
    let (top, scale) = (*logits.get(best)?, 1000.0 / temperature_milli as f32);
    let mut weights: Vec<f32> = logits.iter().map(|l| ((l - top) * scale).exp()).collect();
    normalise(&mut weights);
    Some(Law::Weights(weights))
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
