use candle_core::Tensor;

use crate::error::Result;

/// Index into the vocabulary.
pub type TokenId = u32;

/// Index of a sequence's place in the running batch, `0..slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub usize);

/// A decoder layer of the target, 0-based. Its tap is the residual stream after the layer's MLP was added,
/// before any norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerId(pub usize);

/// Which rows of a feed get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The last row: prefill and vanilla steps.
    Last,
    /// Every row: a verify pass.
    All,
}

/// Tokens of one sequence that continue what its slot's cache holds.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The slot whose cache is continued.
    pub slot: Slot,
    /// At least one token.
    pub tokens: &'a [TokenId],
    /// `None` for a chain. For a draft tree one entry a token: the row (of this feed) it hangs from, always
    /// smaller than its own; entry 0 is the root's and is ignored. A row sees the slot's cache and its ancestors,
    /// and its position is the cache length plus its depth.
    pub parents: Option<&'a [u32]>,
    /// Rows that get logits.
    pub logits: Keep,
}

/// What one forward gives back, packed over feeds in their order.
#[derive(Debug)]
pub struct Forward {
    /// `[M, V]` f32: 1 row for a [`Keep::Last`] feed, `tokens.len()` rows for a [`Keep::All`] feed.
    pub logits: Tensor,
    /// One `[N, H]` f32 for each requested layer, in the order requested; N counts all fed tokens.
    pub taps: Vec<Tensor>,
}

/// The frozen ends of a target that a drafter may share.
pub trait TokenIo {
    /// Number of token ids, V.
    fn vocab(&self) -> usize;
    /// `[N]` u32 ids to `[N, H]` f32.
    ///
    /// # Errors
    /// If an id is not below [`TokenIo::vocab`].
    fn embed(&self, ids: &Tensor) -> Result<Tensor>;
    /// `[N, H]` f32, already final-normed, to `[N, V]` f32.
    ///
    /// # Errors
    /// If the width is not the target's.
    fn lm_head(&self, hidden: &Tensor) -> Result<Tensor>;
}

/// The model whose text must not change.
///
/// Prefill, vanilla step and verify pass are all [`Target::forward`] over packed ragged rows. A row's result must
/// not depend on which other rows share the call.
pub trait Target: TokenIo {
    /// Tokens that end an answer.
    fn stop_tokens(&self) -> &[TokenId];
    /// Positions one slot's cache holds.
    fn capacity(&self) -> usize;
    /// Feeds tokens, appends their keys and values to the slots' caches, returns logits and taps.
    ///
    /// # Errors
    /// If a slot is unknown or its cache is full, or a tensor operation fails.
    fn forward(&mut self, feeds: &[Feed<'_>], taps: &[LayerId]) -> Result<Forward>;
    /// Keeps the first `len` positions of the slot, then, for a tree, the rows of the last feed listed in `path`
    /// (row numbers of that feed, root first), moved up to follow them. `len == 0` with an empty path frees the slot.
    ///
    /// # Errors
    /// If `len` or a row of `path` lies beyond what the cache holds.
    fn keep(&mut self, slot: Slot, len: usize, path: &[u32]) -> Result<()>;
}
