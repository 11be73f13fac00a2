//! Raw sources brought to one JSONL shape, pinned by content hash, and the synthetic training text.

mod example;
pub mod synth;

pub use example::{Domain, Example};
