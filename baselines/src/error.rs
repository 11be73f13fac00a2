/// Why a drafter could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No method has this id.
    #[error("method {id:?} is unknown; known: {known}")]
    UnknownMethod {
        /// The id asked for.
        id: String,
        /// Known ids, comma separated.
        known: String,
    },
    /// An option cannot be used.
    #[error("method {method}: option {item} {why}")]
    Option {
        /// The method.
        method: &'static str,
        /// The option as typed.
        item: String,
        /// What is wrong.
        why: String,
    },
    /// The method needs a drafter and there is none for this target.
    #[error(
        "{method} has no drafter for target {target}; train one or name a folder that holds it with --checkpoints"
    )]
    NoDrafter {
        /// The method.
        method: &'static str,
        /// The target.
        target: String,
    },
    /// The drafter was made for another target.
    #[error(
        "{file}: {what} is {got}, target {target} has {want}; use the drafter that was trained for it"
    )]
    OtherTarget {
        /// The drafter's config file.
        file: String,
        /// The property that differs.
        what: &'static str,
        /// The drafter's value.
        got: usize,
        /// The target's id.
        target: String,
        /// The target's value.
        want: usize,
    },
    /// A config value contradicts the others.
    #[error("{file}: {why}")]
    Config {
        /// The drafter's config file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// The drafter's positions end before the text may.
    #[error(
        "{file}: max_position_embeddings is {max_positions}, prompt, answer and one round need {capacity}; lower --max-new or shorten the prompt"
    )]
    TooShort {
        /// The drafter's config file.
        file: String,
        /// Positions it was trained for.
        max_positions: usize,
        /// Positions asked for.
        capacity: usize,
    },
    /// The number of draft tokens asked for is out of range.
    #[error(
        "option max_draft={got} (or a preset that sets it): this drafter proposes 1 to {most} tokens a round"
    )]
    MaxDraft {
        /// Tokens asked for.
        got: usize,
        /// Most the drafter can give.
        most: usize,
    },
    /// Files could not be read or do not fit.
    #[error(transparent)]
    Load(#[from] models::LoadError),
    /// A tensor operation failed while building the drafter.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
