//! The folder of a run.
//!
//! `run.json` says what runs where and `plan.json` what was planned; both are always whole. While a run is on, `groups/`
//! holds a file a group (see [`crate::seal`]). When every group is sealed they become `records.jsonl`, and `groups/` goes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use reports::{Record, read_records};
use serde::Serialize;

use crate::plan_file::{PlanFile, PlannedGroup};
use crate::seal::write_whole;

/// File of records of a complete run.
pub(crate) const RECORDS: &str = "records.jsonl";
/// File of the plan.
pub(crate) const PLAN: &str = "plan.json";
/// File that describes the run.
pub(crate) const RUN: &str = "run.json";
const GROUPS: &str = "groups";

/// A run's folder.
#[derive(Clone, Debug)]
pub(crate) struct RunFolder {
    dir: PathBuf,
}

/// Finds out whether a run may be written to `dir`, and leaves nothing behind.
///
/// # Errors
/// If `dir` holds a run, is no folder, or cannot be written to.
pub(crate) fn check(dir: &Path) -> Result<()> {
    for name in [RECORDS, PLAN, RUN] {
        if dir.join(name).exists() {
            bail!(
                "--out {}: holds the {name} of an earlier run; choose another folder, or go on with it by --resume {0}",
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

/// The records of a run's folder: `records.jsonl`, or of a run that is not complete the groups that are sealed.
/// `None` if the folder holds neither.
///
/// # Errors
/// If a file cannot be read or a line is no record.
pub(crate) fn stored_records(dir: &Path) -> Result<Option<Vec<Record>>> {
    let whole = dir.join(RECORDS);
    if whole.is_file() {
        return Ok(Some(read_records(&whole)?));
    }
    if !dir.join(GROUPS).is_dir() {
        return Ok(None);
    }
    let file = PlanFile::read(&dir.join(PLAN))?;
    let all: Vec<usize> = (0..file.groups.len()).collect();
    Ok(Some(RunFolder::at(dir).records(&file, &all)?))
}

/// Records of the sealed groups of a run that may not be complete.
///
/// # Errors
/// If a file cannot be read or a line is no record.
pub(crate) fn sealed_only(dir: &Path) -> Result<Vec<Record>> {
    let whole = dir.join(RECORDS);
    if whole.is_file() {
        return Ok(read_records(&whole)?);
    }
    let (file, folder) = (PlanFile::read(&dir.join(PLAN))?, RunFolder::at(dir));
    let mut records = Vec::new();
    for (idx, group) in file.groups.iter().enumerate() {
        records.extend(folder.sealed_records(idx, group)?.into_iter().flatten());
    }
    Ok(records)
}

impl RunFolder {
    /// The folder, whether it is there or not.
    pub(crate) fn at(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Makes the folder and its files; `run` describes the run so far. `plan.json` is the last: a folder that has it
    /// can be resumed.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn create(&self, run: &impl Serialize, plan: &PlanFile) -> Result<()> {
        let refused = || format!("--out {}: cannot be written to", self.dir.display());
        fs::create_dir_all(self.dir.join(GROUPS)).with_context(refused)?;
        self.describe(run)?;
        write_whole(&self.dir.join(PLAN), &plan.text())
    }

    /// Replaces `run.json`; a reader sees the old or the new one, never a part.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn describe(&self, run: &impl Serialize) -> Result<()> {
        write_whole(
            &self.dir.join(RUN),
            &(serde_json::to_string_pretty(run)? + "\n"),
        )
    }

    /// The plan and the description of a run that was begun here; `None` if none was.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub(crate) fn begun(&self) -> Result<Option<(PlanFile, serde_json::Value)>> {
        let (plan, run) = (self.dir.join(PLAN), self.dir.join(RUN));
        if !plan.is_file() || !run.is_file() {
            return Ok(None);
        }
        let what = || format!("{}: cannot be read", run.display());
        let text = fs::read_to_string(&run).with_context(what)?;
        let info = serde_json::from_str(&text).with_context(what)?;
        Ok(Some((PlanFile::read(&plan)?, info)))
    }

    /// Whether all records are assembled.
    pub(crate) fn is_complete(&self) -> bool {
        self.dir.join(RECORDS).is_file()
    }

    /// A file of the group that is `idx`-th in the plan.
    fn file(&self, idx: usize, group: &PlannedGroup, ending: &str) -> PathBuf {
        let name = format!("{idx:05}-{}.{ending}", &group.id[..12]);
        self.dir.join(GROUPS).join(name)
    }

    /// The group's lease.
    pub(crate) fn lease(&self, idx: usize, group: &PlannedGroup) -> PathBuf {
        self.file(idx, group, "lease")
    }

    /// The group's file while it is measured.
    pub(crate) fn part(&self, idx: usize, group: &PlannedGroup) -> PathBuf {
        self.file(idx, group, "part")
    }

    /// The group's file when it is complete.
    pub(crate) fn sealed(&self, idx: usize, group: &PlannedGroup) -> PathBuf {
        self.file(idx, group, "jsonl")
    }

    /// Why the group could not be measured, as records; resuming tries it again.
    pub(crate) fn failed(&self, idx: usize, group: &PlannedGroup) -> PathBuf {
        self.file(idx, group, "failed.jsonl")
    }

    /// Records of a sealed group, `None` if it is not sealed.
    ///
    /// # Errors
    /// If the file cannot be read or a line is no record.
    pub(crate) fn sealed_records(
        &self,
        idx: usize,
        group: &PlannedGroup,
    ) -> Result<Option<Vec<Record>>> {
        let path = self.sealed(idx, group);
        path.is_file()
            .then(|| read_records(&path))
            .transpose()
            .map_err(Into::into)
    }

    /// Records of a run: all of a complete one, of others those of sealed groups, and of failed groups why.
    ///
    /// # Errors
    /// If a file cannot be read or a line is no record.
    pub(crate) fn records(&self, plan: &PlanFile, mine: &[usize]) -> Result<Vec<Record>> {
        if self.is_complete() {
            return Ok(read_records(&self.dir.join(RECORDS))?);
        }
        let mut records = Vec::new();
        for idx in mine {
            let group = &plan.groups[*idx];
            let failed = self.failed(*idx, group);
            match self.sealed_records(*idx, group)? {
                Some(its) => records.extend(its),
                None if failed.is_file() => records.extend(read_records(&failed)?),
                None => {}
            }
        }
        Ok(records)
    }

    /// Stores a group's failure.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn fail(&self, idx: usize, group: &PlannedGroup, records: &[Record]) -> Result<()> {
        write_whole(&self.failed(idx, group), &lines(records)?)
    }

    /// Forgets a group's failure.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn forget_failure(&self, idx: usize, group: &PlannedGroup) -> Result<()> {
        let path = self.failed(idx, group);
        match fs::remove_file(&path) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(err).with_context(|| format!("{}: cannot be removed", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Makes `records.jsonl` of the sealed groups `mine` and of `more` behind them.
    ///
    /// # Errors
    /// If a group is not sealed or the system refuses.
    pub(crate) fn assemble(&self, plan: &PlanFile, mine: &[usize], more: &[Record]) -> Result<()> {
        let mut text = String::new();
        for idx in mine {
            let path = self.sealed(*idx, &plan.groups[*idx]);
            let its = fs::read_to_string(&path);
            text.push_str(&its.with_context(|| format!("{}: cannot be read", path.display()))?);
        }
        text.push_str(&lines(more)?);
        write_whole(&self.dir.join(RECORDS), &text)
    }

    /// Makes `records.jsonl` of records.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn store(&self, records: &[Record]) -> Result<()> {
        ensure!(
            !self.is_complete(),
            "{}: holds records already",
            self.dir.display()
        );
        write_whole(&self.dir.join(RECORDS), &lines(records)?)
    }

    /// Removes the files of groups, which `records.jsonl` has taken in.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn tidy(&self) -> Result<()> {
        let groups = self.dir.join(GROUPS);
        match fs::remove_dir_all(&groups) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(err).with_context(|| format!("{}: cannot be removed", groups.display()))
            }
            _ => Ok(()),
        }
    }
}

fn lines(records: &[Record]) -> Result<String> {
    let mut text = String::new();
    for record in records {
        text.push_str(&serde_json::to_string(record)?);
        text.push('\n');
    }
    Ok(text)
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
        RunFolder::at(dir.path()).describe(&"a run").unwrap();
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
        let folder = RunFolder::at(dir.path());
        folder.describe(&"first").unwrap();
        folder.describe(&"second").unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join(RUN)).unwrap(),
            "\"second\"\n"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
