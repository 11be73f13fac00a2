//! Threads that help with one piece of work at a time.
//!
//! A step of a small model has some hundred products of 30 to 100 microseconds, one behind the other; waking a sleeping
//! thread for each takes a tenth of that. A helper therefore looks for the next call for a moment before it sleeps. It
//! is never waited for unless it has come: a caller whose helper the machine holds back finishes alone. That keeps the
//! speed of one thread on a busy machine, where a barrier among spinning threads loses nearly all of it.
#![allow(
    unsafe_code,
    reason = "helpers run a closure that the caller's stack holds"
)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a helper looks for the next call: longer than what lies between two products of a step, and no burden when
/// the step is over.
const LOOKED_FOR: Duration = Duration::from_micros(150);
/// Looks between two looks at the clock.
const LOOKS: u32 = 64;
/// Looks for the last helper before the caller gives its core away.
const PATIENCE: u32 = 20_000;

/// Calls `work` on this thread and, at the same time, on up to `threads - 1` helpers, and returns when all that have
/// begun are done. `work` must do its share whoever else comes. While another call is under way, from another thread or
/// from within `work`, there are no helpers.
///
/// # Panics
/// If `work` panics on any thread.
pub(crate) fn together(threads: usize, work: &(dyn Fn() + Sync)) {
    static POOL: OnceLock<Pool> = OnceLock::new();
    let pool = POOL.get_or_init(Pool::default);
    let mut helpers = match pool.helpers.try_lock() {
        Ok(helpers) => helpers,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return work(),
    };
    while helpers.len() + 1 < threads {
        match Helper::start(&pool.shared) {
            Some(helper) => helpers.push(helper),
            // No more threads to be had: fewer will do.
            None => break,
        }
    }
    // What a helper left whose caller panicked too.
    pool.shared.take_panic();
    let limit = helpers.len().min(threads - 1).min(usize::from(u16::MAX));
    // SAFETY: the lock is held and nobody is within a call, so nobody reads the place.
    unsafe { *pool.shared.call.get() = Some(Call::new(work)) };
    pool.shared.open(limit as u64);
    for helper in &helpers[..limit] {
        if helper.asleep.load(Ordering::SeqCst) {
            helper.thread.unpark();
        }
    }
    // Also when `work` panics here: no helper may be left with a borrow that has ended.
    let closing = Closing(&pool.shared);
    work();
    drop(closing);
    let panicked = pool.shared.take_panic();
    drop(helpers);
    if let Some(panicked) = panicked {
        resume_unwind(panicked);
    }
}

#[derive(Default)]
struct Pool {
    shared: Arc<Shared>,
    /// Held during a call.
    helpers: Mutex<Vec<Helper>>,
}

struct Helper {
    thread: Thread,
    asleep: Arc<AtomicBool>,
}

/// The bits of [`Shared::state`]: how many helpers are within the call, how many may be, and the number of the call.
const WITHIN: u64 = 0xFFFF;
const LIMIT: u64 = 0xFFFF << 16;
const NUMBER: u64 = 0xFFFF_FFFF << 32;

#[derive(Default)]
struct Shared {
    state: AtomicU64,
    /// Written by the holder of the lock while nobody is within a call.
    call: UnsafeCell<Option<Call>>,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `call` is read only by helpers that have entered an open call, and written only while none is open or entered.
unsafe impl Sync for Shared {}
// SAFETY: as above; the closure behind the pointer is `Sync`.
unsafe impl Send for Shared {}

/// A borrowed closure whose lifetime [`Closing`] guards.
#[derive(Clone, Copy)]
struct Call(*const (dyn Fn() + Sync));

impl Call {
    fn new(work: &(dyn Fn() + Sync)) -> Self {
        let work: *const (dyn Fn() + Sync + '_) = work;
        // SAFETY: only the lifetime changes; `Closing` ends every use before the borrow ends.
        Self(unsafe {
            std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync)>(work)
        })
    }
}

impl Shared {
    fn open(&self, limit: u64) {
        let number = self.state.load(Ordering::Relaxed) & NUMBER;
        let next = number.wrapping_add(1 << 32) | (limit << 16);
        self.state.store(next, Ordering::SeqCst);
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        let place = self.panicked.lock();
        place.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Lets no helper in any more and waits for those within.
    fn close(&self) {
        self.state.fetch_and(!LIMIT, Ordering::AcqRel);
        let mut looks = 0;
        while self.state.load(Ordering::Acquire) & WITHIN != 0 {
            looks += 1;
            match looks < PATIENCE {
                true => std::hint::spin_loop(),
                false => thread::yield_now(),
            }
        }
    }

    /// Enters the call if it is open and is not the one numbered `last`; returns its number.
    fn enter(&self, last: u64) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        let (within, limit) = (state & WITHIN, (state & LIMIT) >> 16);
        if state & NUMBER == last || within >= limit {
            return None;
        }
        let entered = state + 1;
        self.state
            .compare_exchange(state, entered, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| state & NUMBER)
    }

    fn help(&self, asleep: &AtomicBool) {
        let mut last = 0;
        loop {
            last = self.next(last, asleep);
            // SAFETY: this thread is within the call, which cannot close before it leaves.
            let call = unsafe { *self.call.get() };
            if let Some(Call(work)) = call {
                // SAFETY: as above, so the closure is still borrowed.
                let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)() }));
                if let Err(panicked) = done {
                    let place = self.panicked.lock();
                    *place.unwrap_or_else(PoisonError::into_inner) = Some(panicked);
                }
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a call other than `last` and enters it.
    fn next(&self, last: u64, asleep: &AtomicBool) -> u64 {
        loop {
            let began = Instant::now();
            while began.elapsed() < LOOKED_FOR {
                for _ in 0..LOOKS {
                    if let Some(number) = self.enter(last) {
                        return number;
                    }
                    std::hint::spin_loop();
                }
            }
            asleep.store(true, Ordering::SeqCst);
            // A call that opened before the mark was seen wakes nobody, so it is looked for once more.
            let entered = self.enter(last);
            if entered.is_none() {
                thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
            if let Some(number) = entered {
                return number;
            }
        }
    }
}

/// Closes the call when it goes.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Helper {
    fn start(shared: &Arc<Shared>) -> Option<Self> {
        let asleep = Arc::new(AtomicBool::new(false));
        let (shared, mark) = (shared.clone(), asleep.clone());
        let helper = thread::Builder::new().name("kernels".to_owned());
        let started = helper.spawn(move || shared.help(&mark)).ok()?;
        Some(Self {
            thread: started.thread().clone(),
            asleep,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Takes numbers below `n` until there are none, and returns how often each was taken.
    fn taken(n: usize, threads: usize) -> Vec<usize> {
        let (next, counts) = (AtomicUsize::new(0), (0..n).map(|_| AtomicUsize::new(0)));
        let counts: Vec<AtomicUsize> = counts.collect();
        together(threads, &|| {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                match counts.get(at) {
                    Some(count) => count.fetch_add(1, Ordering::Relaxed),
                    None => return,
                };
            }
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_piece_is_taken_once_however_many_threads_there_are() {
        for call in 0..2000 {
            let threads = 1 + call % 4;
            assert_eq!(taken(call % 17, threads), vec![1; call % 17]);
        }
    }

    #[test]
    fn calls_from_several_threads_and_from_within_a_call_all_end() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        together(3, &|| assert_eq!(taken(5, 3), [1; 5]));
                    }
                });
            }
        });
    }

    #[test]
    fn a_helper_that_sleeps_is_woken() {
        let ran = AtomicUsize::new(0);
        for _ in 0..3 {
            thread::sleep(10 * LOOKED_FOR);
            // Returns only when both have been here, so a helper that sleeps on would hang it.
            let (here, began) = (AtomicUsize::new(0), Instant::now());
            together(2, &|| {
                here.fetch_add(1, Ordering::SeqCst);
                while here.load(Ordering::SeqCst) < 2 && began.elapsed() < Duration::from_secs(5) {
                    thread::yield_now();
                }
            });
            ran.fetch_add(here.into_inner(), Ordering::Relaxed);
        }
        // Another test may hold the helpers during a call, hardly during all three.
        assert!(ran.into_inner() >= 4);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_in_order() {
        for _ in 0..20 {
            let panicked = catch_unwind(|| together(2, &|| panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(taken(9, 2), [1; 9]);
        }
    }
}
