//! From what was typed to what will be done: every id looked up, every range checked, nothing loaded.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use anyhow::{Context as _, Result, bail, ensure};
use baselines::Method;
use models::{Source, TargetSpec};
use reports::{Cell, SamplingKey, Thinking};

use crate::assets::Shelf;
use crate::cli::{MachineArgs, RunArgs, ThinkingArg};
use crate::engine::{Tokens, passes};
use crate::machine;

/// Most sequences decoded at once.
const MAX_CONCURRENCY: u32 = 64;

/// Most computing threads.
const MAX_THREADS: u32 = 256;
/// Most answers to one prompt.
const MAX_SAMPLES: u32 = 10_000;

/// A run, resolved.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Id of the run.
    pub(crate) run: String,
    /// In the order asked for.
    pub(crate) targets: Vec<TargetPlan>,
    /// In column order, vanilla first.
    pub(crate) methods: Vec<&'static Method>,
    /// In the order asked for.
    pub(crate) suites: Vec<&'static str>,
    /// Sampling, thinking and concurrency, combined.
    pub(crate) settings: Vec<Setting>,
    /// How much of it.
    pub(crate) limits: Limits,
    /// Folder of the run.
    pub(crate) out: PathBuf,
    /// What records hold.
    pub(crate) tokens: Tokens,
    /// What was done to the request that the user should know.
    pub(crate) notes: Vec<String>,
}

/// One target and the drafters that go with it.
#[derive(Debug)]
pub(crate) struct TargetPlan {
    /// The target.
    pub(crate) spec: &'static TargetSpec,
    /// Its files.
    pub(crate) source: Source,
    /// One entry a method of the plan, in its order.
    pub(crate) drafters: Vec<DrafterPlan>,
}

/// What a method gets for one target.
#[derive(Debug)]
pub(crate) enum DrafterPlan {
    /// It can run.
    Ready(&'static Method, Option<Source>),
    /// It cannot; its cells are skipped.
    Skipped(&'static Method, String),
}

/// The axes that change between cells of one target and suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// How tokens are chosen.
    pub(crate) sampling: SamplingKey,
    /// Thinking switch.
    pub(crate) thinking: Thinking,
    /// Sequences at once.
    pub(crate) concurrency: u32,
}

/// How much is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Prompts of a suite; all if absent.
    pub(crate) prompts: Option<usize>,
    /// Answers to a prompt where tokens are sampled.
    pub(crate) samples: u32,
    /// Most tokens of an answer.
    pub(crate) max_new: usize,
    /// Seed of all random streams.
    pub(crate) seed: u64,
}

impl Limits {
    /// Answers to each prompt in this setting.
    pub(crate) fn samples(&self, setting: Setting) -> u32 {
        match setting.sampling {
            SamplingKey::Greedy => 1,
            SamplingKey::Temperature(_) => self.samples,
        }
    }
}

/// Looks up and checks everything that `run` was given.
///
/// # Errors
/// One that names the first id or flag that is wrong.
pub(crate) fn resolve(args: &RunArgs) -> Result<Plan> {
    let shelf = Shelf::new(args.machine.checkpoints.as_deref())?;
    let mut notes = Vec::new();
    let methods = methods(&args.methods, &mut notes)?;
    let targets = unique(&args.targets)
        .into_iter()
        .map(|id| target_plan(id, &methods, &shelf))
        .collect::<Result<Vec<_>>>()?;
    shelf.check_used(targets.iter().flat_map(TargetPlan::sources))?;
    let suites = unique(&args.suites)
        .into_iter()
        .map(suite)
        .collect::<Result<Vec<_>>>()?;
    let settings = settings(args)?;
    if let Some(prompts) = args.prompts {
        at_least_one("--prompts", prompts)?;
    }
    at_least_one("--samples", args.samples)?;
    ensure!(
        args.samples <= MAX_SAMPLES,
        "--samples {}: at most {MAX_SAMPLES}",
        args.samples
    );
    at_least_one("--max-new", args.max_new)?;
    let limits = Limits {
        prompts: args.prompts.map(|n| n as usize),
        samples: args.samples,
        max_new: args.max_new as usize,
        seed: args.seed,
    };
    notes.extend(targets.iter().flat_map(mixed));
    notes.extend(shelf.strangers()?);
    for suite in &suites {
        notes.extend(unreached(suite, &settings, limits)?);
    }
    let run = run_id();
    Ok(Plan {
        out: match &args.out {
            Some(dir) => dir.clone(),
            None => Path::new("runs").join(&run),
        },
        run,
        targets,
        methods,
        suites,
        settings,
        limits,
        tokens: if args.keep_tokens {
            Tokens::Kept
        } else {
            Tokens::Hashed
        },
        notes,
    })
}

/// Refuses a zero.
///
/// # Errors
/// If the flag's value is 0.
pub(crate) fn at_least_one(flag: &str, value: u32) -> Result<()> {
    ensure!(value >= 1, "{flag} 0: must be at least 1");
    Ok(())
}

/// Sets the number of computing threads, once and before anything computes.
///
/// # Errors
/// If `--threads` is 0 or the threads cannot be started.
pub(crate) fn start_threads(args: &MachineArgs) -> Result<()> {
    let Some(threads) = args.threads else {
        return Ok(());
    };
    at_least_one("--threads", threads)?;
    ensure!(
        threads <= MAX_THREADS,
        "--threads {threads}: at most {MAX_THREADS}"
    );
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads as usize)
        .build_global()
        .with_context(|| format!("--threads {threads}: cannot be started"))
}

/// A target, its files and its drafters.
///
/// # Errors
/// If the target is unknown or its files are nowhere.
pub(crate) fn target_plan(
    id: &str,
    methods: &[&'static Method],
    shelf: &Shelf,
) -> Result<TargetPlan> {
    let spec = models::target(id)?;
    let Some(source) = shelf.find(spec.id) else {
        bail!("{}", no_files(spec));
    };
    let drafters = methods
        .iter()
        .map(|method| drafter_plan(spec, method, shelf))
        .collect();
    Ok(TargetPlan {
        spec,
        source,
        drafters,
    })
}

fn no_files(spec: &TargetSpec) -> String {
    match spec.files {
        models::Files::Embedded => format!(
            "target {:?} is not inside this binary; build it with the files in assets/tiny/{}, or name a folder that holds {0}/ with --checkpoints",
            spec.id, spec.id
        ),
        models::Files::Checkpoint { repository } => format!(
            "target {:?} needs files: put those of {repository} into DIR/{} and give --checkpoints DIR",
            spec.id, spec.id
        ),
    }
}

fn drafter_plan(spec: &TargetSpec, method: &'static Method, shelf: &Shelf) -> DrafterPlan {
    let Some(suffix) = method.checkpoint else {
        return DrafterPlan::Ready(method, None);
    };
    let folder = format!("{}-{suffix}", spec.id);
    match shelf.find(&folder) {
        Some(source) => DrafterPlan::Ready(method, Some(source)),
        None => DrafterPlan::Skipped(
            method,
            format!(
                "{} has no drafter for {}: no folder {folder}/ under --checkpoints or inside the binary",
                method.id, spec.id
            ),
        ),
    }
}

fn methods(asked: &[String], notes: &mut Vec<String>) -> Result<Vec<&'static Method>> {
    let asked = unique(asked)
        .into_iter()
        .map(baselines::method)
        .collect::<Result<Vec<_>, _>>()?;
    let is_asked = |m: &&Method| m.id == "vanilla" || asked.iter().any(|a| a.id == m.id);
    if !asked.iter().any(|m| m.id == "vanilla") {
        notes.push("vanilla is measured too, since a speedup is relative to it".into());
    }
    Ok(baselines::METHODS.iter().filter(is_asked).collect())
}

fn suite(id: &str) -> Result<&'static str> {
    let known = suites::ids();
    match known.iter().find(|known| **known == id) {
        Some(known) => Ok(known),
        None => bail!("suite {id:?} is unknown; known: {}", known.join(", ")),
    }
}

fn settings(args: &RunArgs) -> Result<Vec<Setting>> {
    let sampling = unique(&args.sampling)
        .into_iter()
        .map(|key| SamplingKey::from_str(key).context("--sampling"))
        .collect::<Result<Vec<_>>>()?;
    let thinking: &[Thinking] = match args.thinking {
        ThinkingArg::Off => &[Thinking::Off],
        ThinkingArg::On => &[Thinking::On],
        ThinkingArg::Both => &[Thinking::Off, Thinking::On],
    };
    let mut concurrency = args.concurrency.clone();
    concurrency.sort_unstable();
    concurrency.dedup();
    if let Some(bad) = concurrency
        .iter()
        .find(|c| !(1..=MAX_CONCURRENCY).contains(*c))
    {
        bail!("--concurrency {bad}: must be between 1 and {MAX_CONCURRENCY}");
    }
    let mut out = Vec::new();
    for sampling in sampling {
        for thinking in thinking {
            out.extend(concurrency.iter().map(|concurrency| Setting {
                sampling,
                thinking: *thinking,
                concurrency: *concurrency,
            }));
        }
    }
    Ok(out)
}

/// Notes on drafters inside the binary that meet a target from a folder, which they may not have been trained for.
pub(crate) fn mixed(target: &TargetPlan) -> Vec<String> {
    let from_folder = matches!(target.source, Source::Dir(_));
    let embedded = target.drafters.iter().filter_map(|drafter| match drafter {
        DrafterPlan::Ready(method, Some(Source::Embedded { .. })) if from_folder => Some(method.id),
        _ => None,
    });
    let place = target.source.place();
    let note = |id| format!("the target is {place}, the {id} drafter is the one inside the binary");
    embedded.map(note).collect()
}

/// Notes on settings whose concurrency a suite is too short to fill.
fn unreached(suite: &str, settings: &[Setting], limits: Limits) -> Result<Vec<String>> {
    let n_prompts = suites::load(suite)?.prompts.len();
    let n_prompts = limits.prompts.map_or(n_prompts, |n| n.min(n_prompts));
    let note = |s: &Setting| {
        let n_answers = n_prompts as u64 * u64::from(limits.samples(*s));
        let short = n_answers < u64::from(s.concurrency);
        short.then(|| {
            format!(
                "{suite}, {}: {n_answers} answers do not fill concurrency {}, only as many run at once",
                s.sampling, s.concurrency
            )
        })
    };
    // Settings that differ in thinking alone give the same note.
    let mut notes: Vec<String> = settings.iter().filter_map(note).collect();
    notes.sort();
    notes.dedup();
    Ok(notes)
}

/// Without repeats, in order.
fn unique(ids: &[String]) -> Vec<&str> {
    let mut out: Vec<&str> = Vec::new();
    for id in ids {
        if !out.contains(&id.as_str()) {
            out.push(id);
        }
    }
    out
}

fn run_id() -> String {
    let (secs, nanos) = machine::now();
    let salt = format!("{nanos} {}", std::process::id());
    let hash = datasets::sha256_bytes(salt.as_bytes());
    format!("{}-{}", machine::timestamp(secs), &hash[..4])
}

impl TargetPlan {
    /// Where weights come from, if any come from a folder.
    pub(crate) fn weights(&self) -> Option<String> {
        self.sources()
            .find(|source| matches!(source, Source::Dir(_)))?;
        let drafters = self.drafters.iter().filter_map(|d| match d {
            DrafterPlan::Ready(method, Some(source)) => {
                Some(format!("{} {}", method.id, source.place()))
            }
            _ => None,
        });
        let all: Vec<String> = std::iter::once(format!("{} {}", self.spec.id, self.source.place()))
            .chain(drafters)
            .collect();
        Some(format!("weights: {}", all.join(", ")))
    }

    /// Every set of files in use.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        let drafters = self.drafters.iter().filter_map(|d| match d {
            DrafterPlan::Ready(_, source) => source.as_ref(),
            DrafterPlan::Skipped(..) => None,
        });
        std::iter::once(&self.source).chain(drafters)
    }
}

impl Plan {
    /// Coordinates of one cell.
    pub(crate) fn cell(&self, target: &str, suite: &str, setting: Setting, method: &str) -> Cell {
        Cell {
            target: target.to_owned(),
            suite: suite.to_owned(),
            sampling: setting.sampling,
            thinking: setting.thinking,
            concurrency: setting.concurrency,
            method: method.to_owned(),
        }
    }

    /// Answers that will be decoded if `n_prompts` gives each suite's length.
    pub(crate) fn n_answers(&self, n_prompts: impl Fn(&str) -> usize) -> u64 {
        let prompts: usize = self.suites.iter().map(|s| n_prompts(s)).sum();
        let arms: usize = self
            .targets
            .iter()
            .map(|t| t.drafters.iter().filter(|d| d.is_ready()).count())
            .sum();
        let times: u64 = self
            .settings
            .iter()
            .map(|s| u64::from(self.limits.samples(*s)) * u64::from(passes(s.concurrency)))
            .sum();
        prompts as u64 * arms as u64 * times
    }

    /// The plan for a person to read.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let mut say = |line: String| {
            // Writing to a String cannot fail.
            writeln!(out, "{line}").expect("a String takes any text");
        };
        for target in &self.targets {
            say(format!(
                "target    {} from {}",
                target.spec.id,
                target.source.place()
            ));
            for drafter in &target.drafters {
                say(match drafter {
                    DrafterPlan::Ready(m, None) => format!("  method  {} (no weights)", m.id),
                    DrafterPlan::Ready(m, Some(s)) => {
                        format!("  method  {} from {}", m.id, s.place())
                    }
                    DrafterPlan::Skipped(m, why) => format!("  method  {} skipped: {why}", m.id),
                });
            }
        }
        say(format!("suites    {}", self.suites.join(", ")));
        for setting in &self.settings {
            say(format!(
                "setting   {}, thinking {}, concurrency {}",
                setting.sampling, setting.thinking, setting.concurrency
            ));
        }
        let limits = self.limits;
        let prompts = limits
            .prompts
            .map_or("all prompts".into(), |n| format!("{n} prompts a suite"));
        say(format!(
            "limits    {prompts}, {} sampled answers a prompt, at most {} tokens, seed {}",
            limits.samples, limits.max_new, limits.seed
        ));
        let n_cells =
            self.targets.len() * self.methods.len() * self.suites.len() * self.settings.len();
        say(format!("cells     {n_cells}"));
        say(format!("out       {}", self.out.display()));
        for note in &self.notes {
            say(format!("note      {note}"));
        }
        out
    }
}

impl DrafterPlan {
    /// Whether it can run.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(..))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn plan(typed: &[&str]) -> Result<Plan> {
        let typed = ["draftbench"].iter().chain(typed);
        resolve(&Cli::try_parse_from(typed).unwrap().run)
    }

    #[test]
    fn a_concurrency_that_a_suite_cannot_fill_is_noted() {
        let notes = |typed: &[&str]| plan(typed).unwrap().notes;
        assert_eq!(notes(&["--concurrency", "1,24"]), [""; 0]);
        let short = notes(&[
            "--suites",
            "mini-chat",
            "--concurrency",
            "8,32",
            "--prompts",
            "10",
        ]);
        assert_eq!(short.len(), 1, "{short:?}");
        assert!(
            short[0].contains("10 answers") && short[0].contains("concurrency 32"),
            "{short:?}"
        );
        let filled = [
            "--sampling",
            "t1000",
            "--samples",
            "4",
            "--concurrency",
            "32",
            "--prompts",
            "8",
        ];
        assert_eq!(notes(&filled), [""; 0]);
    }

    #[test]
    fn more_samples_than_anyone_needs_are_refused() {
        let error = plan(&["--samples", "3000000000"]).unwrap_err().to_string();
        assert!(error.contains("--samples"), "{error}");
    }
}
