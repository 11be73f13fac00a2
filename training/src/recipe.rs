//! Recipes: one TOML file says everything about a training run.

pub use crate::answers::{AnswersConfig, ChatText};
use crate::check::{ABOVE_0, Check, NOT_BELOW_0, first_failure, is_not_negative, is_positive};
pub use crate::config::{Experts, Family, NetConfig};
pub use crate::data::BatchConfig;
pub use crate::eagle3::{Eagle3Batch, Eagle3Recipe, Eagle3Shape};
use crate::error::{Error, Result};
pub use crate::optim::OptimizerConfig;
use crate::params::fnv1a;
pub use crate::trunk::TrunkConfig;
use datasets::CorpusSpec;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

/// When a run ends; whichever comes first. The learning rate follows whichever is further.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopConfig {
    /// Optimiser steps.
    pub max_steps: u64,
    /// Minutes of training, summed over resumed parts; without it only the steps count, and a run is repeatable
    /// with as many threads.
    #[serde(default)]
    pub max_minutes: Option<f64>,
}

impl StopConfig {
    pub(crate) fn checks(&self) -> [Check; 2] {
        [
            ("stop.max_steps", self.max_steps > 0, ABOVE_0),
            (
                "stop.max_minutes",
                self.max_minutes.is_none_or(is_positive),
                ABOVE_0,
            ),
        ]
    }

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
    /// MiB that the process must not pass; a run that does ends with an error behind its checkpoint. Read where the
    /// system tells it (Linux).
    #[serde(default)]
    pub peak_mib: Option<u64>,
}

impl ReportConfig {
    pub(crate) fn checks(&self) -> [Check; 3] {
        [
            (
                "report.checkpoint_minutes",
                is_not_negative(self.checkpoint_minutes),
                NOT_BELOW_0,
            ),
            (
                "report.held_out_every_steps",
                self.held_out_every_steps > 0,
                ABOVE_0,
            ),
            ("report.peak_mib", self.peak_mib != Some(0), ABOVE_0),
        ]
    }
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
        let own = [
            (
                "model.max_position_embeddings",
                recipe.model.max_position_embeddings >= recipe.batch.max_text_tokens,
                "must not be below batch.max_text_tokens",
            ),
            (
                "balance_weight",
                is_not_negative(recipe.balance_weight),
                NOT_BELOW_0,
            ),
        ];
        let checks = recipe.model.checks().into_iter().chain(own);
        let checks = checks
            .chain(recipe.batch.checks())
            .chain(recipe.optimizer.checks())
            .chain(recipe.stop.checks())
            .chain(recipe.report.checks());
        first_failure(file, checks)?;
        Ok(recipe)
    }

    /// Changes whenever a checkpoint of the old recipe must not be continued under the new one.
    pub fn fingerprint(&self) -> String {
        // Every key is named, so that a new one is not forgotten.
        let Self {
            seed,
            out: _,
            work: _,
            tokenizer,
            chat_template,
            balance_weight,
            model,
            corpus,
            batch,
            optimizer,
            stop: _,
            report: _,
        } = self;
        let parts = (
            (seed, tokenizer, chat_template, balance_weight),
            (model, corpus, batch, optimizer),
        );
        format!("{:016x}", fnv1a(format!("{parts:?}").as_bytes()))
    }
}

/// A recipe of a block drafter; `C` is its `[head]` table, which may be left out if every key of it may.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Default + DeserializeOwned")]
pub struct BlockRecipe<C> {
    /// The file it was read from, for error messages.
    #[serde(skip)]
    pub file: PathBuf,
    /// Seed of weights, order and anchors.
    pub seed: u64,
    /// Folder of the trained target.
    pub target: PathBuf,
    /// Folder of the finished drafter.
    pub out: PathBuf,
    /// Folder of answers, checkpoints and logs.
    pub work: PathBuf,
    /// The token that stands in a block's open slots, one that the target never writes; without it `<|mask|>`.
    #[serde(default)]
    pub mask_token: Option<String>,
    /// A drafter's folder whose trunk this one starts from; without it the trunk starts from the target's layers.
    #[serde(default)]
    pub init: Option<PathBuf>,
    /// Whether the trunk stays as it starts and only the head learns.
    #[serde(default)]
    pub frozen_trunk: bool,
    /// Shape of the trunk.
    pub drafter: TrunkConfig,
    /// What is special to the method.
    #[serde(default)]
    pub head: C,
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
    /// Blocks whose logits are in memory at once, shared out among the threads and rounded up.
    #[serde(default = "all_blocks")]
    pub blocks_per_chunk: usize,
}

fn all_blocks() -> usize {
    1 << 20
}

impl DraftBatchConfig {
    fn checks(&self) -> [Check; 5] {
        [
            ("batch.blocks_per_chunk", self.blocks_per_chunk > 0, ABOVE_0),
            ("batch.micro_tokens", self.micro_tokens > 0, ABOVE_0),
            ("batch.packs_per_step", self.packs_per_step > 0, ABOVE_0),
            ("batch.anchors_per_text", self.anchors_per_text > 0, ABOVE_0),
            ("batch.decay", is_positive(self.decay), ABOVE_0),
        ]
    }
}

impl<C: Clone + Debug + Default + DeserializeOwned> BlockRecipe<C> {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// [`Error::Recipe`] for an unknown or missing key, [`Error::RecipeValue`] for a value that makes no sense.
    pub(crate) fn load_with(file: &Path, head: fn(&C) -> Vec<Check>) -> Result<Self> {
        let recipe = Self {
            file: file.to_owned(),
            ..load(file)?
        };
        let frozen = (
            "frozen_trunk",
            !recipe.frozen_trunk || recipe.init.is_some(),
            "needs init, the folder of a trained trunk",
        );
        let checks = recipe
            .drafter
            .checks()
            .into_iter()
            .chain(head(&recipe.head));
        let checks = checks
            .chain(recipe.answers.checks())
            .chain(recipe.batch.checks())
            .chain(recipe.optimizer.checks())
            .chain(recipe.stop.checks())
            .chain(recipe.report.checks())
            .chain([frozen]);
        first_failure(file, checks)?;
        Ok(recipe)
    }

    /// Changes whenever a checkpoint of the old recipe must not be continued under the new one. `answers` names the
    /// target's answers.
    pub fn fingerprint(&self, answers: &str) -> String {
        // Every key is named, so that a new one is not forgotten. The target's weights and the questions are in the
        // name of the answers.
        let Self {
            file: _,
            seed,
            target: _,
            out: _,
            work: _,
            mask_token,
            init,
            frozen_trunk,
            drafter,
            head,
            answers: _,
            batch,
            optimizer,
            stop: _,
            report: _,
        } = self;
        let parts = (
            (seed, answers, drafter, batch, optimizer),
            (init, frozen_trunk, head),
        );
        // A recipe without the later key has the fingerprint that it always had.
        let parts = format!("{parts:?}").replace(", draft_vocab_size: None", "");
        let mask = mask_token.as_deref().unwrap_or_default();
        format!("{:016x}", fnv1a(format!("{parts}{mask}").as_bytes()))
    }
}

/// A recipe that only has a target answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswersRecipe {
    /// Folder of the target.
    pub target: PathBuf,
    /// The questions, as in the recipes of drafters that share the answers; names their folder.
    pub answers: AnswersConfig,
}

impl AnswersRecipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// [`Error::Recipe`] for an unknown or missing key, [`Error::RecipeValue`] for a value that makes no sense.
    pub fn load(file: &Path) -> Result<Self> {
        let recipe: Self = load(file)?;
        let shared = (
            "answers.folder",
            recipe.answers.folder.is_some(),
            "must be there: nothing else says where the answers go",
        );
        first_failure(file, recipe.answers.checks().into_iter().chain([shared]))?;
        Ok(recipe)
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
mod tests;
