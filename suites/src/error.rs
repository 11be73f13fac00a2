//! What can go wrong between a suite's id and the token ids of a prompt.

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A suite, tokenizer or chat template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No suite has this id.
    #[error("suite {id:?} is unknown; known: {known}")]
    UnknownSuite {
        /// What was asked for.
        id: String,
        /// Every id, comma separated.
        known: String,
    },
    /// The suite file is not TOML of the right keys.
    #[error("{file}: {source}")]
    SuiteToml {
        /// File name within `suites/`.
        file: String,
        /// Line, column and key.
        source: Box<toml::de::Error>,
    },
    /// The suite file has the right keys but no usable content.
    #[error("{file}: {why}")]
    Suite {
        /// File name within `suites/`.
        file: String,
        /// Which prompt and what is wrong with it.
        why: String,
    },
    /// Rows of a public suite that cannot be read.
    #[error(transparent)]
    Data(#[from] datasets::Error),
    /// Rows that are not those the suite is pinned to.
    #[error(
        "suite {id}: {path:?} holds {got_rows} rows of sha256 {got}, pinned are {want_rows} rows of sha256 {want}; \
         fetch it anew with `draftbench data pull {id}`, or take the file away"
    )]
    Content {
        /// Suite.
        id: String,
        /// File, or folder of several.
        path: std::path::PathBuf,
        /// Hash of what is there.
        got: String,
        /// Rows there.
        got_rows: usize,
        /// Hash that is wanted, or that none is.
        want: String,
        /// Rows that are wanted.
        want_rows: usize,
    },
    /// `tokenizer_config.json` is not JSON of the expected shape.
    #[error("tokenizer_config.json: {source}")]
    ConfigJson {
        /// Line, column and key.
        source: serde_json::Error,
    },
    /// The tokenizer config names no template.
    #[error(
        "tokenizer_config.json: no `chat_template`; add the template of the instruct model, here or as chat_template.jinja"
    )]
    NoTemplate,
    /// The template has a syntax error, or failed on this conversation.
    #[error("chat_template: {why}")]
    Template {
        /// Template line and reason, with the reasons below it.
        why: String,
    },
    /// `tokenizer.json` is not a tokenizer.
    #[error("tokenizer.json: {why}")]
    Tokenizer {
        /// What the tokenizer library says.
        why: String,
    },
    /// The turns do not end with the user's.
    #[error("{got} turns do not end with a user turn; give user and assistant turns alternately")]
    LastTurn {
        /// Number of turns given.
        got: usize,
    },
}
