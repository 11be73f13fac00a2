//! Readers that turn raw files of the user's into [`Example`](crate::Example)s. All results are thinking-off.
//!
//! A malformed row is an error with file and line; nothing is skipped silently except what the
//! reader's own rule leaves out, and that rule is in its doc line.

mod jsonl;
mod python;
mod wordnet;

pub use jsonl::{gsm8k, mbpp};
pub use python::python;
pub use wordnet::wordnet;

use crate::{Error, Result};
use std::io::Read;
use std::path::Path;

/// The text of a file, unpacked if its name ends in `.gz`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let bytes = std::fs::read(path).map_err(io)?;
    let mut text = String::new();
    match path.extension().is_some_and(|extension| extension == "gz") {
        true => flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text),
        false => bytes.as_slice().read_to_string(&mut text),
    }
    .map_err(io)?;
    Ok(text)
}

pub(crate) fn row_error(path: &Path, line_idx: usize, why: impl ToString) -> Error {
    Error::Row {
        path: path.to_path_buf(),
        line: line_idx + 1,
        why: why.to_string(),
    }
}
