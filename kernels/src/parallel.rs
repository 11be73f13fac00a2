//! Splitting work over rayon's threads when it is large enough to pay for waking them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many pieces each thread should find, so that a thread that is held up does not hold up the call.
const PIECES_PER_THREAD: usize = 4;

/// Calls `work` on ranges that cover `0..n` once, each but the last a multiple of `grain` long; on more than one thread
/// if the threads are there and `cost_ns`, an estimate for one thread, is worth it.
pub(crate) fn for_ranges(
    n: usize,
    grain: usize,
    cost_ns: usize,
    work: impl Fn(Range<usize>) + Sync,
) {
    let threads = if cost_ns < WORTH_SPLITTING_NS {
        1
    } else {
        rayon::current_num_threads()
    };
    let n_grains = n.div_ceil(grain);
    if threads == 1 || n_grains < 2 {
        return work(0..n);
    }
    let piece = n_grains.div_ceil(threads * PIECES_PER_THREAD) * grain;
    let next = AtomicUsize::new(0);
    let take_pieces = || {
        loop {
            let start = next.fetch_add(piece, Ordering::Relaxed);
            if start >= n {
                return;
            }
            work(start..(start + piece).min(n));
        }
    };
    // The calling thread works too, whether or not it is one of rayon's.
    rayon::in_place_scope(|scope| {
        for _ in 1..threads.min(n_grains) {
            scope.spawn(|_| take_pieces());
        }
        take_pieces();
    });
}

/// Waking a thread and waiting for it costs about 10 microseconds on the development machine.
const WORTH_SPLITTING_NS: usize = 20_000;
