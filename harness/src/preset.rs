//! Named sets of arms and settings. A preset is a list of blocks, each a small matrix of its own, so that a study need
//! not be one full product.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::cli::RunArgs;

/// Adding a preset is adding a line here and the file it names.
const FILES: [(&str, &str); 3] = [
    ("quick", include_str!("../presets/quick.toml")),
    ("ablation", include_str!("../presets/ablation.toml")),
    ("schedules", include_str!("../presets/schedules.toml")),
];

/// What to run, as spelled in a file and on the command line; nothing is looked up yet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preset {
    /// What it is for.
    pub(crate) title: String,
    /// Prompts of a suite.
    pub(crate) prompts: u32,
    /// Answers to a prompt where tokens are sampled.
    pub(crate) samples: u32,
    /// Most tokens of an answer.
    pub(crate) max_new: u32,
    /// What is printed at the end.
    #[serde(default)]
    pub(crate) report: Report,
    /// Matrices to run.
    #[serde(rename = "block")]
    pub(crate) blocks: Vec<Block>,
}

/// What a run prints when it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// One table a setting, two methods abreast.
    #[default]
    Table,
    /// The tables of the study, which are also written to `study/` in the run's folder, with plots.
    Study,
}

/// One matrix: every method on every suite in every setting.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Block {
    /// Arms, as `--methods` takes them.
    pub(crate) methods: Vec<String>,
    /// Suites, as `--suites` takes them.
    pub(crate) suites: Vec<String>,
    /// As `--sampling` takes it.
    pub(crate) sampling: Vec<String>,
    /// As `--concurrency` takes it.
    pub(crate) concurrency: Vec<u32>,
    /// Answers to each prompt where decoding is greedy, to fill a batch; where tokens are sampled, times the preset's
    /// `samples`.
    #[serde(default = "once")]
    pub(crate) repeat: u32,
}

fn once() -> u32 {
    1
}

/// Ids of all presets.
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(id, _)| *id)
}

/// The preset of this name.
///
/// # Errors
/// If there is none; the rest would be a mistake in an embedded file.
pub(crate) fn load(id: &str) -> Result<Preset> {
    let Some((id, text)) = FILES.iter().find(|(known, _)| *known == id) else {
        let known: Vec<&str> = ids().collect();
        bail!("--preset {id:?} is unknown; known: {}", known.join(", "));
    };
    toml::from_str(text).with_context(|| format!("presets/{id}.toml"))
}

impl Preset {
    /// The preset with what was typed in place of its own lists and limits.
    pub(crate) fn typed_over(mut self, args: &RunArgs) -> Self {
        for block in &mut self.blocks {
            replace(&mut block.methods, &args.methods);
            replace(&mut block.suites, &args.suites);
            replace(&mut block.sampling, &args.sampling);
            replace(&mut block.concurrency, &args.concurrency);
        }
        self.prompts = args.prompts.unwrap_or(self.prompts);
        self.samples = args.samples.unwrap_or(self.samples);
        self.max_new = args.max_new.unwrap_or(self.max_new);
        self
    }
}

fn replace<T: Clone>(list: &mut Vec<T>, typed: &[T]) {
    if !typed.is_empty() {
        *list = typed.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arms::ArmPlan;
    use crate::cli::Cli;

    #[test]
    fn every_preset_is_read_and_runs_something() {
        for id in ids() {
            let preset = load(id).unwrap();
            assert!(
                !preset.title.is_empty() && !preset.blocks.is_empty(),
                "{id}"
            );
            let empty =
                |b: &Block| b.methods.is_empty() || b.suites.is_empty() || b.sampling.is_empty();
            assert!(!preset.blocks.iter().any(empty), "{id}");
            for block in &preset.blocks {
                assert!(block.repeat > 0, "{id}");
                for key in &block.methods {
                    ArmPlan::parse(key).unwrap();
                }
            }
        }
        let error = load("quik").unwrap_err().to_string();
        assert!(
            error.starts_with("--preset \"quik\" is unknown; known: quick"),
            "{error}"
        );
    }

    #[test]
    fn what_is_typed_takes_the_place_of_the_presets_list() {
        let typed = [
            "draftbench",
            "--methods",
            "dflash",
            "--concurrency",
            "1,2",
            "--max-new",
            "9",
        ];
        let args = Cli::try_parse_from(typed).unwrap().run;
        let preset = load("quick").unwrap().typed_over(&args);
        assert_eq!(
            (preset.max_new, preset.prompts),
            (9, load("quick").unwrap().prompts)
        );
        for block in preset.blocks {
            assert_eq!(
                (block.methods, block.concurrency),
                (vec!["dflash".to_owned()], vec![1, 2])
            );
            assert_eq!(block.sampling, ["greedy", "t1000"]);
        }
    }
}
