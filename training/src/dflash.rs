//! `train dflash`: the bare trunk.
//!
//! Source: DFlash (arXiv 2602.06036): position-weighted cross-entropy against the tokens the target wrote.

use crate::anchors::Coverage;
use crate::block::{BlockOut, Head, HeadDims, train};
use crate::check::Check;
use crate::error::Result;
use crate::ops::cross_entropy;
use crate::params::Params;
use crate::progress::Progress;
use crate::recipe::BlockRecipe;
use candle_core::Tensor;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The `[head]` table of a DFlash recipe: it has no keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DflashHead {}

/// Reads and checks a recipe of `draftbench train dflash`.
///
/// # Errors
/// [`Error::Recipe`](crate::Error::Recipe) for an unknown or missing key,
/// [`Error::RecipeValue`](crate::Error::RecipeValue) for a value that makes no sense.
pub fn load_dflash_recipe(file: &Path) -> Result<BlockRecipe<DflashHead>> {
    BlockRecipe::load_with(file, NoHead::checks)
}

/// Trains, or goes on training, the DFlash drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub fn train_dflash(recipe: &BlockRecipe<DflashHead>, progress: &mut dyn Progress) -> Result<()> {
    train::<NoHead>(recipe, progress)
}

/// Each slot's first choice.
pub(crate) struct NoHead;

impl Head for NoHead {
    type Config = DflashHead;

    const COVERAGE: Coverage = Coverage::EachLabel;

    fn checks(_config: &DflashHead) -> Vec<Check> {
        Vec::new()
    }

    fn new(
        _config: &DflashHead,
        _dims: HeadDims,
        _params: &mut Params,
        _seed: u64,
    ) -> Result<Self> {
        Ok(Self)
    }

    fn loss(&self, out: &BlockOut<'_>) -> Result<Tensor> {
        Ok(cross_entropy(
            out.logits,
            &out.blocks.classes,
            &out.shares(),
        )?)
    }

    fn drafts(&self, out: &BlockOut<'_>) -> Result<Vec<u32>> {
        Ok(out.vocab.target_ids(out.logits.argmax(1)?.to_vec1()?))
    }

    fn finish_config(&self, _config: &mut Value) {}
}

#[cfg(test)]
mod tests;
