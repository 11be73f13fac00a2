use std::io;
use std::path::{Path, PathBuf};

use crate::record::{Record, other_version};

/// Why records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read.
    #[error("{path:?}: cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line is no record.
    #[error("{path:?} line {line}: {why}")]
    Line {
        /// The file.
        path: PathBuf,
        /// 1-based line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// Reads a `records.jsonl`.
///
/// # Errors
/// [`StoreError::Read`], or those of [`parse_records`].
pub fn read_records(path: &Path) -> Result<Vec<Record>, StoreError> {
    parse_records(&read(path)?, path)
}

/// Reads a `records.jsonl` whose records may contradict themselves, as a gate does that reports those.
///
/// # Errors
/// [`StoreError::Read`]; [`StoreError::Line`] at the first line that is no record.
pub fn read_records_unchecked(path: &Path) -> Result<Vec<Record>, StoreError> {
    parse(&read(path)?, path, |_| None)
}

fn read(path: &Path) -> Result<String, StoreError> {
    std::fs::read_to_string(path).map_err(|source| StoreError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Reads JSON lines; `path` only names them in errors. Empty lines are passed over.
///
/// # Errors
/// [`StoreError::Line`] at the first line that is no record or contradicts itself.
pub fn parse_records(text: &str, path: &Path) -> Result<Vec<Record>, StoreError> {
    parse(text, path, Record::fault)
}

fn parse(
    text: &str,
    path: &Path,
    fault: fn(&Record) -> Option<String>,
) -> Result<Vec<Record>, StoreError> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(line_idx, line)| {
            let broken = |why| StoreError::Line {
                path: path.to_owned(),
                line: line_idx + 1,
                why,
            };
            let record: Record = serde_json::from_str(line).map_err(|err| {
                // A record of another version lacks or has keys; its version is the reason a reader can use.
                let version = serde_json::from_str::<Versioned>(line).ok();
                let other = version.and_then(|v| other_version(v.schema));
                broken(other.unwrap_or_else(|| err.to_string()))
            })?;
            let fault = other_version(record.schema).or_else(|| fault(&record));
            fault.map_or(Ok(record), |why| Err(broken(why)))
        })
        .collect()
}

/// The part of a record that every version has.
#[derive(serde::Deserialize)]
struct Versioned {
    schema: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{answer, record};

    fn line(method: &str) -> String {
        serde_json::to_string(&record(method, "p1", answer(&[(2, 3)]))).unwrap()
    }

    fn message(text: &str) -> String {
        parse_records(text, Path::new("runs/a/records.jsonl"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn every_line_becomes_a_record() {
        let text = format!("{}\n\n{}\n", line("vanilla"), line("dflash"));
        let got = parse_records(&text, Path::new("x")).unwrap();
        let methods: Vec<&str> = got.iter().map(|r| r.cell.method.as_str()).collect();
        assert_eq!(methods, ["vanilla", "dflash"]);
    }

    #[test]
    fn a_bad_line_is_named_with_its_file_and_number() {
        let unknown = line("dflash").replacen("\"run\"", "\"speed\":3,\"run\"", 1);
        let text = format!("{}\n{unknown}\n", line("vanilla"));
        let got = message(&text);
        assert!(
            got.starts_with("\"runs/a/records.jsonl\" line 2: unknown field `speed`"),
            "{got}"
        );
        let torn = &line("dflash")[..40];
        assert!(message(torn).contains("line 1: EOF while parsing"));
        let wrong =
            line("dflash").replacen("\"n_tokens\":4,\"tokens", "\"n_tokens\":5,\"tokens", 1);
        assert!(message(&wrong).contains("line 1: n_tokens is 5"));
        let as_written = parse(&wrong, Path::new("x"), |_| None).unwrap();
        assert!(as_written[0].fault().is_some());
        let old = wrong.replacen("\"schema\":5", "\"schema\":3", 1);
        let err = parse(&old, Path::new("x"), |_| None).unwrap_err();
        assert!(err.to_string().contains("schema is 3"), "{err}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let err = read_records(Path::new("/nowhere/records.jsonl")).unwrap_err();
        let text = err.to_string();
        assert!(text.starts_with("\"/nowhere/records.jsonl\": cannot be read"));
    }
}
