//! `draftbench train`: makes the tiny targets and drafters from their recipes.

use anyhow::Result;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::Duration;
use training::recipe::{AnswersRecipe, Eagle3Recipe, TargetRecipe};
use training::{Progress, StepReport};

/// What to train.
#[derive(Subcommand, Debug)]
pub(crate) enum TrainCommand {
    /// Train a tiny target, or go on where a killed run stopped
    Target {
        /// Recipe, e.g. training/recipes/tiny-qwen3.toml
        recipe: PathBuf,
    },
    /// Only let a target answer prompts, for several drafters to be trained on
    Answers {
        /// Recipe, e.g. training/recipes/smollm2-answers.toml
        recipe: PathBuf,
    },
    /// Let a trained target answer prompts, and train a DFlash drafter on the answers
    Dflash {
        /// Recipe, e.g. training/recipes/tiny-qwen3-dflash.toml
        recipe: PathBuf,
    },
    /// The same for a DSpark drafter
    Dspark {
        /// Recipe, e.g. training/recipes/tiny-qwen3-dspark.toml
        recipe: PathBuf,
    },
    /// The same for a Domino drafter
    Domino {
        /// Recipe, e.g. training/recipes/tiny-qwen3-domino.toml
        recipe: PathBuf,
    },
    /// The same for a DCOCO drafter
    Dcoco {
        /// Recipe, e.g. training/recipes/tiny-qwen3-dcoco.toml
        recipe: PathBuf,
    },
    /// Let a trained target answer prompts, and train an EAGLE-3 drafter on the answers
    Eagle3 {
        /// Recipe, e.g. training/recipes/tiny-qwen3-eagle3.toml
        recipe: PathBuf,
    },
}

/// What training wants of its surroundings, and glibc reads at start: an allocator that does not hand every tensor's
/// pages back to the system, and keeps one store of them for all threads (else each holds as much as one alone did).
#[cfg(target_os = "linux")]
const SURROUNDINGS: [(&str, &str); 4] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "2000000000"),
    ("MALLOC_TRIM_THRESHOLD_", "4000000000"),
    ("MALLOC_TOP_PAD_", "268435456"),
];

/// Starts this process again in those surroundings and with numbers of threads that candle need not look up at every
/// operation, unless it is in them or was given others. Goes on as it is where that fails. Drafters learn in parts, a
/// thread each, which would wait for each other at candle's threads for sums: they get none.
#[cfg(target_os = "linux")]
pub(crate) fn settle(
    command: &TrainCommand,
    arguments: std::env::ArgsOs,
    is_set: impl Fn(&str) -> bool,
) {
    use std::os::unix::process::CommandExt as _;

    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.to_string();
    let sums = match command {
        TrainCommand::Target { .. } | TrainCommand::Answers { .. } => threads.as_str(),
        _ => "1",
    };
    let wanted = SURROUNDINGS.into_iter().chain([
        ("RAYON_NUM_THREADS", threads.as_str()),
        ("CANDLE_NUM_THREADS", sums),
    ]);
    let missing: Vec<(&str, &str)> = wanted.filter(|(name, _)| !is_set(name)).collect();
    if missing.is_empty() {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let failed = std::process::Command::new(program)
        .args(arguments.skip(1))
        .envs(missing)
        .exec();
    eprintln!("note: training goes on with the allocator as it is: {failed}");
}

/// Runs one training command to its end.
pub(crate) fn run(command: &TrainCommand) -> Result<()> {
    let mut bar = Bar::new();
    match command {
        TrainCommand::Target { recipe } => {
            training::train_target(&TargetRecipe::load(recipe)?, &mut bar)?;
        }
        TrainCommand::Answers { recipe } => {
            training::answer(&AnswersRecipe::load(recipe)?, &mut bar)?;
        }
        TrainCommand::Dflash { recipe } => {
            training::train_dflash(&training::load_dflash_recipe(recipe)?, &mut bar)?;
        }
        TrainCommand::Dspark { recipe } => {
            training::train_dspark(&training::load_dspark_recipe(recipe)?, &mut bar)?;
        }
        TrainCommand::Domino { recipe } => {
            training::train_domino(&training::load_domino_recipe(recipe)?, &mut bar)?;
        }
        TrainCommand::Dcoco { recipe } => {
            training::train_dcoco(&training::load_dcoco_recipe(recipe)?, &mut bar)?;
        }
        TrainCommand::Eagle3 { recipe } => {
            training::train_eagle3(&Eagle3Recipe::load(recipe)?, &mut bar)?;
        }
    }
    bar.finish();
    Ok(())
}

/// Ticks of a whole run; a run may be limited by time, so the bar counts its progress instead of steps.
const TICKS: u64 = 10_000;
/// Steps between two lines when the output is a file.
const LINE_EVERY: u64 = 20;

struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(TICKS);
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {percent}% {msg}");
        bar.set_style(style.expect("the template is constant and parses"));
        Self { bar }
    }

    fn finish(&self) {
        self.bar.finish();
    }

    /// Above the bar on a terminal, else a plain line.
    fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }
}

impl Progress for Bar {
    fn step(&mut self, report: &StepReport) {
        let left = match report.progress > 0.0 {
            true => report.seconds * (1.0 - report.progress) / report.progress,
            false => 0.0,
        };
        let message = format!(
            "step {} loss {:.3} lr {:.5} {:.0} tokens/s, {} s left",
            report.step,
            report.loss,
            report.lr,
            report.tokens_per_sec,
            Duration::from_secs_f64(left).as_secs(),
        );
        self.bar
            .set_position((report.progress * TICKS as f64) as u64);
        if self.bar.is_hidden() && report.step.is_multiple_of(LINE_EVERY) {
            eprintln!("{message}");
        }
        self.bar.set_message(message);
    }

    fn note(&mut self, text: &str) {
        self.line(text);
    }
}
