use crate::looping::RequestId;

/// What can go wrong while decoding.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation of the target or drafter failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A request holds no token to start from.
    #[error("request {id} has an empty prompt; give it at least one token")]
    EmptyPrompt {
        /// The request.
        id: RequestId,
    },
    /// A request asks for no token.
    #[error("request {id} asks for 0 new tokens; ask for at least 1")]
    NothingToDo {
        /// The request.
        id: RequestId,
    },
    /// Prompt, answer and one round of drafts do not fit into a slot of the target's cache.
    #[error(
        "request {id} needs {need} cache positions ({prompt} prompt + {max_new} new + {round} for one round), a slot holds {capacity}; shorten the prompt or lower max_new"
    )]
    TooLong {
        /// The request.
        id: RequestId,
        /// Positions needed.
        need: usize,
        /// Prompt tokens.
        prompt: usize,
        /// Most tokens to generate.
        max_new: usize,
        /// Rows of one verify pass.
        round: usize,
        /// Positions a slot holds.
        capacity: usize,
    },
    /// Two requests carry one number, so they would share a random stream.
    #[error("request id {id} is used twice; number requests uniquely")]
    DuplicateRequest {
        /// The request.
        id: RequestId,
    },
    /// Sampling at temperature 0.
    #[error("temperature 0 has no law to draw from; use greedy sampling")]
    ZeroTemperature,
    /// `slots` is 0.
    #[error("decoding needs at least 1 slot, got 0")]
    NoSlots,
    /// A drafter, a scheduler or another part broke its contract.
    #[error("{who} broke its contract: {what}")]
    Contract {
        /// `drafter`, `scheduler`, `target` or `arrivals`.
        who: &'static str,
        /// What was expected and what came.
        what: String,
    },
    /// A logit is NaN or infinite, so no law can be formed.
    #[error("logits row {row} holds a value that is not finite; check the weights and their dtype")]
    NotFinite {
        /// Row of the logits handed over.
        row: usize,
    },
    /// An error of the model behind a trait, already worded for the user.
    #[error("{0}")]
    Model(String),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
