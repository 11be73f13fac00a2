//! The low-rank correction of a slot's logits by the token before it.

use candle_core::{D, Device, Tensor};
use decode::{Result, TokenId};
use models::Weights;

use super::config::MarkovKind;

/// `W2 . z`, where z comes from the embedding `e = W1[token before]`, the slot's hidden state h and, in the recurrent
/// kind, a state s that starts at 0 in every block.
#[derive(Debug)]
pub(super) struct Markov {
    /// `[V, rank]`.
    w1: Tensor,
    /// `[V_d, rank]`.
    w2: Tensor,
    mix: Mix,
    rank: usize,
}

/// Sizes of a Markov head.
#[derive(Clone, Copy, Debug)]
pub struct MarkovShape {
    /// How the token before a slot corrects it.
    pub kind: MarkovKind,
    /// Rank of the correction.
    pub rank: usize,
    /// Width of the trunk's states, H.
    pub hidden: usize,
    /// Vocabulary, V.
    pub vocab: usize,
    /// Tokens that can be drafted, V_d.
    pub draft_vocab: usize,
}

/// A matrix and its bias.
#[derive(Debug)]
struct Affine {
    weight: Tensor,
    bias: Tensor,
}

#[derive(Debug)]
enum Mix {
    /// `z = e`
    Vanilla,
    /// `z = sigmoid(G . [h ; e] + b) * e`
    Gated(Affine),
    /// `[g, c, o] = J . [s ; e ; h] + b`, `s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c)`, `z = tanh(o)`
    Rnn(Affine),
}

impl Markov {
    pub(super) fn load(shape: MarkovShape, weights: &mut Weights) -> crate::Result<Self> {
        let MarkovShape {
            kind,
            rank,
            hidden,
            vocab,
            draft_vocab,
        } = shape;
        let w1 = weights.take("markov_head.markov_w1.weight", &[vocab, rank])?;
        let w2 = weights.take("markov_head.markov_w2.weight", &[draft_vocab, rank])?;
        let mut affine = |name: &str, rows: usize, width: usize| -> crate::Result<Affine> {
            let name = format!("markov_head.{name}");
            Ok(Affine {
                weight: weights.take(&format!("{name}.weight"), &[rows, width])?,
                bias: weights.take(&format!("{name}.bias"), &[rows])?,
            })
        };
        let mix = match kind {
            MarkovKind::Vanilla => Mix::Vanilla,
            MarkovKind::Gated => Mix::Gated(affine("gate_proj", rank, hidden + rank)?),
            MarkovKind::Rnn => Mix::Rnn(affine("joint_proj", 3 * rank, 2 * rank + hidden)?),
        };
        Ok(Self { w1, w2, mix, rank })
    }

    /// `[R, rank]`: the state before the first slot.
    pub(super) fn start(&self, n_rows: usize) -> Result<Tensor> {
        let shape = (n_rows, self.rank);
        Ok(Tensor::zeros(shape, self.w1.dtype(), &Device::Cpu)?)
    }

    /// `[R, rank]` embeddings of the tokens before a slot.
    pub(super) fn embed(&self, before: &[TokenId]) -> Result<Tensor> {
        let ids = Tensor::new(before, &Device::Cpu)?;
        Ok(self.w1.index_select(&ids, 0)?)
    }

    /// `[R, V_d]`, added to a slot's logits; `embedded` and `state` are `[R, rank]`, `hidden` is `[R, H]`.
    pub(super) fn bias(
        &self,
        embedded: &Tensor,
        hidden: &Tensor,
        state: &mut Tensor,
    ) -> Result<Tensor> {
        let z = match &self.mix {
            Mix::Vanilla => embedded.clone(),
            Mix::Gated(gate) => (sigmoid(&gate.apply(&[hidden, embedded])?)? * embedded)?,
            Mix::Rnn(joint) => {
                let joint = joint.apply(&[state, embedded, hidden])?;
                let part = |i| joint.narrow(D::Minus1, i * self.rank, self.rank);
                let keep = sigmoid(&part(0)?)?;
                let new = (keep.affine(-1.0, 1.0)? * part(1)?.tanh()?)?;
                *state = ((keep * &*state)? + new)?;
                part(2)?.tanh()?.contiguous()?
            }
        };
        Ok(kernels::linear(&z, &self.w2)?)
    }
}

impl Affine {
    /// `weight . [parts] + bias`, parts side by side.
    fn apply(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let x = Tensor::cat(parts, D::Minus1)?;
        Ok(kernels::linear(&x, &self.weight)?.broadcast_add(&self.bias)?)
    }
}

fn sigmoid(x: &Tensor) -> candle_core::Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}
