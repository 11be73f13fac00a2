//! From what was asked for to what will be done: every id looked up, every range checked, nothing loaded.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use models::Precision;
use reports::Cell;

use crate::arms::{self, ArmPlan, TargetPlan};
use crate::assets::{ModelPaths, Shelf};
use crate::cli::{DirArgs, MachineArgs, SelectArgs};
use crate::data::{self, Cut, Library, Most};
use crate::engine::Tokens;
use crate::group::{self, Group, Setting, SkippedGroup, VANILLA};
use crate::machine;
use crate::matrix::{Matrix, Report};
use crate::preset;

/// Most computing threads.
const MAX_THREADS: u32 = 256;
/// Most answers to one prompt.
const MAX_SAMPLES: u32 = 10_000;

/// What is asked for, whether typed, read from a file or found in a stored plan.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Name of the preset or the file, for `run.json`.
    pub(crate) name: String,
    /// The matrix.
    pub(crate) matrix: Matrix,
    /// Where models lie.
    pub(crate) models: ModelPaths,
    /// Folder with public suites.
    pub(crate) data: DirArgs,
    /// What records hold.
    pub(crate) tokens: Tokens,
    /// Whether a target without files is an error rather than skipped.
    pub(crate) absent: Absent,
    /// What was typed that the user should hear about.
    pub(crate) notes: Vec<String>,
}

/// What to do about a target without files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Refuse: it was named on the command line.
    Refused,
    /// Skip its cells.
    Skipped,
}

/// A run, resolved.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What it was made from.
    pub(crate) request: Request,
    /// What is printed at the end.
    pub(crate) report: Report,
    /// In the order asked for; those without files are left out.
    pub(crate) targets: Vec<TargetPlan>,
    /// In column order, vanilla first.
    pub(crate) arms: Vec<ArmPlan>,
    /// Every suite that a group runs, in the order asked for.
    pub(crate) suites: Vec<&'static str>,
    /// The prompts of every suite that was asked for.
    pub(crate) library: Library,
    /// What is measured together, in the order it runs: target by target.
    pub(crate) groups: Vec<Group>,
    /// Groups that cannot run.
    pub(crate) skipped: Vec<SkippedGroup>,
    /// Reasons of exclusions, and the cells each took out.
    pub(crate) excluded: Vec<(String, usize)>,
    /// How much of it.
    pub(crate) limits: Limits,
    /// What records hold.
    pub(crate) tokens: Tokens,
    /// What was done to the request that the user should know.
    pub(crate) notes: Vec<String>,
}

/// How much is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Answers to a prompt where tokens are sampled.
    pub(crate) samples: u32,
    /// Most tokens of an answer.
    pub(crate) max_new: usize,
    /// Seed of all random streams.
    pub(crate) seed: u64,
}

impl Request {
    /// What was typed.
    ///
    /// # Errors
    /// Those of [`preset::asked`], or if `--data-dir` is no folder.
    pub(crate) fn typed(args: &SelectArgs) -> Result<Self> {
        data::check(&args.data.dir)?;
        let mut notes = Vec::new();
        if !args.methods.is_empty() && !args.methods.iter().any(|m| m == VANILLA) {
            notes.push("vanilla is measured too, since a speedup is relative to it".into());
        }
        Ok(Self {
            name: match &args.matrix {
                Some(file) => file.display().to_string(),
                None => args.preset.clone(),
            },
            matrix: preset::asked(args)?,
            models: args.machine.models(),
            data: args.data.dir.clone(),
            tokens: match args.keep_tokens {
                true => Tokens::Kept,
                false => Tokens::Hashed,
            },
            absent: match args.targets.is_empty() {
                true => Absent::Skipped,
                false => Absent::Refused,
            },
            notes,
        })
    }
}

/// Looks up and checks everything that was asked for.
///
/// # Errors
/// One that names the first id or flag that is wrong.
pub(crate) fn resolve(request: Request) -> Result<Plan> {
    let shelf = Shelf::new(&request.models)?;
    let matrix = &request.matrix;
    shelf.check_targets(&group::target_ids(matrix))?;
    let mut notes = request.notes.clone();
    let arms = arms(matrix)?;
    let (mut targets, mut absent) = (Vec::new(), Vec::new());
    for id in group::target_ids(matrix) {
        models::target(id)?;
        match arms::target_plan(id, &arms, &shelf) {
            Ok(target) => targets.push(target),
            Err(err) if request.absent == Absent::Refused || request.models.weights.is_some() => {
                return Err(err);
            }
            Err(err) => absent.push((id.to_owned(), err.to_string())),
        }
    }
    if !targets.is_empty() {
        shelf.check_used(targets.iter().flat_map(TargetPlan::sources))?;
    }
    arms::check_random(&targets, &arms)?;
    let limits = limits(matrix)?;
    let library = library(&request)?;
    let groups = group::build(matrix, &arms, &targets, &absent, &library)?;
    notes.extend(library.notes());
    notes.extend(targets.iter().flat_map(TargetPlan::mixed));
    notes.extend(shelf.strangers(arms.iter().filter_map(|a| a.checkpoint.as_deref()))?);
    notes.extend(unreached(&groups.ready, &library));
    for (idx, _) in groups.excluded.iter().enumerate().filter(|(_, e)| e.1 == 0) {
        notes.push(format!("[[exclude]] number {} leaves no cell out", idx + 1));
    }
    Ok(Plan {
        report: matrix.report,
        tokens: request.tokens,
        targets,
        arms,
        suites: suites_of(&groups.ready),
        library,
        groups: groups.ready,
        skipped: groups.skipped,
        excluded: groups.excluded,
        limits,
        notes,
        request,
    })
}

fn limits(matrix: &Matrix) -> Result<Limits> {
    if let Some(prompts) = matrix.prompts {
        at_least_one("--prompts", prompts)?;
    }
    at_least_one("--samples", matrix.samples)?;
    ensure!(
        matrix.samples <= MAX_SAMPLES,
        "--samples {}: at most {MAX_SAMPLES}",
        matrix.samples
    );
    at_least_one("--max-new", matrix.max_new)?;
    Ok(Limits {
        samples: matrix.samples,
        max_new: matrix.max_new as usize,
        seed: matrix.seed,
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

/// Every arm of the matrix once, vanilla first, then in the order of [`baselines::METHODS`].
///
/// # Errors
/// If a method or an option is unknown.
pub(crate) fn arms(matrix: &Matrix) -> Result<Vec<ArmPlan>> {
    let mut arms = vec![ArmPlan::parse(VANILLA)?];
    for key in matrix.blocks.iter().flat_map(|b| &b.methods) {
        if arms.iter().any(|a| a.key() == key) {
            continue;
        }
        arms.push(ArmPlan::parse(key)?);
    }
    let column = |arm: &ArmPlan| {
        let is_method = |m: &baselines::Method| m.id == arm.arm.method.id;
        baselines::METHODS.iter().position(is_method)
    };
    arms.sort_by_key(column);
    Ok(arms)
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

/// The prompts of every suite of the matrix.
fn library(request: &Request) -> Result<Library> {
    let matrix = &request.matrix;
    let names = matrix.blocks.iter().flat_map(|b| &b.suites);
    let subset = matrix.subset.as_deref().map(data::rule).transpose()?;
    let cut = Cut {
        subset,
        seed: matrix.subset_seed,
        most: Most {
            alone: matrix.prompts,
            of_sets: matrix.prompts_of_sets,
        },
    };
    Library::open(&data::expand(names)?, &request.data, cut)
}

/// Notes on groups whose concurrency their suite is too short to fill.
fn unreached(groups: &[Group], library: &Library) -> Vec<String> {
    let mut notes = Vec::new();
    for group in groups {
        let Setting {
            sampling,
            concurrency,
            ..
        } = group.setting;
        let n_prompts = library.prompts(group.suite).len();
        let n_answers = n_prompts as u64 * u64::from(group.samples);
        if n_answers < u64::from(concurrency) {
            notes.push(format!(
                "{}, {sampling}: {n_answers} answers do not fill concurrency {concurrency}, only as many run at once",
                group.suite
            ));
        }
    }
    // Groups that differ in thinking or target alone give the same note.
    notes.sort();
    notes.dedup();
    notes
}

/// A name for a run that no other run has: the time and four random letters.
pub(crate) fn run_id() -> String {
    let (secs, nanos) = machine::now();
    let salt = format!("{nanos} {}", std::process::id());
    let hash = datasets::sha256_bytes(salt.as_bytes());
    format!("{}-{}", machine::timestamp(secs), &hash[..4])
}

/// The folder of a run that none was named for.
pub(crate) fn default_out(run: &str) -> PathBuf {
    Path::new("runs").join(run)
}

impl Plan {
    /// How weight matrices are kept.
    pub(crate) fn dtype(&self) -> Precision {
        self.request.models.dtype.unwrap_or_default()
    }

    /// Coordinates of one cell.
    pub(crate) fn cell(&self, group: &Group, method: &str) -> Cell {
        group.cell(&self.targets, method)
    }

    /// Answers of one group, if no turn is left out.
    pub(crate) fn n_answers(&self, group: &Group) -> u64 {
        group.n_answers(&self.targets, self.library.n_turns(group.suite))
    }

    /// Most sequences an arm decodes at once on a target.
    pub(crate) fn most_at_once(&self, target_idx: usize, arm_idx: usize) -> u32 {
        let its = self.groups.iter().filter(|g| g.target == target_idx);
        let its = its.filter(|g| g.arms.contains(&arm_idx));
        its.map(|g| g.setting.concurrency).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn plan(typed: &[&str]) -> Result<Plan> {
        let typed = ["draftbench"].iter().chain(typed);
        resolve(Request::typed(
            &Cli::try_parse_from(typed).unwrap().run.select,
        )?)
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
        let filled = "--methods vanilla --sampling t1000 --samples 4 --concurrency 32";
        let filled: Vec<&str> = filled.split(' ').collect();
        assert_eq!(plan(&filled).unwrap().notes, [""; 0]);
    }

    #[test]
    fn arms_of_one_method_are_columns_side_by_side_and_vanilla_is_the_first() {
        let methods = "dflash:max_draft=3,draft_model,dflash,dflash";
        let plan = plan(&[
            "--methods",
            methods,
            "--sampling",
            "greedy",
            "--prompts",
            "2",
        ])
        .unwrap();
        let keys: Vec<&str> = plan.arms.iter().map(ArmPlan::key).collect();
        assert_eq!(
            keys,
            ["vanilla", "draft_model", "dflash:max_draft=3", "dflash"]
        );
        assert_eq!(plan.groups.len(), 3);
        assert!(plan.groups.iter().all(|g| g.arms == [0, 1, 2, 3]));
        let n_answers = plan.groups.iter().map(|g| plan.n_answers(g));
        assert_eq!(n_answers.sum::<u64>(), 3 * 2 * 4);
    }

    #[test]
    fn more_samples_than_anyone_needs_are_refused() {
        let error = plan(&["--samples", "3000000000"]).unwrap_err().to_string();
        assert!(error.contains("--samples"), "{error}");
    }

    #[test]
    fn targets_of_a_preset_that_have_no_files_are_skipped_and_typed_ones_refused() {
        let absent = plan(&["--preset", "paper-main"]).unwrap();
        assert!(absent.groups.is_empty() && !absent.skipped.is_empty());
        assert!(absent.skipped[0].why.contains("needs files"));
        let typed = plan(&["--preset", "paper-main", "--targets", "qwen3-4b"]);
        assert!(typed.unwrap_err().to_string().contains("needs files"));
    }
}
