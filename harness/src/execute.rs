//! Answers' code, run in a sandbox that ends with it: a Python of its own, limits, and namespaces where there are any.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

/// Takes what it can from the program before it runs it.
const GUARD: &str = include_str!("../sandbox/guard.py");
/// Wall time of one program.
const WALL: Duration = Duration::from_secs(10);
/// Bytes that are kept of each end of an output; the rest is read and dropped.
const KEPT_BYTES: usize = 32 << 10;
/// Wall time that a pipe may stay open after everybody who could hold it was killed.
const DRAIN: Duration = Duration::from_secs(1);
/// The variable by which a sandbox's processes are known.
const MARK: &str = "DRAFTBENCH_ANSWER";
/// The oldest Python that has audit hooks.
const MIN_PYTHON: (u32, u32) = (3, 8);

/// How strong a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// Own user, mount, network and process namespaces with all files read-only, and all that is below.
    Namespaces,
    /// Limits of memory, time, file size and processes, and a hook in Python that refuses the rest.
    LimitsOnly,
}

impl Level {
    /// What the guard calls it.
    fn arg(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::LimitsOnly => "limits",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespaces => "namespaces (no network, files read-only) and limits",
            Self::LimitsOnly => "limits only (no namespaces on this machine)",
        })
    }
}

/// Runs programs, one at a time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sandbox {
    /// The interpreter itself, not a script that starts it.
    python: PathBuf,
    version: String,
    /// How strong it is.
    #[serde(rename = "sandbox")]
    pub(crate) level: Level,
    /// Why it is no stronger.
    #[serde(skip_serializing_if = "Option::is_none")]
    weakness: Option<String>,
    #[serde(skip)]
    wall: Duration,
    /// Where folders of programs are made.
    #[serde(skip)]
    places: PathBuf,
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (python, version, level) = (self.python.display(), &self.version, self.level);
        write!(f, "Python {version} ({python}), sandbox: {level}")
    }
}

impl Sandbox {
    /// Finds Python and the strongest sandbox that works on this machine, by running a program in it.
    ///
    /// # Errors
    /// If there is no Python 3, or no sandbox works; the message begins with the flag that asked.
    pub(crate) fn open() -> Result<Self> {
        let (python, version) = python().context("--execute-code")?;
        let mut sandbox = Self {
            python,
            version,
            level: Level::Namespaces,
            weakness: None,
            wall: WALL,
            places: std::path::absolute(std::env::temp_dir()).context("TMPDIR")?,
        };
        let Err(weakness) = sandbox.probe() else {
            return Ok(sandbox);
        };
        sandbox.level = Level::LimitsOnly;
        sandbox.weakness = Some(crate::chain(&weakness));
        sandbox.probe().with_context(|| {
            let python = sandbox.python.display();
            format!(
                "--execute-code: {python} cannot be confined; leave the flag out on this machine"
            )
        })?;
        Ok(sandbox)
    }

    /// Whether a program gives its proof, which its source is made with, in time and as the last it says.
    ///
    /// # Errors
    /// If the sandbox, and not the program, failed.
    pub(crate) fn passes(&self, source: impl Fn(&str) -> String) -> Result<bool> {
        let proof = secret();
        Ok(self.run(&source(&proof))?.proves(&proof))
    }

    /// Whether the sandbox holds what its level says.
    fn probe(&self) -> Result<()> {
        // access() knows of a mount that is read-only; a write would be refused by the hook and show nothing.
        let check = match self.level {
            Level::Namespaces => {
                "import os\nassert os.getpid() == 1\nassert not os.access('..', os.W_OK)\n"
            }
            Level::LimitsOnly => "",
        };
        let proof = secret();
        let ran = self.run(&format!("{check}print('{proof}')\n"))?;
        ensure!(ran.proves(&proof), "a first program failed: {}", ran.told());
        Ok(())
    }

    /// Runs a program in a folder of its own, and ends everything that it started.
    fn run(&self, source: &str) -> Result<Ran> {
        let home = tempfile::Builder::new()
            .prefix("draftbench-")
            .tempdir_in(&self.places);
        let home = home.with_context(|| {
            let places = self.places.display();
            format!("{places}: a temporary folder cannot be made; set TMPDIR to a folder that is writable")
        })?;
        let (program, work) = (home.path().join("program.py"), home.path().join("work"));
        fs::write(&program, source)
            .and_then(|()| fs::create_dir(&work))
            .with_context(|| format!("{}: cannot be written", home.path().display()))?;
        let (ready, mark) = (secret(), secret());
        // Not -I, which would shuffle hashes anew each time: an answer that prints a set would change its mind. The
        // environment is empty, so nothing is left of what -I keeps out.
        let mut child = Command::new(&self.python)
            .args(["-s", "-S", "-B", "-X", "utf8", "-c", GUARD])
            .args([self.level.arg(), &ready])
            .arg(&program)
            .env_clear()
            .envs([("PYTHONHASHSEED", "0"), (MARK, &mark)])
            .current_dir(&work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("{}: cannot be started", self.python.display()))?;
        let deadline = Instant::now() + self.wall;
        let out = drain(child.stdout.take().context("stdout is piped")?);
        let err = drain(child.stderr.take().context("stderr is piped")?);
        let (out, err) = (Waited::until(out, deadline), Waited::until(err, deadline));
        let in_time = matches!((&out, &err), (Waited::Done(_), Waited::Done(_)));
        // Before the child is waited for, since its number is free for others afterwards.
        kill_group(child.id())?;
        let status = child.wait().context("a program cannot be waited for")?;
        kill_marked(&mark);
        let ran = Ran {
            out: out.rest(),
            err: err.rest(),
            ready,
            status,
            in_time,
        };
        ensure!(
            ran.out.starts_with(&ran.ready),
            "the sandbox failed: {}",
            ran.told()
        );
        home.close()
            .context("the folder of a program cannot be removed")?;
        Ok(ran)
    }
}

/// What a program did.
#[derive(Debug)]
struct Ran {
    out: Output,
    err: Output,
    /// The first line, if the guard did its work.
    ready: String,
    status: ExitStatus,
    in_time: bool,
}

impl Ran {
    fn proves(&self, proof: &str) -> bool {
        let proof = format!("\n{proof}\n");
        self.in_time && self.status.success() && self.out.ends_with(&proof)
    }

    /// Its last words, or how it ended.
    fn told(&self) -> String {
        let text = String::from_utf8_lossy(self.err.end());
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        match (last, self.in_time) {
            (Some(line), _) => line.trim().to_owned(),
            (None, true) => self.status.to_string(),
            (None, false) => "it did not end in time".to_owned(),
        }
    }
}

/// Both ends of what was written to a pipe.
#[derive(Debug, Default)]
struct Output {
    first: Vec<u8>,
    /// What follows `first`, its end only.
    last: Vec<u8>,
}

impl Output {
    fn add(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT_BYTES - self.first.len()));
        self.first.extend_from_slice(first);
        self.last.extend_from_slice(rest);
        let surplus = self.last.len().saturating_sub(KEPT_BYTES);
        self.last.drain(..surplus);
    }

    fn starts_with(&self, line: &str) -> bool {
        self.first.starts_with(format!("{line}\n").as_bytes())
    }

    fn ends_with(&self, text: &str) -> bool {
        let both = [self.first.as_slice(), &self.last].concat();
        both.ends_with(text.as_bytes())
    }

    fn end(&self) -> &[u8] {
        if self.last.is_empty() {
            &self.first
        } else {
            &self.last
        }
    }
}

/// Reads a pipe to its end on a thread of its own, so that no writer has to wait.
fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<Output> {
    let (done, output) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Output::default();
        let mut buffer = [0; 8 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(n) if n > 0 => kept.add(&buffer[..n]),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        // Nobody listens if the program was given up.
        drop(done.send(kept));
    });
    output
}

/// A pipe that was waited for.
enum Waited {
    Done(Output),
    Open(Receiver<Output>),
}

impl Waited {
    fn until(pipe: Receiver<Output>, deadline: Instant) -> Self {
        match pipe.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(output) => Self::Done(output),
            Err(_) => Self::Open(pipe),
        }
    }

    /// What was read once the writers are dead; nothing of a pipe that somebody still holds.
    fn rest(self) -> Output {
        match self {
            Self::Done(output) => output,
            Self::Open(pipe) => pipe.recv_timeout(DRAIN).unwrap_or_default(),
        }
    }
}

/// A text that nobody can guess.
fn secret() -> String {
    let number = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", number(), number())
}

/// Kills a process group whose leader was not waited for yet. Done by the shell, since the system's own call is unsafe.
fn kill_group(leader: u32) -> Result<()> {
    kill(&format!("-{leader}"))
}

fn kill(whom: &str) -> Result<()> {
    let mut shell = Command::new("/bin/sh");
    let shell = shell
        .args(["-c", "kill -KILL \"$0\"", whom])
        .stderr(Stdio::null());
    // It fails where nobody is left.
    shell.status().context("/bin/sh: cannot be started")?;
    Ok(())
}

/// Kills processes that left the group of a program: those whose environment has its mark. Looked for again until there
/// is none, since they may start others meanwhile.
fn kill_marked(mark: &str) {
    let mark = format!("{MARK}={mark}");
    for _ in 0..16 {
        let marked = marked(&mark);
        if marked.is_empty() {
            return;
        }
        for process in marked {
            // One that is gone by now is none to complain of.
            kill(&process).unwrap_or_default();
        }
    }
}

/// Numbers of the processes that have a variable; none where the system does not tell.
fn marked(variable: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let has_it = |process: &fs::DirEntry| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|one| one == variable.as_bytes())
    };
    let number = |process: fs::DirEntry| process.file_name().into_string().ok();
    let is_number = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    let marked = processes.filter(has_it).filter_map(number);
    marked.filter(is_number).collect()
}

/// The interpreter behind `python3` on PATH, and its version.
fn python() -> Result<(PathBuf, String)> {
    let ask = "import sys; print(*sys.version_info[:3], sys.executable, sep='\\n')";
    let told = Command::new("python3").args(["-S", "-c", ask]).output();
    let told =
        told.context("python3 cannot be started; put a Python 3 on PATH or leave the flag out")?;
    let text = String::from_utf8_lossy(&told.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let [major, minor, patch, path] = lines[..] else {
        bail!("python3 did not say what it is; put a Python 3 on PATH or leave the flag out");
    };
    let (min_major, min_minor) = MIN_PYTHON;
    let version = (major.parse().unwrap_or(0), minor.parse().unwrap_or(0));
    ensure!(
        version >= MIN_PYTHON && Path::new(path).is_absolute(),
        "python3 is {path:?}, version {major}.{minor}; put Python {min_major}.{min_minor} or newer on PATH or leave the flag out"
    );
    Ok((PathBuf::from(path), format!("{major}.{minor}.{patch}")))
}

#[cfg(test)]
mod tests;
