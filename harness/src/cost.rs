//! `draftbench cost`: what a step of a target costs by its rows, beside what this machine can do at most.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use decode::{Feed, Keep, Slot, Target};
use models::{Decoder, DecoderOptions};
use reports::StepCosts;
use serde::{Deserialize, Serialize};

use crate::arms;
use crate::assets::Shelf;
use crate::cli::CostArgs;
use crate::machine::{self, Machine};
use crate::output::{Ending, Verdict, say};
use crate::plan;

/// Most rows of a step or sequences at once.
const MOST_ROWS: usize = 1024;
/// Tries for each of the machine's limits.
const LIMIT_TRIES: usize = 5;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Work {
    /// So many rows of one sequence, with logits for each: a verify pass.
    Rows(usize),
    /// One row of each of so many sequences: a vanilla step of a batch.
    Sequences(usize),
    /// So many tokens of a new sequence, with logits for the last: a prompt.
    Prompt(usize),
}

/// Times of one kind of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Timed {
    work: Work,
    /// In nanoseconds, in the order in which they were taken.
    times_ns: Vec<u64>,
}

impl Timed {
    fn median_ns(&self) -> u64 {
        let mut times = self.times_ns.clone();
        times.sort_unstable();
        times[times.len() / 2]
    }

    fn least_ns(&self) -> u64 {
        self.times_ns.iter().copied().min().unwrap_or(0)
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
struct Report {
    target: String,
    weights: String,
    dtype: &'static str,
    machine: Machine,
    /// What all threads together read from memory, in 10^9 bytes a second.
    read_gb_s: f64,
    /// What all threads together compute out of registers.
    gflop_s: f64,
    context: usize,
    weights_per_row: usize,
    weight_bytes: usize,
    cache_bytes: usize,
    peak_bytes: Option<u64>,
    timed: Vec<Timed>,
}

/// What is read again of a [`Report`].
#[derive(Debug, Deserialize)]
struct Stored {
    target: String,
    dtype: String,
    context: usize,
    timed: Vec<Timed>,
}

/// Reads the costs of a target's steps from a file that `draftbench cost --json` wrote.
///
/// # Errors
/// If it cannot be read, holds no costs, or those of another target.
pub(crate) fn read(path: &Path, target: &str) -> Result<StepCosts> {
    let place = format!("--cost {}", path.display());
    let text = std::fs::read_to_string(path).with_context(|| format!("{place}: cannot be read"))?;
    let stored: Stored = serde_json::from_str(&text).with_context(|| {
        format!("{place}: holds no costs; write it with `draftbench cost --json FILE`")
    })?;
    let title = models::target(target)?.title;
    ensure!(
        stored.target == title,
        "{place}: holds the costs of {}, not of {title}",
        stored.target
    );
    let mut costs = StepCosts {
        what: format!("{}, behind {} positions", stored.dtype, stored.context),
        ..StepCosts::default()
    };
    for timed in stored.timed.iter().filter(|t| !t.times_ns.is_empty()) {
        match timed.work {
            Work::Rows(n) => costs.rows.push((n, timed.median_ns())),
            Work::Sequences(n) => costs.sequences.push((n, timed.median_ns())),
            Work::Prompt(_) => {}
        }
    }
    Ok(costs)
}

/// Times steps and prints a table.
///
/// # Errors
/// If the target is unknown, its files are missing or wrong, a size is out of range, or the file cannot be written.
pub(crate) fn cost(args: &CostArgs) -> Ending {
    check(args)?;
    plan::start_threads(&args.machine)?;
    let shelf = Shelf::new(&args.machine.models())?;
    let target = arms::target_plan(&args.target, &[], &shelf)?;
    let machine = Machine::look();
    let most = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(1);
    let rows = most(&args.rows);
    let options = DecoderOptions {
        slots: most(&args.sequences),
        capacity: (args.context + rows).max(args.prompt),
        precision: target.precision,
    };
    let mut decoder = Decoder::load(&target.source, options)
        .with_context(|| format!("target {}", target.spec.id))?;
    let limits = kernels::limits(LIMIT_TRIES);
    let timed = measure(&mut decoder, args)?;
    let config = decoder.config();
    let report = Report {
        target: target.spec.title.to_owned(),
        weights: target.source.place(),
        dtype: options.precision.name(),
        machine,
        read_gb_s: limits.read_gb_s,
        gflop_s: limits.gflop_s,
        context: args.context,
        weights_per_row: config.weights_per_row(),
        weight_bytes: decoder.weight_bytes(),
        cache_bytes: decoder.cache().bytes(),
        peak_bytes: machine::peak_bytes(),
        timed,
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("--json {}", path.display()))?;
    }
    say(&report.text())?;
    Ok(Verdict::Fine)
}

fn check(args: &CostArgs) -> Result<()> {
    for (flag, sizes) in [("--rows", &args.rows), ("--sequences", &args.sequences)] {
        let wrong = sizes.iter().find(|n| !(1..=MOST_ROWS).contains(*n));
        if let Some(n) = wrong {
            anyhow::bail!("{flag} {n}: must be 1 to {MOST_ROWS}");
        }
    }
    for (flag, n) in [
        ("--context", args.context),
        ("--prompt", args.prompt),
        ("--repeats", args.repeats),
    ] {
        ensure!(n > 0, "{flag} 0: must be at least 1");
    }
    Ok(())
}

/// Every kind of work once in each repeat, so that a machine that becomes slower does so for all of them.
fn measure(target: &mut dyn Target, args: &CostArgs) -> Result<Vec<Timed>> {
    let works = (args.rows.iter().map(|n| Work::Rows(*n)))
        .chain(args.sequences.iter().map(|n| Work::Sequences(*n)))
        .chain(std::iter::once(Work::Prompt(args.prompt)));
    let timed = works.map(|work| Timed {
        work,
        times_ns: Vec::with_capacity(args.repeats),
    });
    let mut timed: Vec<Timed> = timed.collect();
    let vocab = target.vocab() as u32;
    let text: Vec<u32> = (0..args.context.max(args.prompt).max(MOST_ROWS) as u32)
        .map(|i| i.wrapping_mul(7919) % vocab)
        .collect();
    let n_slots = args.sequences.iter().copied().max().unwrap_or(1);
    for slot in 0..n_slots {
        feed(target, slot, &text[..args.context], Keep::Last)?;
    }
    // One more than counted: the first is a warm-up.
    for repeat in 0..=args.repeats {
        for Timed { work, times_ns } in &mut timed {
            let spent = one(target, *work, args.context, &text)?;
            if repeat > 0 {
                times_ns.push(spent);
            }
        }
    }
    Ok(timed)
}

fn feed(target: &mut dyn Target, slot: usize, tokens: &[u32], logits: Keep) -> Result<()> {
    let feed = Feed {
        slot: Slot(slot),
        tokens,
        parents: None,
        logits,
    };
    target.forward(&[feed], &[])?;
    Ok(())
}

/// Does the work once, puts the sequences back to `context` positions and returns the nanoseconds of the work.
fn one(target: &mut dyn Target, work: Work, context: usize, text: &[u32]) -> Result<u64> {
    let since = |began: Instant| u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    match work {
        Work::Rows(n) => {
            let began = Instant::now();
            feed(target, 0, &text[..n], Keep::All)?;
            let spent = since(began);
            target.keep(Slot(0), context, &[])?;
            Ok(spent)
        }
        Work::Sequences(n) => {
            let feeds: Vec<Feed<'_>> = (0..n)
                .map(|slot| Feed {
                    slot: Slot(slot),
                    tokens: &text[..1],
                    parents: None,
                    logits: Keep::Last,
                })
                .collect();
            let began = Instant::now();
            target.forward(&feeds, &[])?;
            let spent = since(began);
            for slot in 0..n {
                target.keep(Slot(slot), context, &[])?;
            }
            Ok(spent)
        }
        Work::Prompt(n) => {
            target.keep(Slot(0), 0, &[])?;
            let began = Instant::now();
            feed(target, 0, &text[..n], Keep::Last)?;
            let spent = since(began);
            target.keep(Slot(0), 0, &[])?;
            feed(target, 0, &text[..context], Keep::Last)?;
            Ok(spent)
        }
    }
}

impl Report {
    /// Median time of the least of some kind of work, as the unit of the others.
    fn unit_ns(&self, of: impl Fn(Work) -> Option<usize>) -> Option<(usize, u64)> {
        let all = self.timed.iter();
        all.filter_map(|t| Some((of(t.work)?, t.median_ns())))
            .min_by_key(|(n, _)| *n)
    }

    fn text(&self) -> String {
        let mut out = format!(
            "{} ({}), weights {} of {} MB\n{}\nlimits of this machine: reads {:.1} GB/s, computes {:.0} GFLOP/s in f32\n\n",
            self.target,
            self.weights,
            self.dtype,
            self.weight_bytes / 1_000_000,
            self.machine.line(self.dtype),
            self.read_gb_s,
            self.gflop_s
        );
        out += &format!(
            "one step behind {} positions  median ms  least ms   of one row  tokens/s     GB/s  GFLOP/s\n",
            self.context
        );
        let rows = |work| match work {
            Work::Rows(n) => Some(n),
            _ => None,
        };
        let sequences = |work| match work {
            Work::Sequences(n) => Some(n),
            _ => None,
        };
        let (row, sequence) = (self.unit_ns(rows), self.unit_ns(sequences));
        for timed in &self.timed {
            let (name, n, unit) = match timed.work {
                Work::Rows(n) => (format!("{n} rows of one sequence"), n, row),
                Work::Sequences(n) => (format!("{n} sequences, a row each"), n, sequence),
                Work::Prompt(n) => (format!("prompt of {n} tokens"), n, None),
            };
            let ns = timed.median_ns() as f64;
            let cost = unit.map_or_else(String::new, |(least, unit)| {
                format!("{:.2}", ns / (unit as f64 / least as f64))
            });
            out += &format!(
                "{name:<27}  {:>9.2}  {:>8.2}  {cost:>10}  {:>9.1}  {:>7.1}  {:>7.0}\n",
                ns / 1e6,
                timed.least_ns() as f64 / 1e6,
                n as f64 / ns * 1e9,
                self.weight_bytes as f64 / ns,
                2.0 * (self.weights_per_row * n) as f64 / ns
            );
        }
        let peak = self.peak_bytes.map_or("unknown".to_owned(), |bytes| {
            format!("{} MB", bytes / 1_000_000)
        });
        out + &format!(
            "\nGB/s and GFLOP/s are those of the weight matrices alone. Memory: {peak} at the peak, {} MB of it the cache.\n",
            self.cache_bytes / 1_000_000
        )
    }
}
