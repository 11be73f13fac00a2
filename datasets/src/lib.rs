//! Raw sources brought to one JSONL shape, pinned by content hash, and the synthetic training text.

mod corpus;
mod error;
mod example;
mod hash;
mod json;
pub mod public;
pub mod sources;
pub mod synth;

pub use corpus::{CorpusSpec, SourceKind, SourceSpec, corpus, corpus_without, same_prompt_key};
pub use error::{Error, Result};
pub use example::{Domain, Example};
pub use hash::{Pinned, sha256_bytes, sha256_file};
pub use json::python_json;
