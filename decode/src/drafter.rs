use candle_core::Tensor;

use crate::error::Result;
use crate::probe::Probe;
use crate::sampling::{Draws, Sampling};
use crate::target::{LayerId, Slot, TokenId, TokenIo};

/// The law `q` each draft token was drawn from, given the draft tokens on the way to it.
///
/// In a tree, row i is the law that draft i was drawn from given also its elder siblings (those listed before it
/// under the same parent), so that siblings may be drawn with or without replacement.
#[derive(Clone, Debug)]
pub enum DraftLaw {
    /// All mass on the proposed token: argmax drafts.
    Point,
    /// `[n, V]` f32, every row sums to 1.
    Full(Tensor),
    /// Mass on K candidates: `ids` `[n, K]` u32 without repeats in a row, `probs` `[n, K]` f32, every row sums to 1.
    TopK {
        /// Candidate token ids.
        ids: Tensor,
        /// Their probabilities.
        probs: Tensor,
    },
}

/// Draft tokens that follow the anchor, anchor excluded.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// n draft tokens: a chain in order, or the nodes of a tree, parents before children.
    pub tokens: Vec<TokenId>,
    /// `None` for a chain. For a tree the row each draft hangs from: 0 is the anchor, r is draft `r - 1`.
    pub parents: Option<Vec<u32>>,
    /// What the drafts were drawn from.
    pub law: DraftLaw,
    /// Chance that slot k is accepted given that those before it were. May depend on draft tokens before slot k,
    /// never on slot k's own token or later ones.
    pub confidence: Option<Vec<f32>>,
}

impl Proposal {
    /// No draft at all: the round is a vanilla step.
    pub fn none() -> Self {
        Self::chain(Vec::new())
    }

    /// A chain of argmax drafts.
    pub fn chain(tokens: Vec<TokenId>) -> Self {
        Self {
            tokens,
            parents: None,
            law: DraftLaw::Point,
            confidence: None,
        }
    }
}

/// One row of a propose call.
#[derive(Debug)]
pub struct Anchor<'a> {
    /// The sequence's slot.
    pub slot: Slot,
    /// Last committed token; the target has not been fed it yet.
    pub token: TokenId,
    /// 0-based position of `token`; equals the number of positions the target's cache holds.
    pub position: usize,
    /// The sequence's own random numbers.
    pub draws: &'a mut Draws,
}

/// What became final in one round, or in prefill.
#[derive(Debug)]
pub struct Committed<'a> {
    /// The sequence's slot.
    pub slot: Slot,
    /// 0-based position of `fed[0]`.
    pub position: usize,
    /// Tokens whose target states are in `taps`: the prompt, or the anchor and the accepted drafts.
    pub fed: &'a [TokenId],
    /// The token the next round starts from.
    pub next_anchor: TokenId,
    /// One `[fed.len(), H]` f32 for each tap, in the order of [`Drafter::taps`].
    pub taps: Vec<Tensor>,
}

/// Guesses tokens. One value serves all slots, so that a method sees every live row at once.
pub trait Drafter {
    /// Target layers the drafter reads, in the order it wants them.
    fn taps(&self) -> &[LayerId];
    /// gamma: most draft tokens in one round, anchor excluded (for a tree: most nodes). 0 makes the loop vanilla.
    fn max_draft(&self) -> usize;
    /// Whether proposals carry confidences, which schedulers that cut need.
    fn rates_drafts(&self) -> bool {
        false
    }
    /// Whether proposals are trees rather than chains.
    fn drafts_trees(&self) -> bool {
        false
    }
    /// A slot begins: its prompt has been fed.
    ///
    /// # Errors
    /// If the drafter's own state cannot hold the prompt, or a tensor operation fails.
    fn start(&mut self, prompt: Committed<'_>) -> Result<()>;
    /// One proposal a row, in row order. `probe` is told where [`Phase::Head`](crate::Phase::Head) begins and ends, by drafters that have one.
    ///
    /// # Errors
    /// If a tensor operation fails.
    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        probe: &mut dyn Probe,
    ) -> Result<Vec<Proposal>>;
    /// A round is over for these slots.
    ///
    /// # Errors
    /// If a tensor operation fails.
    fn commit(&mut self, rows: Vec<Committed<'_>>) -> Result<()>;
    /// A slot's answer is complete; its state may be forgotten.
    fn finish(&mut self, slot: Slot);
}
