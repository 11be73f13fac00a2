//! From what was typed to what will be done: every id looked up, every range checked, nothing loaded.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use anyhow::{Context as _, Result, bail, ensure};
use reports::{Cell, SamplingKey, Thinking};

use crate::arms::{self, ArmPlan, DrafterPlan, TargetPlan};
use crate::assets::Shelf;
use crate::cli::{MachineArgs, RunArgs, ThinkingArg};
use crate::engine::{Tokens, passes};
use crate::machine;
use crate::preset::{self, Block, Preset, Report};

/// The arm every speedup is relative to.
const VANILLA: &str = "vanilla";

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
    /// The preset it began as.
    pub(crate) preset: String,
    /// What is printed at the end.
    pub(crate) report: Report,
    /// In the order asked for.
    pub(crate) targets: Vec<TargetPlan>,
    /// In column order, vanilla first.
    pub(crate) arms: Vec<ArmPlan>,
    /// Every suite that a group runs, in the order asked for.
    pub(crate) suites: Vec<&'static str>,
    /// What is measured together, in the order it runs.
    pub(crate) groups: Vec<Group>,
    /// How much of it.
    pub(crate) limits: Limits,
    /// Folder of the run.
    pub(crate) out: PathBuf,
    /// What records hold.
    pub(crate) tokens: Tokens,
    /// What was done to the request that the user should know.
    pub(crate) notes: Vec<String>,
}

/// Cells of one target that differ in their arm alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Sampling, thinking, concurrency.
    pub(crate) setting: Setting,
    /// The suite.
    pub(crate) suite: &'static str,
    /// Answers to each prompt.
    pub(crate) samples: u32,
    /// Indices into [`Plan::arms`], rising; vanilla is among them.
    pub(crate) arms: Vec<usize>,
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
    /// Most prompts of a suite.
    pub(crate) prompts: usize,
    /// Answers to a prompt where tokens are sampled.
    pub(crate) samples: u32,
    /// Most tokens of an answer.
    pub(crate) max_new: usize,
    /// Seed of all random streams.
    pub(crate) seed: u64,
}

/// Looks up and checks everything that `run` was given.
///
/// # Errors
/// One that names the first id or flag that is wrong.
pub(crate) fn resolve(args: &RunArgs) -> Result<Plan> {
    let shelf = Shelf::new(args.machine.checkpoints.as_deref())?;
    let preset = preset::load(&args.preset)?.typed_over(args);
    let mut notes = Vec::new();
    let arms = arms(&preset, args, &mut notes)?;
    let targets = unique(&args.targets)
        .into_iter()
        .map(|id| arms::target_plan(id, &arms, &shelf))
        .collect::<Result<Vec<_>>>()?;
    shelf.check_used(targets.iter().flat_map(TargetPlan::sources))?;
    let limits = limits(&preset, args)?;
    let groups = groups(&preset, args, &arms)?;
    notes.extend(targets.iter().flat_map(TargetPlan::mixed));
    notes.extend(shelf.strangers(arms.iter().filter_map(|a| a.checkpoint.as_deref()))?);
    notes.extend(unreached(&groups, limits)?);
    let run = run_id();
    Ok(Plan {
        out: match &args.out {
            Some(dir) => dir.clone(),
            None => Path::new("runs").join(&run),
        },
        run,
        preset: args.preset.clone(),
        report: preset.report,
        targets,
        arms,
        suites: suites_of(&groups),
        groups,
        limits,
        tokens: if args.keep_tokens {
            Tokens::Kept
        } else {
            Tokens::Hashed
        },
        notes,
    })
}

fn limits(preset: &Preset, args: &RunArgs) -> Result<Limits> {
    at_least_one("--prompts", preset.prompts)?;
    at_least_one("--samples", preset.samples)?;
    ensure!(
        preset.samples <= MAX_SAMPLES,
        "--samples {}: at most {MAX_SAMPLES}",
        preset.samples
    );
    at_least_one("--max-new", preset.max_new)?;
    Ok(Limits {
        prompts: preset.prompts as usize,
        samples: preset.samples,
        max_new: preset.max_new as usize,
        seed: args.seed,
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

/// Every arm of the preset once, vanilla first, then in the order of [`baselines::METHODS`].
fn arms(preset: &Preset, args: &RunArgs, notes: &mut Vec<String>) -> Result<Vec<ArmPlan>> {
    let mut arms = vec![ArmPlan::parse(VANILLA)?];
    for key in preset.blocks.iter().flat_map(|b| &b.methods) {
        if arms.iter().any(|a| a.key() == key) {
            continue;
        }
        arms.push(ArmPlan::parse(key)?);
    }
    if !args.methods.is_empty() && !args.methods.iter().any(|m| m == VANILLA) {
        notes.push("vanilla is measured too, since a speedup is relative to it".into());
    }
    let column = |arm: &ArmPlan| {
        let is_method = |m: &baselines::Method| m.id == arm.arm.method.id;
        baselines::METHODS.iter().position(is_method)
    };
    arms.sort_by_key(column);
    Ok(arms)
}

/// The preset's blocks as groups; what two blocks both ask for is run once.
fn groups(preset: &Preset, args: &RunArgs, arms: &[ArmPlan]) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for block in &preset.blocks {
        let suites = unique(&block.suites)
            .into_iter()
            .map(suite)
            .collect::<Result<Vec<_>>>()?;
        let is_asked =
            |arm: &ArmPlan| arm.key() == VANILLA || block.methods.iter().any(|m| m == arm.key());
        let asked: Vec<usize> = (0..arms.len()).filter(|i| is_asked(&arms[*i])).collect();
        for setting in settings(block, args.thinking)? {
            let samples = match setting.sampling {
                SamplingKey::Greedy => block.repeat,
                SamplingKey::Temperature(_) => block.repeat * preset.samples,
            };
            for suite in &suites {
                let is_same = |g: &&mut Group| (g.setting, g.suite) == (setting, *suite);
                match groups.iter_mut().find(is_same) {
                    Some(group) => {
                        group.samples = group.samples.max(samples);
                        group.arms.extend(&asked);
                        group.arms.sort_unstable();
                        group.arms.dedup();
                    }
                    None => groups.push(Group {
                        setting,
                        suite,
                        samples,
                        arms: asked.clone(),
                    }),
                }
            }
        }
    }
    Ok(groups)
}

fn suites_of(groups: &[Group]) -> Vec<&'static str> {
    let mut suites = Vec::new();
    for group in groups {
        if !suites.contains(&group.suite) {
            suites.push(group.suite);
        }
    }
    suites
}

fn suite(id: &str) -> Result<&'static str> {
    let known = suites::ids();
    match known.iter().find(|known| **known == id) {
        Some(known) => Ok(known),
        None => bail!("suite {id:?} is unknown; known: {}", known.join(", ")),
    }
}

fn settings(block: &Block, thinking: ThinkingArg) -> Result<Vec<Setting>> {
    let sampling = unique(&block.sampling)
        .into_iter()
        .map(|key| SamplingKey::from_str(key).context("--sampling"))
        .collect::<Result<Vec<_>>>()?;
    let thinking: &[Thinking] = match thinking {
        ThinkingArg::Off => &[Thinking::Off],
        ThinkingArg::On => &[Thinking::On],
        ThinkingArg::Both => &[Thinking::Off, Thinking::On],
    };
    let mut concurrency = block.concurrency.clone();
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

/// Notes on groups whose concurrency their suite is too short to fill.
fn unreached(groups: &[Group], limits: Limits) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for group in groups {
        let Setting {
            sampling,
            concurrency,
            ..
        } = group.setting;
        let n_prompts = suites::load(group.suite)?.prompts.len().min(limits.prompts);
        let n_answers = n_prompts as u64 * u64::from(group.samples);
        if n_answers < u64::from(concurrency) {
            notes.push(format!(
                "{}, {sampling}: {n_answers} answers do not fill concurrency {concurrency}, only as many run at once",
                group.suite
            ));
        }
    }
    // Groups that differ in thinking alone give the same note.
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

/// A name for a run that no other run has: the time and four random letters.
pub(crate) fn run_id() -> String {
    let (secs, nanos) = machine::now();
    let salt = format!("{nanos} {}", std::process::id());
    let hash = datasets::sha256_bytes(salt.as_bytes());
    format!("{}-{}", machine::timestamp(secs), &hash[..4])
}

impl Plan {
    /// Coordinates of one cell.
    pub(crate) fn cell(&self, target: &str, group: &Group, method: &str) -> Cell {
        Cell {
            target: target.to_owned(),
            suite: group.suite.to_owned(),
            sampling: group.setting.sampling,
            thinking: group.setting.thinking,
            concurrency: group.setting.concurrency,
            method: method.to_owned(),
        }
    }

    /// Answers that will be decoded if `n_prompts` gives each suite's length.
    pub(crate) fn n_answers(&self, n_prompts: impl Fn(&str) -> usize) -> u64 {
        let of_group = |group: &Group| {
            let is_ready = |t: &TargetPlan, arm: usize| t.drafters[arm].is_ready();
            let of_target = |t: &TargetPlan| group.arms.iter().filter(|a| is_ready(t, **a)).count();
            let arms: usize = self.targets.iter().map(of_target).sum();
            let times = u64::from(group.samples) * u64::from(passes(group.setting.concurrency));
            (n_prompts(group.suite) * arms) as u64 * times
        };
        self.groups.iter().map(of_group).sum()
    }

    /// Most sequences an arm decodes at once.
    pub(crate) fn most_at_once(&self, arm_idx: usize) -> u32 {
        let its = self.groups.iter().filter(|g| g.arms.contains(&arm_idx));
        its.map(|g| g.setting.concurrency).max().unwrap_or(1)
    }

    /// Cells of one target.
    fn n_cells(&self) -> usize {
        self.groups.iter().map(|g| g.arms.len()).sum()
    }

    /// Each setting with the number of its arms and their suites; suites with other arms are another entry.
    fn by_setting(&self) -> Vec<(Setting, usize, Vec<&'static str>)> {
        let mut out: Vec<(Setting, usize, Vec<&'static str>)> = Vec::new();
        for group in &self.groups {
            let n_arms = group.arms.len();
            match out
                .iter_mut()
                .find(|o| (o.0, o.1) == (group.setting, n_arms))
            {
                Some(entry) => entry.2.push(group.suite),
                None => out.push((group.setting, n_arms, vec![group.suite])),
            }
        }
        out
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
                    DrafterPlan::Ready(a, None) => format!("  method  {} (no weights)", a.key()),
                    DrafterPlan::Ready(a, Some(s)) => {
                        format!("  method  {} from {}", a.key(), s.place())
                    }
                    DrafterPlan::Skipped(a, why) => format!("  method  {} skipped: {why}", a.key()),
                });
            }
        }
        say(format!("suites    {}", self.suites.join(", ")));
        for (setting, n_arms, suites) in self.by_setting() {
            say(format!(
                "setting   {}, thinking {}, concurrency {}: {n_arms} methods on {}",
                setting.sampling,
                setting.thinking,
                setting.concurrency,
                suites.join(", ")
            ));
        }
        let limits = self.limits;
        say(format!(
            "limits    {} prompts a suite, {} sampled answers a prompt, at most {} tokens, seed {}",
            limits.prompts, limits.samples, limits.max_new, limits.seed
        ));
        say(format!("cells     {}", self.targets.len() * self.n_cells()));
        say(format!("out       {}", self.out.display()));
        for note in &self.notes {
            say(format!("note      {note}"));
        }
        out
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
        let notes = |more: &str| {
            let typed = format!("--methods vanilla --sampling greedy --prompts 24 {more}");
            let typed: Vec<&str> = typed.split_whitespace().collect();
            plan(&typed).unwrap().notes
        };
        assert_eq!(notes("--concurrency 1,24"), [""; 0]);
        let short = notes("--concurrency 8,32 --suites mini-chat --thinking both");
        assert_eq!(short.len(), 1, "{short:?}");
        assert!(
            short[0].contains("24 answers") && short[0].contains("concurrency 32"),
            "{short:?}"
        );
        let filled = plan(&[
            "--methods",
            "vanilla",
            "--sampling",
            "t1000",
            "--samples",
            "4",
            "--concurrency",
            "32",
        ]);
        assert_eq!(filled.unwrap().notes, [""; 0]);
    }

    #[test]
    fn arms_of_one_method_are_columns_side_by_side_and_vanilla_is_the_first() {
        let plan = plan(&[
            "--methods",
            "dflash:max_draft=3,draft_model,dflash,dflash",
            "--sampling",
            "greedy",
        ])
        .unwrap();
        let keys: Vec<&str> = plan.arms.iter().map(ArmPlan::key).collect();
        assert_eq!(
            keys,
            ["vanilla", "draft_model", "dflash:max_draft=3", "dflash"]
        );
        assert_eq!(plan.groups.len(), 3);
        assert!(plan.groups.iter().all(|g| g.arms == [0, 1, 2, 3]));
        assert_eq!(plan.n_answers(|_| 2), 3 * 2 * 4);
    }

    #[test]
    fn what_two_blocks_ask_for_is_run_once() {
        let block = |methods: &[&str], concurrency: &[u32]| Block {
            methods: methods.iter().map(|m| (*m).to_owned()).collect(),
            suites: vec!["mini-chat".into()],
            sampling: vec!["greedy".into()],
            concurrency: concurrency.to_vec(),
            repeat: 1,
        };
        let preset = Preset {
            title: String::new(),
            prompts: 1,
            samples: 1,
            max_new: 1,
            report: Report::Table,
            blocks: vec![
                block(&["dflash"], &[1, 8]),
                block(&["draft_model", "dflash"], &[1]),
            ],
        };
        let args = Cli::try_parse_from(["draftbench"]).unwrap().run;
        let arms = arms(&preset, &args, &mut Vec::new()).unwrap();
        let groups = groups(&preset, &args, &arms).unwrap();
        let got: Vec<(u32, &[usize])> = groups
            .iter()
            .map(|g| (g.setting.concurrency, g.arms.as_slice()))
            .collect();
        assert_eq!(got, [(1, &[0, 1, 2][..]), (8, &[0, 2][..])]);
    }

    #[test]
    fn more_samples_than_anyone_needs_are_refused() {
        let error = plan(&["--samples", "3000000000"]).unwrap_err().to_string();
        assert!(error.contains("--samples"), "{error}");
    }
}
