//! Ctrl-C: the first asks the run to stop after the batch that is being answered, the second ends it at once. Both lose nothing that
//! was sealed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code of an interrupted run.
pub(crate) const EXIT_CODE: u8 = 130;

/// Whether the user wants to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = Self::default();
        let flag = interrupt.clone();
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).context("Ctrl-C cannot be listened for")?;
        let listen = move || {
            for _ in signals.forever() {
                if flag.0.swap(true, Ordering::SeqCst) {
                    std::process::exit(EXIT_CODE.into());
                }
                eprintln!(
                    "stopping when the method at work has answered its batch; once more to stop at once"
                );
            }
        };
        let thread = std::thread::Builder::new().spawn(listen);
        thread.context("a thread cannot be started")?;
        Ok(interrupt)
    }

    /// Whether it was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
