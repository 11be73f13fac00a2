//! The step log of a run, a CSV file that a resumed run continues.

use crate::error::{Error, Result};
use crate::progress::StepReport;
use datasets::Domain;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// An open log.
pub(crate) struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Opens the log and drops lines after `step`, which a killed run wrote past its last checkpoint.
    pub(crate) fn open(path: &Path, step: u64) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent))?;
        }
        let old = match path.exists() {
            true => fs::read_to_string(path).map_err(Error::io(path))?,
            false => String::new(),
        };
        let is_kept = |line: &&str| {
            let first = line.split(',').next().and_then(|s| s.parse::<u64>().ok());
            first.is_some_and(|s| s <= step)
        };
        let domains = Domain::ALL.map(|d| format!("held_out_{d}")).join(",");
        let mut text = format!("step,tokens,seconds,tokens_per_sec,lr,loss,{domains}\n");
        for line in old.lines().filter(is_kept) {
            text.push_str(line);
            text.push('\n');
        }
        fs::write(path, text).map_err(Error::io(path))?;
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(Error::io(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    pub(crate) fn step(&mut self, report: &StepReport, held_out: &[(Domain, f64)]) -> Result<()> {
        let domains = Domain::ALL.map(|d| {
            let found = held_out.iter().find(|(domain, _)| *domain == d);
            found.map_or(String::new(), |(_, loss)| format!("{loss:.4}"))
        });
        writeln!(
            self.file,
            "{},{},{:.1},{:.0},{:.6},{:.4},{}",
            report.step,
            report.tokens,
            report.seconds,
            report.tokens_per_sec,
            report.lr,
            report.loss,
            domains.join(",")
        )
        .map_err(Error::io(&self.path))
    }
}
