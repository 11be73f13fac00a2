//! Parts of a batch, each on a thread of its own. With one network for all threads only its matrix products are shared,
//! and nearly half of a step is sums, copies and allocations between them.
//!
//! Gradients are sums over parts, so their last bits depend on how many threads there are.

use crate::error::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::io;
use std::thread;

/// Threads that run parts of a batch. Each is a pool of its own, so that a product inside a part stays on its thread.
pub(crate) struct Workers {
    pools: Vec<ThreadPool>,
}

impl Workers {
    /// As many as rayon has threads.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn new() -> Result<Self> {
        Self::of(rayon::current_num_threads())
    }

    /// `count` of them, at least one.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn of(count: usize) -> Result<Self> {
        let pool = |_| ThreadPoolBuilder::new().num_threads(1).build();
        let pools: std::result::Result<_, _> = (0..count.max(1)).map(pool).collect();
        let pools = pools.map_err(|refused| Error::Threads(io::Error::other(refused)))?;
        Ok(Self { pools })
    }

    /// How many run side by side.
    pub(crate) fn count(&self) -> usize {
        self.pools.len()
    }

    /// Hands `take` what `work` makes of each part, in order. No more results are held than parts run at once.
    ///
    /// # Errors
    /// The first part's that has one; if the system refuses a thread.
    pub(crate) fn run<P: Sync, R: Send>(
        &self,
        parts: &[P],
        work: impl Fn(&P) -> Result<R> + Sync,
        mut take: impl FnMut(R),
    ) -> Result<()> {
        let work = &work;
        for group in parts.chunks(self.pools.len()) {
            let made: Vec<Result<R>> = thread::scope(|scope| {
                let pairs = self.pools.iter().zip(group);
                // All are started before the first is waited for.
                let running: Vec<_> = pairs
                    .map(|(pool, part)| {
                        let run = move || pool.install(|| work(part));
                        thread::Builder::new().spawn_scoped(scope, run)
                    })
                    .collect();
                let finish = running.into_iter().map(|started| {
                    match started.map_err(Error::Threads)?.join() {
                        Ok(result) => result,
                        Err(panic) => std::panic::resume_unwind(panic),
                    }
                });
                finish.collect()
            });
            for result in made {
                take(result?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order_and_share_no_pool() -> Result<()> {
        let workers = Workers::of(3)?;
        let parts: Vec<usize> = (0..7).collect();
        let mut seen = Vec::new();
        let work = |part: &usize| Ok((*part, rayon::current_num_threads()));
        workers.run(&parts, work, |made| seen.push(made))?;
        let wanted: Vec<(usize, usize)> = parts.iter().map(|part| (*part, 1)).collect();
        assert_eq!(seen, wanted);
        Ok(())
    }

    #[test]
    fn the_first_error_is_told() {
        let workers = Workers::of(2).unwrap();
        let fail = |part: &u64| match part {
            0 => Ok(()),
            step => Err(Error::Diverged {
                step: *step,
                loss: 0.0,
            }),
        };
        let error = workers.run(&[0, 4, 2], fail, |()| ()).unwrap_err();
        assert!(matches!(error, Error::Diverged { step: 4, .. }), "{error}");
    }
}
