//! Open loop: requests that come at times fixed in advance, whatever the engine does.

use std::thread;
use std::time::{Duration, Instant};

use decode::{Arrivals, Draws};

/// The end of a wait that is spent looking at the clock, since a sleep may be too long by as much.
const WATCHED: Duration = Duration::from_millis(1);

/// Moments from a batch's begin at which `n` requests come, rising: gaps drawn from the exponential law of mean
/// `1 / per_sec`, the first before the first request. A function of seed and stream, so every arm has the same.
pub(crate) fn poisson(n: usize, per_sec: f64, seed: u64, stream: u64) -> Vec<u64> {
    let mut draws = Draws::new(seed, STREAM | stream);
    let mut at = 0.0;
    let mut next = || {
        // 1 - u is never 0.
        at -= (1.0 - draws.uniform()).ln() / per_sec;
        (at * 1e9) as u64
    };
    (0..n).map(|_| next()).collect()
}

/// A wait is cut into such parts, between which the user may stop it.
const PART: Duration = Duration::from_millis(50);

/// Stream of arrivals; those of requests have no such bit, so that no draw is used twice.
const STREAM: u64 = 1 << 63;

/// Lets requests in when their time has come.
pub(crate) struct Timetable<'a> {
    /// The batch's begin.
    pub(crate) origin: Instant,
    /// When each request comes, in nanoseconds from there, rising.
    pub(crate) due_ns: &'a [u64],
    /// Whether the user wants no more answers; the next request then does not come, which ends the batch.
    pub(crate) is_stopped: &'a dyn Fn() -> bool,
}

impl Arrivals for Timetable<'_> {
    fn arrived(&mut self, taken: usize, idle: bool) -> usize {
        if let Some(due_ns) = self.due_ns.get(taken).filter(|_| idle) {
            self.wait_until(self.origin + Duration::from_nanos(*due_ns));
            if (self.is_stopped)() {
                return taken;
            }
        }
        let now = self.origin.elapsed().as_nanos();
        self.due_ns.partition_point(|due| u128::from(*due) <= now)
    }
}

impl Timetable<'_> {
    fn wait_until(&self, moment: Instant) {
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            let asleep = left.saturating_sub(WATCHED).min(PART);
            if asleep.is_zero() || (self.is_stopped)() {
                break;
            }
            thread::sleep(asleep);
        }
        while Instant::now() < moment && !(self.is_stopped)() {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_follow_the_exponential_law_and_depend_on_seed_and_stream_alone() {
        let n = 20_000;
        let due = poisson(n, 4.0, 1, 2);
        assert_eq!(due, poisson(n, 4.0, 1, 2));
        assert_ne!(due, poisson(n, 4.0, 1, 3));
        assert_ne!(due, poisson(n, 4.0, 2, 2));
        assert!(due.is_sorted());
        let gaps: Vec<f64> = std::iter::once(due[0])
            .chain(due.windows(2).map(|w| w[1] - w[0]))
            .map(|ns| ns as f64 / 1e9)
            .collect();
        // Mean 1/4 with a standard error of 1/4/sqrt(n); P(gap > 1/4) = 1/e with one of 0.0034.
        let mean = gaps.iter().sum::<f64>() / n as f64;
        assert!(
            (mean - 0.25).abs() < 4.0 * 0.25 / (n as f64).sqrt(),
            "{mean}"
        );
        let long = gaps.iter().filter(|g| **g > 0.25).count() as f64 / n as f64;
        assert!((long - (-1f64).exp()).abs() < 4.0 * 0.0034, "{long}");
    }

    #[test]
    fn an_idle_engine_waits_for_the_next_request_and_a_busy_one_does_not() {
        let origin = Instant::now();
        let far = u64::MAX / 2;
        let mut table = Timetable {
            origin,
            due_ns: &[0, 3_000_000, far],
            is_stopped: &|| false,
        };
        assert!((1..=2).contains(&table.arrived(0, false)));
        assert_eq!(table.arrived(1, true), 2);
        assert!(origin.elapsed() >= Duration::from_millis(3));
        assert_eq!(table.arrived(2, false), 2);
        table.is_stopped = &|| true;
        assert_eq!(table.arrived(2, true), 2, "nobody waits for it any more");
    }
}
