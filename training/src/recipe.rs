//! Recipes: one TOML file says everything about a training run.

use crate::config::NetConfig;
use crate::data::BatchConfig;
use crate::error::{Error, Result};
use crate::optim::OptimizerConfig;
use crate::params::fnv1a;
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

/// Parses a TOML recipe.
pub(crate) fn load<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).map_err(Error::io(file))?;
    toml::from_str(&text).map_err(|e| Error::Recipe {
        file: file.to_owned(),
        message: e.to_string(),
    })
}
