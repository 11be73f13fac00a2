//! Splitting work over threads when it is large enough to pay for waking them.
#![allow(unsafe_code, reason = "threads write disjoint parts of one slice")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool;

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
    pool::together(threads.min(n_grains), &take_pieces);
}

/// Calls `work` with runs of whole chunks of `values`, each `chunk_len` long but for the last one of all, and with the
/// index of the first chunk of the run; threads as in [`for_ranges`].
pub(crate) fn for_chunks<T: Send>(
    values: &mut [T],
    chunk_len: usize,
    cost_ns: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let (len, start) = (values.len(), MutPtr(values.as_mut_ptr()));
    for_ranges(len.div_ceil(chunk_len), 1, cost_ns, |chunks| {
        let (from, to) = (chunks.start * chunk_len, (chunks.end * chunk_len).min(len));
        // SAFETY: within `values`, which is borrowed for the whole call, and `for_ranges` gives no chunk twice.
        let run = unsafe { std::slice::from_raw_parts_mut(start.at(from), to - from) };
        work(chunks.start, run);
    });
}

/// A pointer through which several threads write, each in a place of its own.
pub(crate) struct MutPtr<T>(pub(crate) *mut T);
// SAFETY: a pointer carries no access by itself; those who write through it keep to places of their own.
unsafe impl<T: Send> Send for MutPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for MutPtr<T> {}

impl<T> Clone for MutPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for MutPtr<T> {}

impl<T> MutPtr<T> {
    /// # Safety
    /// `offset` must be within what the pointer was made from.
    #[inline(always)]
    pub(crate) unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: the caller vouches for the offset.
        unsafe { self.0.add(offset) }
    }
}

/// A helper that is awake comes within a microsecond, one that sleeps within about seven.
const WORTH_SPLITTING_NS: usize = 10_000;
