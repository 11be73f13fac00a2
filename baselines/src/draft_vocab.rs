//! The token ids that a drafter's head knows, and drafts that are drawn from its laws.

use candle_core::{Device, Tensor};
use decode::{DraftLaw, Draws, Law, Proposal, TokenId};
use models::Weights;

use crate::{Error, Result};

/// Draft ids in rising order of the target ids they stand for. They never leave the drafter: proposals, and whatever
/// reads the token before a slot, are in target ids.
#[derive(Clone, Debug)]
pub(crate) struct DraftVocab {
    /// Draft ids, V_d.
    size: usize,
    /// Target id of each draft id; `None` if the two are the same.
    ids: Option<Vec<TokenId>>,
}

impl DraftVocab {
    /// The target's own.
    pub(crate) fn all(vocab: usize) -> Self {
        Self {
            size: vocab,
            ids: None,
        }
    }

    /// Takes `d2t` (distance from draft id to target id) and `t2d` (whether a target id is kept), which may be absent
    /// if nothing was left out. `draft_vocab` is neither 0 nor above `vocab`.
    ///
    /// # Errors
    /// [`Error::Config`] if `d2t` is missing although ids were left out, does not rise or leaves the vocabulary, or `t2d`
    /// contradicts it.
    pub(crate) fn load(weights: &mut Weights, vocab: usize, draft_vocab: usize) -> Result<Self> {
        if draft_vocab == vocab && !weights.has("d2t") {
            weights.ignore("t2d");
            return Ok(Self::all(vocab));
        }
        let refuse = |weights: &Weights, why: String| {
            Err(Error::Config {
                file: weights.place().to_owned(),
                why,
            })
        };
        Self::require("d2t", weights, vocab, draft_vocab)?;
        let offsets = weights.take_integers("d2t", draft_vocab)?;
        let ids: Vec<i64> = (0i64..)
            .zip(&offsets)
            .map(|(j, d)| j.saturating_add(*d))
            .collect();
        let rising = ids.windows(2).all(|w| w[0] < w[1]);
        if !rising || ids[0] < 0 || ids[draft_vocab - 1] >= vocab as i64 {
            let why = format!(
                "tensor \"d2t\" must lead to rising token ids below {vocab}, draft id by draft id"
            );
            return refuse(weights, why);
        }
        if weights.has("t2d") {
            let kept = weights.take_integers("t2d", vocab)?;
            let kept = (0..).zip(&kept).filter(|(_, kept)| **kept != 0);
            if !kept.map(|(id, _)| id).eq(ids.iter().copied()) {
                let why = "tensors \"d2t\" and \"t2d\" keep different token ids; fetch the checkpoint again";
                return refuse(weights, why.to_owned());
            }
        }
        let named = || ids.iter().map(|id| *id as TokenId).collect();
        Ok(Self {
            size: draft_vocab,
            ids: (draft_vocab != vocab).then(named),
        })
    }

    /// Refuses weights without the tensor that a vocabulary of `draft_vocab` ids needs.
    ///
    /// # Errors
    /// [`Error::Config`] if it is not there.
    pub(crate) fn require(
        tensor: &str,
        weights: &Weights,
        vocab: usize,
        draft_vocab: usize,
    ) -> Result<()> {
        if weights.has(tensor) || weights.is_random() {
            return Ok(());
        }
        Err(Error::Config {
            file: weights.place().to_owned(),
            why: format!(
                "tensor {tensor:?} is missing; a draft_vocab_size of {draft_vocab}, where vocab_size is {vocab}, needs it"
            ),
        })
    }

    /// Draft ids, V_d.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The target id of a draft id.
    pub(crate) fn target_id(&self, draft_id: u32) -> TokenId {
        match &self.ids {
            None => draft_id,
            Some(ids) => ids[draft_id as usize],
        }
    }

    /// Target ids in the place of draft ids.
    pub(crate) fn rename(&self, mut draft_ids: Vec<u32>) -> Vec<TokenId> {
        if self.ids.is_some() {
            draft_ids
                .iter_mut()
                .for_each(|id| *id = self.target_id(*id));
        }
        draft_ids
    }

    /// Target ids in the order of draft ids, rising; `None` if the two are the same.
    pub(crate) fn ids(&self) -> Option<&[TokenId]> {
        self.ids.as_deref()
    }
}

/// Drafts of one row while they are drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafts {
    /// Target ids.
    tokens: Vec<TokenId>,
    /// `[tokens.len(), V_d]`, empty when greedy.
    weights: Vec<f32>,
}

impl Drafts {
    /// Draws the next draft from a law of draft ids, keeps the law and returns the target id.
    pub(crate) fn draw(&mut self, law: Law, draws: &mut Draws, vocab: &DraftVocab) -> TokenId {
        let token = vocab.target_id(law.draw(draws));
        self.tokens.push(token);
        if let Law::Weights(weights) = law {
            self.weights.extend(weights);
        }
        token
    }

    /// The draft drawn last, as a target id.
    pub(crate) fn last(&self) -> Option<TokenId> {
        self.tokens.last().copied()
    }

    /// The chain of what was drawn, with the laws of all drafts if any was drawn from one with weights.
    ///
    /// # Errors
    /// If the laws are not over `vocab`.
    pub(crate) fn proposal(self, vocab: &DraftVocab) -> decode::Result<Proposal> {
        let shape = (self.tokens.len(), vocab.size());
        let law = match (self.weights.is_empty(), vocab.ids()) {
            (true, _) => DraftLaw::Point,
            (false, None) => DraftLaw::Full(Tensor::from_vec(self.weights, shape, &Device::Cpu)?),
            (false, Some(ids)) => DraftLaw::TopK {
                ids: Tensor::from_vec(ids.repeat(shape.0), shape, &Device::Cpu)?,
                probs: Tensor::from_vec(self.weights, shape, &Device::Cpu)?,
            },
        };
        Ok(Proposal {
            law,
            ..Proposal::chain(self.tokens)
        })
    }
}
