//! `train domino`: a recurrent head that corrects each slot's logits by the tokens before it.
//!
//! Source: Domino (arXiv 2605.29707) and its training code: teacher forcing, and a loss that starts on the trunk's own
//! logits and moves to the corrected ones. Cutting a block behind its first wrong slot follows Spec-AUF (arXiv
//! 2607.01893). New recurrent weights are normal with the spread of PyTorch's uniform ones.

use crate::anchors::Coverage;
use crate::block::{BlockOut, Head, HeadDims, train};
use crate::check::{ABOVE_0, Check};
use crate::error::{Error, Result};
use crate::ops::{cross_entropy, linear};
use crate::params::{Init, Params};
use crate::progress::Progress;
use crate::recipe::BlockRecipe;
use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// The `[head]` table of a Domino recipe.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DominoTable {
    /// Width of the recurrent state, G.
    pub gru_hidden_dim: usize,
    /// Inner width of the correction.
    pub emb_dim: usize,
    /// Drafts at the start of a block that are not corrected.
    pub pure_draft_prefix_len: usize,
    /// Weight of the loss on the trunk's own logits at the start, 0 to 1; the corrected ones get the rest.
    pub base_weight: f64,
    /// Part of the run over which that weight falls to 0.
    pub base_until: f64,
    /// Which slots of a block are learned from.
    #[serde(default)]
    pub learn: Learn,
}

/// Which labelled slots of a block are learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Learn {
    /// All of them.
    #[default]
    EverySlot,
    /// Those up to and with the first that the trunk's own logits get wrong. The others still count in the mean's
    /// denominator. Assumption: the papers seen do not say.
    UntilWrong,
}

/// Reads and checks a recipe of `draftbench train domino`.
///
/// # Errors
/// [`Error::Recipe`] for an unknown or missing key, [`Error::RecipeValue`] for a value that makes no sense.
pub fn load_domino_recipe(file: &Path) -> Result<BlockRecipe<DominoTable>> {
    let recipe = BlockRecipe::load_with(file, Recurrent::checks)?;
    let first = recipe.drafter.alignment.first_slot();
    let gamma = recipe.drafter.block_rows - first;
    let prefix = recipe.head.pure_draft_prefix_len;
    if prefix >= gamma {
        return Err(Error::RecipeValue {
            file: file.to_owned(),
            key: "head.pure_draft_prefix_len",
            problem: format!(
                "is {prefix}, which leaves none of the {gamma} draft slots to the head"
            ),
        });
    }
    Ok(recipe)
}

/// Trains, or goes on training, the Domino drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub fn train_domino(recipe: &BlockRecipe<DominoTable>, progress: &mut dyn Progress) -> Result<()> {
    train::<Recurrent>(recipe, progress)
}

/// The head under training; its tensors are those of `baselines::DominoHead`.
pub(crate) struct Recurrent {
    table: DominoTable,
    dims: HeadDims,
    weight_ih: Tensor,
    weight_hh: Tensor,
    fc1: Tensor,
    fc2: Tensor,
}

impl Head for Recurrent {
    type Config = DominoTable;

    const COVERAGE: Coverage = Coverage::EachLabel;

    fn checks(table: &DominoTable) -> Vec<Check> {
        const PART: &str = "must be 0 to 1";
        vec![
            ("head.gru_hidden_dim", table.gru_hidden_dim > 0, ABOVE_0),
            ("head.emb_dim", table.emb_dim > 0, ABOVE_0),
            (
                "head.base_weight",
                (0.0..=1.0).contains(&table.base_weight),
                PART,
            ),
            (
                "head.base_until",
                (0.0..=1.0).contains(&table.base_until),
                PART,
            ),
        ]
    }

    fn new(table: &DominoTable, dims: HeadDims, params: &mut Params, seed: u64) -> Result<Self> {
        let (gru, rank) = (table.gru_hidden_dim, table.emb_dim);
        let HeadDims {
            hidden,
            draft_vocab,
            ..
        } = dims;
        let recurrent = Init::Normal((3.0 * gru as f64).sqrt().recip());
        let other = Init::Normal(0.02);
        let mut add = |name: &str, shape: &[usize], init| params.add(name, shape, init, seed);
        Ok(Self {
            table: table.clone(),
            dims,
            weight_ih: add("prefix_gru.weight_ih_l0", &[3 * gru, hidden], recurrent)?,
            weight_hh: add("prefix_gru.weight_hh_l0", &[3 * gru, gru], recurrent)?,
            fc1: add("embed_proj.0.weight", &[rank, hidden + gru], other)?,
            fc2: add("embed_proj.2.weight", &[draft_vocab, rank], other)?,
        })
    }

    fn loss(&self, out: &BlockOut<'_>) -> Result<Tensor> {
        let labels = &out.blocks.classes;
        let shares = self.shares(out)?;
        let base_weight = self.base_weight(out.progress);
        // Rows that are not corrected have one loss, whatever the mixture.
        let weights = |corrected: f64, other: f64| -> Vec<f32> {
            let rows = shares.iter().enumerate();
            rows.map(|(row, share)| match self.is_corrected(row) {
                true => share * corrected as f32,
                false => share * other as f32,
            })
            .collect()
        };
        let by_trunk = cross_entropy(out.logits, labels, &weights(base_weight, 1.0))?;
        let corrected = (out.logits + self.correction(out)?)?;
        let by_head = cross_entropy(&corrected, labels, &weights(1.0 - base_weight, 0.0))?;
        Ok((by_trunk + by_head)?)
    }

    fn drafts(&self, out: &BlockOut<'_>) -> Result<Vec<u32>> {
        // Given the labels instead of its own drafts the head says the same up to and with its first mistake, and
        // nothing behind that is accepted.
        let by_trunk: Vec<u32> = out.logits.argmax(1)?.to_vec1()?;
        let corrected = (out.logits + self.correction(out)?)?;
        let by_head: Vec<u32> = corrected.argmax(1)?.to_vec1()?;
        let pairs = by_trunk.into_iter().zip(by_head).enumerate();
        let drafts = pairs.map(|(row, (trunk, head))| match self.is_corrected(row) {
            true => head,
            false => trunk,
        });
        Ok(out.vocab.target_ids(drafts.collect()))
    }

    fn finish_config(&self, config: &mut Value) {
        config["architectures"] = json!(["DominoDraftModel"]);
        for (key, value) in [
            ("projector_type", json!("domino")),
            ("gru_hidden_dim", json!(self.table.gru_hidden_dim)),
            ("emb_dim", json!(self.table.emb_dim)),
            (
                "pure_draft_prefix_len",
                json!(self.table.pure_draft_prefix_len),
            ),
        ] {
            config["dflash_config"][key] = value;
        }
    }
}

impl Recurrent {
    /// Weight of the loss on the trunk's own logits: falls from `base_weight` to 0 over `base_until` of the run.
    fn base_weight(&self, progress: f64) -> f64 {
        let DominoTable {
            base_weight,
            base_until,
            ..
        } = self.table;
        match progress < base_until {
            true => base_weight * (1.0 - progress / base_until),
            false => 0.0,
        }
    }

    /// Whether the head has a say in this row.
    fn is_corrected(&self, row: usize) -> bool {
        let first = self.dims.alignment.first_slot();
        row % self.dims.block_rows >= first + self.table.pure_draft_prefix_len
    }

    /// Each slot's part of the batch's loss.
    fn shares(&self, out: &BlockOut<'_>) -> Result<Vec<f32>> {
        let mut shares = out.shares();
        if self.table.learn == Learn::UntilWrong {
            let best: Vec<u32> = out.logits.argmax(1)?.to_vec1()?;
            let right = best.iter().zip(&out.blocks.classes).map(|(b, c)| b == c);
            let right: Vec<bool> = right.collect();
            let HeadDims {
                block_rows,
                alignment,
                ..
            } = self.dims;
            cut_behind_the_first_wrong(&mut shares, &right, block_rows, alignment.first_slot());
        }
        Ok(shares)
    }

    /// `[N, V_d]` to add to the trunk's logits, for every row, also those that are not corrected.
    fn correction(&self, out: &BlockOut<'_>) -> Result<Tensor> {
        let joined = Tensor::cat(&[out.hidden, &self.states(out)?], 1)?;
        Ok(linear(&linear(&joined, &self.fc1)?.silu()?, &self.fc2)?)
    }

    /// `[N, G]`: the recurrent state each row sees, after the anchor and all labels before its own. Row 0 of an in-place
    /// block drafts nothing and sees zeros.
    fn states(&self, out: &BlockOut<'_>) -> Result<Tensor> {
        let HeadDims {
            block_rows,
            alignment,
            ..
        } = self.dims;
        let gru = self.table.gru_hidden_dim;
        let n_blocks = out.blocks.at.len();
        let first = alignment.first_slot();
        let mut state = Tensor::zeros((n_blocks, gru), DType::F32, &Device::Cpu)?;
        let mut states = vec![state.clone(); first];
        for row in first..block_rows {
            let token = |block: usize| match row == first {
                true => out.blocks.ids[block * block_rows],
                false => out.blocks.labels[block * block_rows + row - 1],
            };
            let tokens: Vec<u32> = (0..n_blocks).map(token).collect();
            let given = linear(&out.target.embed(&tokens)?.detach(), &self.weight_ih)?;
            state = gru_cell(&given, &linear(&state, &self.weight_hh)?, &state)?;
            states.push(state.clone());
        }
        // rows x [B, G] -> [B, rows, G] -> [B * rows, G]
        Ok(Tensor::stack(&states, 1)?.reshape((n_blocks * block_rows, gru))?)
    }
}

/// One step without biases; rows of the weights are in the order reset, update, new, as PyTorch packs them.
fn gru_cell(given: &Tensor, recurrent: &Tensor, state: &Tensor) -> Result<Tensor> {
    let (given, recurrent) = (given.chunk(3, 1)?, recurrent.chunk(3, 1)?);
    let reset = sigmoid(&(&given[0] + &recurrent[0])?)?;
    let update = sigmoid(&(&given[1] + &recurrent[1])?)?;
    let new = (&given[2] + (reset * &recurrent[2])?)?.tanh()?;
    // (1 - u) n + u h
    Ok((&new + (update * (state - &new)?)?)?)
}

/// Through tanh, whose gradient candle has.
fn sigmoid(x: &Tensor) -> Result<Tensor> {
    Ok((((x * 0.5)?.tanh()? * 0.5)? + 0.5)?)
}

/// Sets to 0 what stands behind the first wrong draft slot of each block. One without weight is wrong: its label cannot be
/// drafted, or the text is over.
fn cut_behind_the_first_wrong(shares: &mut [f32], right: &[bool], block_rows: usize, first: usize) {
    for (shares, right) in shares.chunks_mut(block_rows).zip(right.chunks(block_rows)) {
        let wrong = (first..block_rows).find(|row| shares[*row] == 0.0 || !right[*row]);
        if let Some(wrong) = wrong {
            shares[wrong + 1..].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests;
