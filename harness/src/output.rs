//! The one place that writes to standard output.

use std::io::{self, Write as _};

use anyhow::Result;

/// Writes text as it is and flushes.
///
/// # Errors
/// If standard output is closed; [`is_closed_pipe`] tells a reader that has seen enough.
pub(crate) fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether an error is only a reader, such as `head`, that went away.
pub(crate) fn is_closed_pipe(err: &anyhow::Error) -> bool {
    err.chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// How a command ended when nothing stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every cell has its answers and every text is vanilla's.
    Fine,
    /// A cell failed or a text differs.
    Troubled,
    /// What a gate said.
    Gate(reports::gate::Verdict),
    /// The user stopped it; what is complete is sealed.
    Interrupted,
}

/// What a command gives back.
pub(crate) type Ending = Result<Verdict>;
