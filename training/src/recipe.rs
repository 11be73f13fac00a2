//! Recipes: one TOML file says everything about a training run.

use crate::answers::AnswersConfig;
use crate::config::NetConfig;
use crate::data::BatchConfig;
use crate::error::{Error, Result};
use crate::optim::OptimizerConfig;
use crate::params::fnv1a;
use crate::trunk::TrunkConfig;
use datasets::CorpusSpec;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};

/// When a run ends; whichever comes first. The learning rate follows whichever is further.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopConfig {
    /// Optimiser steps.
    pub max_steps: u64,
    /// Minutes of training, summed over resumed parts; without it only the steps count, and a run is repeatable.
    #[serde(default)]
    pub max_minutes: Option<f64>,
}

impl StopConfig {
    /// Part of the run that is over, 0 to 1.
    pub fn progress(&self, step: u64, seconds: f64) -> f64 {
        let by_steps = step as f64 / self.max_steps.max(1) as f64;
        let by_time = self.max_minutes.map_or(0.0, |m| seconds / (60.0 * m));
        by_steps.max(by_time).min(1.0)
    }
}

/// How often something is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportConfig {
    /// Minutes between checkpoints (each with an export that can be tried out).
    pub checkpoint_minutes: f64,
    /// Steps between two measurements of the held-out loss.
    pub held_out_every_steps: u64,
}

/// A recipe of `draftbench train target`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetRecipe {
    /// Seed of weights, order and held-out choice.
    pub seed: u64,
    /// Folder of the finished checkpoint.
    pub out: PathBuf,
    /// Folder of checkpoints and logs.
    pub work: PathBuf,
    /// A `tokenizer.json` to use; without it one is trained on the corpus with `model.vocab_size` tokens.
    #[serde(default)]
    pub tokenizer: Option<PathBuf>,
    /// The chat template that goes into `tokenizer_config.json`.
    pub chat_template: PathBuf,
    /// Weight of the balance loss of a mixture model.
    #[serde(default)]
    pub balance_weight: f64,
    /// Sizes.
    pub model: NetConfig,
    /// Training texts.
    pub corpus: CorpusSpec,
    /// Packing.
    pub batch: BatchConfig,
    /// AdamW and its schedule.
    pub optimizer: OptimizerConfig,
    /// When to end.
    pub stop: StopConfig,
    /// What to write when.
    pub report: ReportConfig,
}

impl TargetRecipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// [`Error::Recipe`] for an unknown or missing key, [`Error::RecipeValue`] for a value that makes no sense.
    pub fn load(file: &Path) -> Result<Self> {
        let recipe: Self = load(file)?;
        recipe.model.check(file)?;
        if recipe.batch.packs_per_step == 0 {
            return Err(Error::RecipeValue {
                file: file.to_owned(),
                key: "batch.packs_per_step",
                problem: "must be above 0".to_owned(),
            });
        }
        Ok(recipe)
    }

    /// Changes whenever a checkpoint of the old recipe must not be continued under the new one.
    pub fn fingerprint(&self) -> String {
        let parts = (
            self.seed,
            &self.tokenizer,
            &self.model,
            &self.corpus,
            &self.batch,
            &self.optimizer,
        );
        format!("{:016x}", fnv1a(format!("{parts:?}").as_bytes()))
    }
}

/// A recipe of `draftbench train dflash`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DflashRecipe {
    /// Seed of weights, order and anchors.
    pub seed: u64,
    /// Folder of the trained target.
    pub target: PathBuf,
    /// Folder of the finished drafter.
    pub out: PathBuf,
    /// Folder of answers, checkpoints and logs.
    pub work: PathBuf,
    /// Shape of the drafter.
    pub drafter: TrunkConfig,
    /// What the target is asked.
    pub answers: AnswersConfig,
    /// Packing and anchors.
    pub batch: DraftBatchConfig,
    /// AdamW and its schedule.
    pub optimizer: OptimizerConfig,
    /// When to end.
    pub stop: StopConfig,
    /// What to write when.
    pub report: ReportConfig,
}

/// The `[batch]` table of a drafter's recipe.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftBatchConfig {
    /// Most context tokens of a pack.
    pub micro_tokens: usize,
    /// Packs whose gradients make one step.
    pub packs_per_step: usize,
    /// Anchors drawn in each text, afresh every time it is seen.
    pub anchors_per_text: usize,
    /// Decay constant of the loss over a block's slots.
    pub decay: f64,
}

impl DflashRecipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// [`Error::Recipe`] for an unknown or missing key, [`Error::RecipeValue`] for a value that makes no sense.
    pub fn load(file: &Path) -> Result<Self> {
        let recipe: Self = load(file)?;
        let taps = &recipe.drafter.target_layer_ids;
        let checks = [
            (
                taps.is_empty() || !taps.is_sorted_by(|a, b| a < b),
                "drafter.target_layer_ids",
                "must rise",
            ),
            (
                recipe.drafter.num_hidden_layers == 0,
                "drafter.num_hidden_layers",
                "must be above 0",
            ),
            (
                recipe.drafter.block_size < 2,
                "drafter.block_size",
                "must be above 1",
            ),
            (
                recipe.batch.packs_per_step == 0,
                "batch.packs_per_step",
                "must be above 0",
            ),
            (
                recipe.batch.anchors_per_text == 0,
                "batch.anchors_per_text",
                "must be above 0",
            ),
            (recipe.batch.decay <= 0.0, "batch.decay", "must be above 0"),
            (
                recipe.answers.slots == 0,
                "answers.slots",
                "must be above 0",
            ),
            (
                recipe.answers.max_new == 0,
                "answers.max_new",
                "must be above 0",
            ),
        ];
        match checks.into_iter().find(|(is_wrong, _, _)| *is_wrong) {
            None => Ok(recipe),
            Some((_, key, problem)) => Err(Error::RecipeValue {
                file: file.to_owned(),
                key,
                problem: problem.to_owned(),
            }),
        }
    }

    /// Changes whenever a checkpoint of the old recipe must not be continued under the new one. `answers` names the
    /// target's answers.
    pub fn fingerprint(&self, answers: &str) -> String {
        let parts = (
            self.seed,
            answers,
            &self.drafter,
            &self.batch,
            &self.optimizer,
        );
        format!("{:016x}", fnv1a(format!("{parts:?}").as_bytes()))
    }
}

/// Parses a TOML recipe.
pub(crate) fn load<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).map_err(Error::io(file))?;
    toml::from_str(&text).map_err(|e| Error::Recipe {
        file: file.to_owned(),
        message: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes")
    }

    #[test]
    fn every_recipe_that_ships_is_valid() {
        let mut found = 0;
        for entry in fs::read_dir(folder()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with("-dflash.toml") {
                DflashRecipe::load(&path).unwrap();
                found += 1;
            } else if name.ends_with(".toml") {
                TargetRecipe::load(&path).unwrap();
                found += 1;
            }
        }
        assert!(found >= 7, "{found}");
    }

    /// Loads the main recipe with one text replaced by another.
    fn changed(from: &str, to: &str) -> String {
        let text = fs::read_to_string(folder().join("tiny-qwen3.toml")).unwrap();
        assert!(text.contains(from), "{from}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("changed.toml");
        fs::write(&path, text.replace(from, to)).unwrap();
        TargetRecipe::load(&path).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_key_or_value_is_an_error_that_names_file_and_key() {
        for (from, to, key) in [
            ("clip = 1.0", "clip = 1.0\nmomentum = 0.9", "momentum"),
            ("hidden_size = 192\n", "", "hidden_size"),
            (
                "num_key_value_heads = 2",
                "num_key_value_heads = 4",
                "num_key_value_heads",
            ),
            ("head_dim = 32", "head_dim = 33", "head_dim"),
            ("packs_per_step = 4", "packs_per_step = 0", "packs_per_step"),
            ("kind = \"gsm8k\"", "kind = \"gsm9k\"", "gsm9k"),
        ] {
            let message = changed(from, to);
            assert!(
                message.contains("changed.toml") && message.contains(key),
                "{key}: {message}"
            );
        }
    }

    #[test]
    fn progress_follows_whichever_limit_is_nearer() {
        let stop = StopConfig {
            max_steps: 100,
            max_minutes: Some(2.0),
        };
        assert_eq!(stop.progress(50, 30.0), 0.5);
        assert_eq!(stop.progress(50, 90.0), 0.75);
        assert_eq!(stop.progress(1, 500.0), 1.0);
    }
}
