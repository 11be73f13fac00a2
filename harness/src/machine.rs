//! What a reader must know about where a run happened.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The machine and its state.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// Model name of the processor.
    pub(crate) cpu: String,
    /// Cores the system offers this process.
    pub(crate) cores: usize,
    /// Threads the run computes with.
    pub(crate) threads: usize,
    /// One-minute load average when the run began; a busy machine makes times worthless.
    pub(crate) load_average: Option<String>,
}

impl Machine {
    /// Looks at `/proc`; what it does not find is `unknown`.
    pub(crate) fn look() -> Self {
        Self {
            cpu: cpu_name().unwrap_or_else(|| "unknown processor".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads: rayon::current_num_threads(),
            load_average: load_average(),
        }
    }

    /// For the foot of a table.
    pub(crate) fn line(&self) -> String {
        let load = self.load_average.as_deref().unwrap_or("unknown");
        format!(
            "{}, {} cores, {} threads, load average at start {load}, f32 on the CPU",
            self.cpu, self.cores, self.threads
        )
    }
}

fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// One-minute load average, as the system words it.
pub(crate) fn load_average() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

/// Commit of the source folder this binary was built from, if that folder is still there; the folder may have
/// moved on since the build.
pub(crate) fn source_head() -> Option<String> {
    let git = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join(".git");
    let head = std::fs::read_to_string(git.join("HEAD")).ok()?;
    match head.trim().strip_prefix("ref: ") {
        Some(name) => {
            let hash = std::fs::read_to_string(git.join(name)).ok()?;
            Some(hash.trim().to_owned())
        }
        None => Some(head.trim().to_owned()),
    }
}

/// Seconds and nanoseconds since 1970.
pub(crate) fn now() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or((0, 0), |d| (d.as_secs(), d.subsec_nanos()))
}

/// `20260131-235959`, UTC.
pub(crate) fn timestamp(unix_secs: u64) -> String {
    let (days, secs) = (unix_secs / 86_400, unix_secs % 86_400);
    let (mut year, mut left) = (1970, days);
    while left >= days_in_year(year) {
        left -= days_in_year(year);
        year += 1;
    }
    let mut month = 1;
    while left >= days_in_month(year, month) {
        left -= days_in_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!(
        "{year:04}{month:02}{:02}-{hour:02}{minute:02}{second:02}",
        left + 1
    )
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

fn days_in_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_know_leap_years() {
        // Checked against `date -u -d @N`.
        for (secs, want) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_709_251_199, "20240229-235959"),
            (1_767_225_599, "20251231-235959"),
            (1_795_972_532, "20261129-171532"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(timestamp(secs), want);
        }
    }
}
