//! What can go wrong when raw files are read.

use std::path::PathBuf;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A file that cannot be read, is not the pinned one, or holds something else than its kind says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("{path:?}: cannot be read: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A row that is not what its source writes.
    #[error("{path:?}:{line}: {why}")]
    Row {
        /// File.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The content is not the pinned one.
    #[error("{path:?}: sha256 is {got}, wanted {want}; fetch the pinned version or change the pin")]
    Hash {
        /// File.
        path: PathBuf,
        /// Hash of what is there, lower-case hex.
        got: String,
        /// Hash that was asked for.
        want: String,
    },
    /// A source yields fewer examples than `take` asks for.
    #[error("{path:?}: yields {got} examples, `take` asks for {want}; lower `take`")]
    TooFew {
        /// File or folder.
        path: PathBuf,
        /// Examples found.
        got: usize,
        /// Examples asked for.
        want: usize,
    },
}
