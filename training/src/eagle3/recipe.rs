//! The recipe of `draftbench train eagle3`.

use super::net::Eagle3Shape;
use crate::answers::AnswersConfig;
use crate::check::{ABOVE_0, Check, first_failure, is_positive};
use crate::error::Result;
use crate::optim::OptimizerConfig;
use crate::params::fnv1a;
use crate::recipe::{ReportConfig, StopConfig, load};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A recipe of `draftbench train eagle3`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eagle3Recipe {
    /// The file it was read from, for error messages.
    #[serde(skip)]
    pub file: PathBuf,
    /// Seed of weights and order.
    pub seed: u64,
    /// Folder of the trained target.
    pub target: PathBuf,
    /// Folder of the finished drafter.
    pub out: PathBuf,
    /// Folder of answers, checkpoints and logs.
    pub work: PathBuf,
    /// Shape of the drafter and its unrolling.
    pub drafter: Eagle3Shape,
    /// What the target is asked.
    pub answers: AnswersConfig,
    /// Packing.
    pub batch: Eagle3Batch,
    /// AdamW and its schedule.
    pub optimizer: OptimizerConfig,
    /// When to end.
    pub stop: StopConfig,
    /// What to write when.
    pub report: ReportConfig,
}

/// The `[batch]` table of an EAGLE-3 recipe.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eagle3Batch {
    /// Most tokens of a pack; each is a row of every unrolled step.
    pub micro_tokens: usize,
    /// Packs whose gradients make one step.
    pub packs_per_step: usize,
}

impl Eagle3Batch {
    fn checks(&self) -> [Check; 2] {
        [
            ("batch.micro_tokens", self.micro_tokens > 0, ABOVE_0),
            ("batch.packs_per_step", self.packs_per_step > 0, ABOVE_0),
        ]
    }
}

impl Eagle3Shape {
    fn checks(&self) -> [Check; 5] {
        let taps = &self.target_layer_ids;
        [
            (
                "drafter.intermediate_size",
                self.intermediate_size > 0,
                ABOVE_0,
            ),
            (
                "drafter.target_layer_ids",
                !taps.is_empty() && taps.is_sorted_by(|a, b| a < b),
                "must rise and not be empty",
            ),
            (
                "drafter.draft_vocab_size",
                self.draft_vocab_size > 0,
                ABOVE_0,
            ),
            ("drafter.ttt_steps", self.ttt_steps > 0, ABOVE_0),
            ("drafter.step_decay", is_positive(self.step_decay), ABOVE_0),
        ]
    }
}

impl Eagle3Recipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// [`Error::Recipe`](crate::Error::Recipe) for an unknown or missing key,
    /// [`Error::RecipeValue`](crate::Error::RecipeValue) for a value that makes no sense.
    pub fn load(file: &Path) -> Result<Self> {
        let recipe = Self {
            file: file.to_owned(),
            ..load(file)?
        };
        let checks = recipe.drafter.checks().into_iter();
        let checks = checks
            .chain(recipe.answers.checks())
            .chain(recipe.batch.checks())
            .chain(recipe.optimizer.checks())
            .chain(recipe.stop.checks())
            .chain(recipe.report.checks());
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
            drafter,
            answers: _,
            batch,
            optimizer,
            stop: _,
            report: _,
        } = self;
        let parts = ("eagle3", seed, answers, drafter, batch, optimizer);
        format!("{:016x}", fnv1a(format!("{parts:?}").as_bytes()))
    }
}
