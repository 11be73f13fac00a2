//! `draftbench compare`: what differs between runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use reports::RunData;

use crate::cli::CompareArgs;
use crate::output::{Ending, Verdict, say};
use crate::saved;

/// Holds all runs but the first against the first.
///
/// # Errors
/// If a run cannot be read or a file cannot be written.
pub(crate) fn compare(args: &CompareArgs) -> Ending {
    let places: Vec<&PathBuf> = [&args.reference].into_iter().chain(&args.runs).collect();
    let runs: Vec<RunData> = places
        .iter()
        .map(|place| saved::read(place))
        .collect::<Result<_>>()?;
    let comparison = reports::compare(&runs);
    for (flag, path, text) in [
        ("--json", &args.json, comparison.json()),
        ("--markdown", &args.markdown, comparison.markdown()),
    ] {
        if let Some(path) = path {
            write(flag, path, &text)?;
        }
    }
    say(&comparison.text())?;
    let is_pair = comparison.others.iter().all(|v| v.incomparable.is_none());
    Ok(match is_pair {
        true => Verdict::Fine,
        false => Verdict::Gate(reports::gate::Verdict::Incomparable),
    })
}

/// Writes what a flag asks for.
///
/// # Errors
/// If the system refuses.
pub(crate) fn write(flag: &str, path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{flag} {}: cannot be written", path.display()))
}
