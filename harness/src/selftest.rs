//! `draftbench selftest`: whether this build and this machine are fit to measure with.

mod known;
mod meter;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::assets::Shelf;
use crate::cli::SelftestArgs;
use crate::machine;
use crate::output::{Ending, Verdict, say};
use crate::plan;
use meter::{Overhead, Rig};

/// Most of a round that the harness itself may take.
const MOST_OVERHEAD: f64 = 0.02;
/// Coarsest clock, in nanoseconds: a round of the smallest target takes some hundred thousand.
const MOST_TICK_NS: u64 = 1000;
/// Load average a core above which times say little.
const MOST_LOAD: f64 = 0.5;
/// Tries for each of the machine's limits.
const LIMIT_TRIES: usize = 5;
/// Methods the overhead is measured with.
const METHODS: [&str; 2] = ["vanilla", "dflash"];

/// What was looked at and found.
struct Check {
    what: String,
    /// The figure, with its unit.
    found: String,
    /// What is wrong and what helps.
    wrong: Option<String>,
    /// Whether a finding is about this moment only, and no failure.
    passing: bool,
}

impl Check {
    fn new(what: impl Into<String>, found: impl Into<String>, wrong: Option<String>) -> Self {
        Self {
            what: what.into(),
            found: found.into(),
            wrong,
            passing: false,
        }
    }

    fn fails(&self) -> bool {
        self.wrong.is_some() && !self.passing
    }

    fn line(&self) -> String {
        let word = match (&self.wrong, self.passing) {
            (None, _) => "ok",
            (Some(_), true) => "doubt",
            (Some(_), false) => "WRONG",
        };
        let mut text = format!("{word:<5}  {:<46}  {}\n", self.what, self.found);
        if let Some(wrong) = &self.wrong {
            text.push_str(&format!("       {wrong}\n"));
        }
        text
    }
}

/// Runs every check and prints its finding.
///
/// # Errors
/// If a model inside the binary fails, or the current folder cannot be written to.
pub(crate) fn selftest(args: &SelftestArgs) -> Ending {
    plan::start_threads(&args.machine)?;
    // First, so that bad input is found before anything is printed.
    let shelf = Shelf::new(&args.machine.models())?;
    let rigs = METHODS.map(|method| Ok((method, Rig::load(&args.target, method, &shelf)?)));
    let rigs = rigs.into_iter().collect::<Result<Vec<_>>>()?;
    let mut n_wrong = 0;
    let mut tell = |check: Check| -> Result<()> {
        n_wrong += usize::from(check.fails());
        Ok(say(&check.line())?)
    };
    for check in known::answers()? {
        tell(check)?;
    }
    tell(clock())?;
    tell(load())?;
    if args.limits {
        tell(limits())?;
    }
    let probe_ns = meter::probe_ns();
    for (method, mut rig) in rigs {
        let (overhead, record) = rig.measure()?;
        tell(share(&args.target, method, &overhead, probe_ns))?;
        let recording_ns = meter::recording_ns(&record, Path::new("."))?;
        tell(recording(&overhead, method, recording_ns))?;
    }
    tell(disk(Path::new("."))?)?;
    say(&match n_wrong {
        0 => "pass\n".to_owned(),
        n => format!("{n} wrong\n"),
    })?;
    Ok(match n_wrong {
        0 => Verdict::Fine,
        _ => Verdict::Troubled,
    })
}

fn clock() -> Check {
    const READS: u32 = 200_000;
    let origin = Instant::now();
    let (mut tick, mut last) = (u64::MAX, 0);
    for _ in 0..READS {
        let now = meter::ns_since(origin);
        if now > last {
            tick = tick.min(now - last);
        }
        last = now;
    }
    let read_ns = last as f64 / f64::from(READS);
    let wrong = (tick > MOST_TICK_NS)
        .then(|| format!("phases of a round cannot be told apart above {MOST_TICK_NS} ns"));
    Check::new(
        "clock: smallest step, cost of a read",
        format!("{tick} ns, {read_ns:.0} ns"),
        wrong,
    )
}

/// What all threads together can do at most, which no figure here is held against.
fn limits() -> Check {
    let best = kernels::limits(LIMIT_TRIES);
    Check::new(
        format!("machine, {} threads", rayon::current_num_threads()),
        format!(
            "reads {:.1} GB/s from memory, computes {:.0} GFLOP/s in f32",
            best.read_gb_s, best.gflop_s
        ),
        None,
    )
}

fn load() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let known = machine::load_average().and_then(|text| text.parse::<f64>().ok());
    let wrong = known
        .filter(|load| *load > MOST_LOAD * cores as f64)
        .map(|_| {
            "other work makes times and overheads here say little; stop it and run this again"
                .to_owned()
        });
    let found = known.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"));
    let what = format!("load average before, {cores} cores");
    Check {
        passing: true,
        ..Check::new(what, found, wrong)
    }
}

fn share(target: &str, method: &str, overhead: &Overhead, probe_ns: f64) -> Check {
    let round_ns = overhead.round_ns;
    let whole = (overhead.loop_ns + probe_ns) / round_ns;
    let wrong = (whole > MOST_OVERHEAD).then(|| {
        format!(
            "more than {:.0} % of a round is not the models'; is the machine busy?",
            100.0 * MOST_OVERHEAD
        )
    });
    Check::new(
        format!("{target} {method}: loop and probe, of a round"),
        format!(
            "{:.2} % ({:.1} us loop, {:.2} us probe, of {:.0} us)",
            100.0 * whole,
            overhead.loop_ns / 1e3,
            probe_ns / 1e3,
            round_ns / 1e3
        ),
        wrong,
    )
}

fn recording(overhead: &Overhead, method: &str, recording_ns: f64) -> Check {
    let part = recording_ns / overhead.answer_ns;
    let wrong = (part > MOST_OVERHEAD)
        .then(|| "records are slow to write; run in a folder on a faster disk".to_owned());
    Check::new(
        format!("{method}: writing a record, of an answer"),
        format!(
            "{:.2} % ({:.0} us, outside the measured time)",
            100.0 * part,
            recording_ns / 1e3
        ),
        wrong,
    )
}

/// Time to make some megabytes safe in `dir`.
fn disk(dir: &Path) -> Result<Check> {
    const MIB: usize = 8;
    let path = dir.join(format!(".draftbench-selftest-{}.tmp", std::process::id()));
    let refused = || format!("{}: cannot be written to", dir.display());
    let began = Instant::now();
    let written = (|| {
        let mut file = File::create_new(&path)?;
        file.write_all(&vec![b'x'; MIB << 20])?;
        file.sync_all()
    })();
    let secs = began.elapsed().as_secs_f64();
    // Whatever became of the write.
    let removed = fs::remove_file(&path);
    written.and(removed).with_context(refused)?;
    if secs <= 0.0 {
        bail!("{MIB} MiB were written in no time: the clock stands still");
    }
    let rate = MIB as f64 / secs;
    let wrong = (rate < 1.0).then(|| "sealing a cell will take long on this disk".to_owned());
    Ok(Check::new(
        "disk: written and synced here",
        format!("{rate:.0} MiB/s"),
        wrong,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_is_not_the_models_is_wrong_from_two_percent_on() {
        let overhead = |loop_ns| Overhead {
            round_ns: 100_000.0,
            loop_ns,
            answer_ns: 1e6,
        };
        assert!(share("t", "m", &overhead(1000.0), 900.0).wrong.is_none());
        let check = share("t", "m", &overhead(1200.0), 900.0);
        assert!(check.wrong.is_some() && check.found.starts_with("2.10 %"));
        assert!(check.line().starts_with("WRONG"));
        assert!(recording(&overhead(0.0), "m", 19_000.0).wrong.is_none());
        assert!(recording(&overhead(0.0), "m", 21_000.0).wrong.is_some());
    }

    #[test]
    fn a_disk_check_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk(dir.path()).unwrap().found.ends_with("MiB/s"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(disk(&dir.path().join("missing")).is_err());
    }
}
