//! What can go wrong while training.

use std::path::PathBuf;

/// Every error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The loss is no number any more; nothing of this step is kept.
    #[error(
        "the loss of step {step} is {loss}; the last checkpoint stands, lower optimizer.lr or raise optimizer.warmup_steps in the recipe"
    )]
    Diverged {
        /// The step.
        step: u64,
        /// Its loss.
        loss: f64,
    },
    /// A run holds more memory than its recipe states.
    #[error(
        "by step {step} the process held {held} MiB, more than report.peak_mib = {stated} of the recipe; raise it or set RAYON_NUM_THREADS to fewer to go on from the checkpoint just written, or lower batch.micro_tokens or batch.blocks_per_chunk and start again in another work folder"
    )]
    Memory {
        /// The step.
        step: u64,
        /// MiB held at most.
        held: u64,
        /// MiB allowed.
        stated: u64,
    },
    /// The system refused a thread.
    #[error("no thread for a part of the batch: {0}; set RAYON_NUM_THREADS to fewer")]
    Threads(std::io::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A training text could not be made or read.
    #[error(transparent)]
    Data(#[from] datasets::Error),
    /// A trained target could not be loaded.
    #[error(transparent)]
    Load(#[from] models::LoadError),
    /// A target failed while it wrote answers.
    #[error(transparent)]
    Decode(#[from] decode::Error),
    /// A file could not be read or written.
    #[error("{path:?}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A recipe does not parse or holds a key that does not exist.
    #[error("{file:?}: {message}")]
    Recipe {
        /// The recipe.
        file: PathBuf,
        /// Key and reason, as the parser words it.
        message: String,
    },
    /// A recipe parses but a value makes no sense.
    #[error("{file:?}: key {key:?} {problem}")]
    RecipeValue {
        /// The recipe.
        file: PathBuf,
        /// Dotted key.
        key: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A JSON file does not hold what it should.
    #[error("{path:?}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// The tokenizer could not be trained, read or applied.
    #[error("tokenizer {path:?}: {message}")]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// The library's reason.
        message: String,
    },
    /// A weight file or checkpoint does not fit the model.
    #[error("{path:?}: tensor {name:?} {problem}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file is not in safetensors format, or tensors could not be put into it.
    #[error("{path:?}: {source}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The library's reason.
        source: safetensors::SafeTensorError,
    },
    /// A checkpoint lacks the state that a run goes on from.
    #[error("{path:?} holds no run state; delete it to start the run again")]
    NoRunState {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A checkpoint belongs to another recipe.
    #[error("{path:?} was written by another recipe; delete the folder or restore the recipe")]
    ForeignCheckpoint {
        /// The checkpoint.
        path: PathBuf,
    },
    /// Another run writes a file of kept states.
    #[error(
        "{path:?} is in use by another training run; wait for it, or give this recipe another answers.folder"
    )]
    Held {
        /// The file.
        path: PathBuf,
    },
    /// No training text is left after filtering.
    #[error("no usable training text: {why}")]
    NoData {
        /// What was filtered.
        why: String,
    },
}

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Ties a system error to the file it happened on.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Ties an error of the safetensors format to its file.
    pub(crate) fn safetensors(
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(safetensors::SafeTensorError) -> Self {
        let path = path.into();
        move |source| Self::Safetensors { path, source }
    }

    /// Ties a JSON error to its file.
    pub(crate) fn json(path: impl Into<PathBuf>) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.into();
        move |source| Self::Json { path, source }
    }
}
