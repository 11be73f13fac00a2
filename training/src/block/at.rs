//! Where in a run a loss is taken, and in which pieces.

/// Where in a run a loss is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Sum of the whole batch's weights.
    pub(crate) total: f64,
    /// Part of the run that is over, 0 to 1.
    pub(crate) progress: f64,
}

impl Place {
    /// A loss that is measured, not trained on.
    pub(crate) fn end(total: f64) -> Self {
        Self {
            total,
            progress: 1.0,
        }
    }
}

/// How a backward pass is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Blocks whose logits exist at once on one thread.
    pub(crate) blocks: usize,
    /// Whether only the head learns.
    pub(crate) frozen_trunk: bool,
}
