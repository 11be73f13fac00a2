//! The token ids that a drafter's head knows.

use decode::TokenId;
use models::Weights;

use crate::{Error, Result};

/// Draft ids in rising order of the target ids they stand for.
#[derive(Clone, Debug)]
pub(super) struct DraftVocab {
    /// Target id of each draft id; `None` if the two are the same.
    ids: Option<Vec<TokenId>>,
}

impl DraftVocab {
    /// Takes `d2t` (distance from draft id to target id) and `t2d` (whether a target id is kept), which may be absent
    /// if nothing was left out.
    pub(super) fn load(weights: &mut Weights, vocab: usize, draft_vocab: usize) -> Result<Self> {
        if draft_vocab == vocab && !weights.has("d2t") {
            weights.ignore("t2d");
            return Ok(Self { ids: None });
        }
        let refuse = |weights: &Weights, why: String| {
            Err(Error::Config {
                file: weights.place().to_owned(),
                why,
            })
        };
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
        Ok(Self {
            ids: Some(ids.into_iter().map(|id| id as TokenId).collect()),
        })
    }

    /// The target id of a draft id.
    pub(super) fn target_id(&self, draft_id: u32) -> TokenId {
        match &self.ids {
            None => draft_id,
            Some(ids) => ids[draft_id as usize],
        }
    }

    /// Target ids in the order of draft ids; `None` if the two are the same.
    pub(super) fn ids(&self) -> Option<&[TokenId]> {
        self.ids.as_deref()
    }
}
