//! What this process holds.

/// The most memory the process ever held, in MiB, where the system tells it.
pub(crate) fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.div_ceil(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_peak_is_above_what_is_held_now() {
        let held = vec![1u8; 64 << 20];
        let held_mib = held.iter().filter(|b| **b == 1).count() as u64 >> 20;
        assert!(peak_mib().unwrap() >= held_mib);
    }
}
