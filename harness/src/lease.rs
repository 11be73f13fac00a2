//! A lease: the file that says who works on a group, so that two workers never write one group.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::machine;

/// How often a holder says that it lives.
const BEAT: Duration = Duration::from_secs(10);
/// A holder that said nothing for so long is gone.
const SILENCE_SECS: u64 = 120;

/// Who works on a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Holder {
    pid: u32,
    host: String,
    since_unix_secs: u64,
    heartbeat_unix_secs: u64,
}

/// A lease that this process holds until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    path: PathBuf,
    me: Holder,
    /// Dropped first, which ends the heart.
    stop: Option<Sender<()>>,
    heart: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes the lease at `path`; one whose holder is gone is taken over. `what` is how errors name the group.
    ///
    /// # Errors
    /// If somebody holds it, which the error names, or the system refuses.
    pub(crate) fn take(path: &Path, what: &str) -> Result<Self> {
        let now = machine::now().0;
        let me = Holder {
            pid: std::process::id(),
            host: machine::host(),
            since_unix_secs: now,
            heartbeat_unix_secs: now,
        };
        let refused = || format!("{}: cannot be written", path.display());
        // Whoever takes a lease over may find that somebody else was faster; then the new holder is looked at.
        for _ in 0..3 {
            if create(path, &me).with_context(refused)? {
                return Self::keep(path, me);
            }
            check(path, what)?;
            evict(path, &me).with_context(refused)?;
        }
        bail!(
            "{what}: several workers want it at once; start one worker a run folder, or shards with folders of their own"
        )
    }

    fn keep(path: &Path, me: Holder) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (file, mut holder) = (path.to_owned(), me.clone());
        let beat = move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                if !is_held_by(&file, &holder) {
                    return;
                }
                holder.heartbeat_unix_secs = machine::now().0;
                if let Err(err) = replace(&file, &holder) {
                    eprintln!("note: {}: no heartbeat: {err}", file.display());
                }
            }
        };
        let heart = std::thread::Builder::new().spawn(beat);
        Ok(Self {
            path: path.to_owned(),
            me,
            stop: Some(stop),
            heart: Some(heart.context("a thread cannot be started")?),
        })
    }

    /// Whether nobody took it over, as happens to a process that was stopped for minutes.
    pub(crate) fn is_ours(&self) -> bool {
        is_held_by(&self.path, &self.me)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(heart) = self.heart.take() {
            // A heart that panicked has nothing more to tell.
            heart.join().ok();
        }
        if self.is_ours() {
            // If it stays, the next worker finds that this process is gone.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Refuses if the lease at `path` is held by somebody who lives.
///
/// # Errors
/// One that names the holder and what to do.
pub(crate) fn check(path: &Path, what: &str) -> Result<()> {
    let Some(holder) = read(path)? else {
        return Ok(());
    };
    if !holder.is_alive() {
        return Ok(());
    }
    let past = machine::now().0.saturating_sub(holder.heartbeat_unix_secs);
    bail!(
        "{what}: process {} on {} works on it, its last sign of life is {past} s old; wait for it or stop it. If it is gone, the lease runs out {SILENCE_SECS} s after that sign, or remove {}",
        holder.pid,
        holder.host,
        path.display()
    )
}

impl Holder {
    fn is_alive(&self) -> bool {
        let past = machine::now().0.saturating_sub(self.heartbeat_unix_secs);
        past <= SILENCE_SECS && (self.host != machine::host() || machine::is_running(self.pid))
    }

    fn is_same_process(&self, other: &Self) -> bool {
        (self.pid, &self.host, self.since_unix_secs)
            == (other.pid, &other.host, other.since_unix_secs)
    }
}

fn read(path: &Path) -> Result<Option<Holder>> {
    let text = match fs::read_to_string(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("{}: cannot be read", path.display()))?,
    };
    let holder = serde_json::from_str(&text);
    let what = || {
        format!(
            "{}: is no lease; remove it if nobody works here",
            path.display()
        )
    };
    Ok(Some(holder.with_context(what)?))
}

fn is_held_by(path: &Path, holder: &Holder) -> bool {
    let found = read(path).ok().flatten();
    found.is_some_and(|found| found.is_same_process(holder))
}

/// Makes the file unless it is there; it appears with its text in it. Whether it was made.
fn create(path: &Path, holder: &Holder) -> io::Result<bool> {
    let part = beside(path, "new");
    write_synced(&part, holder)?;
    let made = fs::hard_link(&part, path);
    fs::remove_file(&part)?;
    match made {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(err) => Err(err),
    }
}

/// Removes the lease of a holder that is gone. Only one of several workers gets to rename it; if by then it is
/// another's, it goes back.
fn evict(path: &Path, me: &Holder) -> io::Result<()> {
    let aside = beside(path, &format!("old-{}", me.since_unix_secs));
    match fs::rename(path, &aside) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    let is_gone = read(&aside).ok().flatten().is_none_or(|h| !h.is_alive());
    if !is_gone {
        fs::hard_link(&aside, path)?;
    }
    fs::remove_file(&aside)
}

fn replace(path: &Path, holder: &Holder) -> io::Result<()> {
    let part = beside(path, "beat");
    write_synced(&part, holder)?;
    fs::rename(&part, path)
}

fn write_synced(path: &Path, holder: &Holder) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(serde_json::to_string(holder)?.as_bytes())?;
    file.sync_all()
}

/// A name of this process's own.
fn beside(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let host = machine::host();
    path.with_file_name(format!("{name}.{what}-{host}-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(dir: &Path, change: impl Fn(&mut Holder)) -> PathBuf {
        let now = machine::now().0;
        let mut holder = Holder {
            pid: 1,
            host: machine::host(),
            since_unix_secs: now - 500,
            heartbeat_unix_secs: now,
        };
        change(&mut holder);
        let path = dir.join("g.lease");
        fs::write(&path, serde_json::to_string(&holder).unwrap()).unwrap();
        path
    }

    #[test]
    fn a_second_worker_is_told_who_holds_the_group_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("g.lease");
        let lease = Lease::take(&path, "group g").unwrap();
        let error = Lease::take(&path, "group g").unwrap_err().to_string();
        let want = format!("group g: process {} on ", std::process::id());
        assert!(error.starts_with(&want), "{error}");
        assert!(error.contains("wait for it or stop it"), "{error}");
        assert!(lease.is_ours());
        drop(lease);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        Lease::take(&path, "group g").unwrap();
    }

    #[test]
    fn a_lease_is_taken_over_if_its_process_is_dead_or_silent() {
        let dir = tempfile::tempdir().unwrap();
        let other_host = |h: &mut Holder| h.host = "elsewhere".into();
        let path = held(dir.path(), other_host);
        let error = Lease::take(&path, "group g").unwrap_err().to_string();
        assert!(error.contains("process 1 on elsewhere"), "{error}");
        for gone in [
            (|h: &mut Holder| h.pid = u32::MAX) as fn(&mut Holder),
            |h| h.heartbeat_unix_secs -= SILENCE_SECS + 1,
            |h| {
                h.host = "elsewhere".into();
                h.heartbeat_unix_secs -= SILENCE_SECS + 1;
            },
        ] {
            let path = held(dir.path(), gone);
            assert!(Lease::take(&path, "group g").unwrap().is_ours());
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_holder_sees_that_it_was_replaced_and_leaves_the_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("g.lease");
        let lease = Lease::take(&path, "group g").unwrap();
        held(dir.path(), |h| h.host = "elsewhere".into());
        assert!(!lease.is_ours());
        drop(lease);
        assert!(path.exists());
    }
}
