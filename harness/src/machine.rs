//! What a reader must know about where a run happened.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The machine and its state.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// Its name in the network.
    pub(crate) host: String,
    /// Model name of the processor.
    pub(crate) cpu: String,
    /// What the processor can do, as the kernel spells it.
    pub(crate) cpu_flags: Vec<String>,
    /// Cores the system offers this process.
    pub(crate) cores: usize,
    /// Threads the run computes with.
    pub(crate) threads: usize,
    /// Memory in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Model names of NVIDIA GPUs, which the engine does not use; `None` without a driver.
    pub(crate) gpu: Option<Vec<String>>,
    /// One-minute load average when the run began; a busy machine makes times worthless.
    pub(crate) load_average: Option<String>,
}

impl Machine {
    /// Looks at `/proc`; what it does not find is `unknown` or absent.
    pub(crate) fn look() -> Self {
        let flags = cpu_info("flags").or_else(|| cpu_info("Features"));
        let flags = flags.unwrap_or_default();
        Self {
            host: host(),
            cpu: cpu_info("model name").unwrap_or_else(|| "unknown processor".into()),
            cpu_flags: flags.split_whitespace().map(str::to_owned).collect(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads: rayon::current_num_threads(),
            memory_bytes: memory_bytes(),
            gpu: gpus(),
            load_average: load_average(),
        }
    }

    /// For the foot of a table; `dtype` is that of weight matrices.
    pub(crate) fn line(&self, dtype: &str) -> String {
        let load = self.load_average.as_deref().unwrap_or("unknown");
        format!(
            "{}, {} cores, {} threads, load average at start {load}, {dtype} on the CPU",
            self.cpu, self.cores, self.threads
        )
    }
}

/// Most memory that this process had, in bytes, where the system tells it (Linux).
pub(crate) fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// The machine's name in the network.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_owned(),
        name => name.to_owned(),
    }
}

/// Whether a process of this machine runs; true where that cannot be known. One that ended and that nobody asked
/// after (a zombie) does not run.
pub(crate) fn is_running(pid: u32) -> bool {
    if !Path::new("/proc/self/stat").exists() {
        return true;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The state is behind the name, which stands in brackets and may hold any character.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    !matches!(state, Some('Z' | 'X'))
}

/// A line of the first processor.
fn cpu_info(key: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// What the NVIDIA driver tells without its library.
fn gpus() -> Option<Vec<String>> {
    let entries = std::fs::read_dir("/proc/driver/nvidia/gpus").ok()?;
    let model = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join("information")).ok()?;
        let line = text.lines().find(|l| l.starts_with("Model:"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let mut names: Vec<String> = entries.flatten().filter_map(model).collect();
    names.sort();
    (!names.is_empty()).then_some(names)
}

/// One-minute load average, as the system words it.
pub(crate) fn load_average() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next().map(str::to_owned)
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
    fn a_process_that_runs_is_told_from_one_that_does_not() {
        assert!(is_running(std::process::id()));
        assert!(!Path::new("/proc/self/stat").exists() || !is_running(u32::MAX));
    }

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
