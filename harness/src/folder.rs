//! The folder of a run: `records.jsonl`, grown line by line, and `run.json`, always whole.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use reports::Record;
use serde::Serialize;

/// File of records.
pub(crate) const RECORDS: &str = "records.jsonl";
const RUN: &str = "run.json";

/// A run's folder, open for writing.
#[derive(Debug)]
pub(crate) struct RunFolder {
    dir: PathBuf,
    records: File,
}

/// Finds out whether a run may be written to `dir`, and leaves nothing behind.
///
/// # Errors
/// If `dir` holds a run, is no folder, or cannot be written to.
pub(crate) fn check(dir: &Path) -> Result<()> {
    for name in [RECORDS, RUN] {
        if dir.join(name).exists() {
            bail!(
                "--out {}: holds the {name} of an earlier run; choose another folder",
                dir.display()
            );
        }
    }
    let there = dir
        .ancestors()
        .map(|a| {
            if a.as_os_str().is_empty() {
                Path::new(".")
            } else {
                a
            }
        })
        .find(|a| a.exists())
        .unwrap_or(Path::new("."));
    if !there.is_dir() {
        bail!(
            "--out {}: {} is not a folder",
            dir.display(),
            there.display()
        );
    }
    let trial = there.join(format!(".draftbench-{}.tmp", std::process::id()));
    let written = File::create_new(&trial).and_then(|_| fs::remove_file(&trial));
    written.with_context(|| format!("--out {}: cannot be written to", dir.display()))
}

impl RunFolder {
    /// Makes the folder and its files; `run` describes the run so far.
    ///
    /// # Errors
    /// If the folder holds a run or the system refuses.
    pub(crate) fn create(dir: &Path, run: &impl Serialize) -> Result<Self> {
        let refused = || format!("--out {}: cannot be written to", dir.display());
        fs::create_dir_all(dir).with_context(refused)?;
        let records = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(dir.join(RECORDS))
            .with_context(refused)?;
        let folder = Self {
            dir: dir.to_owned(),
            records,
        };
        folder.describe(run)?;
        Ok(folder)
    }

    /// Replaces `run.json`; a reader sees the old or the new one, never a part.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn describe(&self, run: &impl Serialize) -> Result<()> {
        let (whole, part) = (self.dir.join(RUN), self.dir.join("run.json.tmp"));
        let text = serde_json::to_string_pretty(run)?;
        fs::write(&part, text + "\n")
            .and_then(|()| fs::rename(&part, &whole))
            .with_context(|| format!("{}: cannot be written", whole.display()))
    }

    /// Appends one line, at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn append(&mut self, record: &Record) -> Result<()> {
        let line = serde_json::to_string(record)? + "\n";
        self.records
            .write_all(line.as_bytes())
            .with_context(|| format!("{}: cannot be written", self.records_path().display()))
    }

    /// Where the records are.
    pub(crate) fn records_path(&self) -> PathBuf {
        self.dir.join(RECORDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        check(&dir.path().join("a/b")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_with_a_run_or_under_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        RunFolder::create(dir.path(), &"a run").unwrap();
        let err = check(dir.path()).unwrap_err().to_string();
        assert!(
            err.contains("of an earlier run; choose another folder"),
            "{err}"
        );
        let err = check(&dir.path().join("run.json/x"))
            .unwrap_err()
            .to_string();
        assert!(err.contains("run.json is not a folder"), "{err}");
    }

    #[test]
    fn run_json_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path(), &"first").unwrap();
        folder.describe(&"second").unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join(RUN)).unwrap(),
            "\"second\"\n"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
