//! `train dspark`: the shifted trunk with a Markov head and a confidence head.
//!
//! Source: DSpark (arXiv 2607.05147) and its training code: cross-entropy against the token the target wrote, distance
//! to the target's law, and the overlap of both laws as what a confidence should say. Tokens before a slot are the
//! target's own.

use crate::anchors::Coverage;
use crate::block::{BlockOut, Head, HeadDims, train};
use crate::check::{ABOVE_0, Check, NOT_BELOW_0, is_not_negative};
use crate::error::{Error, Result};
use crate::ops::{Parts, imitation, linear};
use crate::params::{Init, Params};
use crate::progress::Progress;
use crate::recipe::BlockRecipe;
use baselines::{Alignment, MarkovKind};
use candle_core::{D, Device, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// The `[head]` table of a DSpark recipe; a missing key is as in the released drafters.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DsparkHead {
    /// How the token before a slot corrects it.
    pub markov: MarkovKind,
    /// Rank of the correction.
    pub rank: usize,
    /// What the confidence head reads.
    pub confidence: ConfidenceInput,
    /// Weight of the cross-entropy.
    pub cross_entropy_weight: f64,
    /// Weight of the distance to the target's law.
    pub distance_weight: f64,
    /// Weight of the confidence's loss.
    pub confidence_weight: f64,
}

/// What a confidence head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfidenceInput {
    /// There is none.
    None,
    /// The slot's state.
    Hidden,
    /// The slot's state and the embedding of the token before it.
    HiddenAndMarkov,
}

impl Default for DsparkHead {
    fn default() -> Self {
        Self {
            markov: MarkovKind::Vanilla,
            rank: 256,
            confidence: ConfidenceInput::HiddenAndMarkov,
            cross_entropy_weight: 0.1,
            distance_weight: 0.9,
            confidence_weight: 1.0,
        }
    }
}

/// Reads and checks a recipe of `draftbench train dspark`.
///
/// # Errors
/// [`Error::Recipe`] for an unknown or missing key, [`Error::RecipeValue`] for a value that makes no sense.
pub fn load_dspark_recipe(file: &Path) -> Result<BlockRecipe<DsparkHead>> {
    let recipe = BlockRecipe::load_with(file, Sequential::checks)?;
    match recipe.drafter.alignment {
        Alignment::Shifted => Ok(recipe),
        Alignment::InPlace => Err(Error::RecipeValue {
            file: file.to_owned(),
            key: "drafter.alignment",
            problem: "must be shifted: every slot of a DSpark block drafts the next token".into(),
        }),
    }
}

/// Trains, or goes on training, the DSpark drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub fn train_dspark(recipe: &BlockRecipe<DsparkHead>, progress: &mut dyn Progress) -> Result<()> {
    train::<Sequential>(recipe, progress)
}

/// The trained head.
pub(crate) struct Sequential {
    config: DsparkHead,
    /// `[V, rank]`: embeddings of the token before a slot.
    w1: Tensor,
    /// `[V_d, rank]`: applied to what comes of the embedding.
    w2: Tensor,
    /// Weight and bias of the gate or of the joint projection.
    mix: Option<(Tensor, Tensor)>,
    /// `[1, H + rank]` or `[1, H]`, and `[1]`.
    confidence: Option<(Tensor, Tensor)>,
}

impl Head for Sequential {
    type Config = DsparkHead;

    const COVERAGE: Coverage = Coverage::Prefix;

    fn checks(config: &DsparkHead) -> Vec<Check> {
        let weight = |key, value| (key, is_not_negative(value), NOT_BELOW_0);
        vec![
            ("head.rank", config.rank > 0, ABOVE_0),
            weight("head.cross_entropy_weight", config.cross_entropy_weight),
            weight("head.distance_weight", config.distance_weight),
            weight("head.confidence_weight", config.confidence_weight),
        ]
    }

    fn new(config: &DsparkHead, dims: HeadDims, params: &mut Params, seed: u64) -> Result<Self> {
        let (rank, hidden) = (config.rank, dims.hidden);
        // The correction starts as almost nothing, so that training starts from the bare trunk.
        let unit = Init::Normal((rank as f64).sqrt().recip());
        let small = Init::Normal(0.02);
        let [before, after] = [[dims.vocab, rank], [dims.draft_vocab, rank]];
        let w1 = params.add("markov_head.markov_w1.weight", &before, unit, seed)?;
        let w2 = params.add("markov_head.markov_w2.weight", &after, small, seed)?;
        let mut affine = |name: &str, rows: usize, width: usize| -> Result<(Tensor, Tensor)> {
            let zero = Init::Normal(0.0);
            Ok((
                params.add(&format!("{name}.weight"), &[rows, width], small, seed)?,
                params.add(&format!("{name}.bias"), &[rows], zero, seed)?,
            ))
        };
        let mix = match config.markov {
            MarkovKind::Vanilla => None,
            MarkovKind::Gated => Some(affine("markov_head.gate_proj", rank, hidden + rank)?),
            MarkovKind::Rnn => {
                let (rows, width) = (3 * rank, 2 * rank + hidden);
                Some(affine("markov_head.joint_proj", rows, width)?)
            }
        };
        let confidence = match config.confidence {
            ConfidenceInput::None => None,
            ConfidenceInput::Hidden => Some(affine("confidence_head.proj", 1, hidden)?),
            ConfidenceInput::HiddenAndMarkov => {
                Some(affine("confidence_head.proj", 1, hidden + rank)?)
            }
        };
        Ok(Self {
            config: *config,
            w1,
            w2,
            mix,
            confidence,
        })
    }

    fn loss(&self, out: &BlockOut<'_>) -> Result<Tensor> {
        let embedded = self.embed(&tokens_before(out))?;
        let corrected = (out.logits + self.bias(&embedded, out)?)?;
        let shares = out.shares();
        let parts = Parts {
            cross_entropy: self.config.cross_entropy_weight as f32,
            distance: self.config.distance_weight as f32,
        };
        let labels = &out.blocks.classes;
        let (loss, overlap) = imitation(&corrected, &teacher(out)?, labels, &shares, parts)?;
        let Some((weight, bias)) = &self.confidence else {
            return Ok(loss);
        };
        let x = match self.config.confidence {
            ConfidenceInput::HiddenAndMarkov => Tensor::cat(&[out.hidden, &embedded], D::Minus1)?,
            _ => out.hidden.clone(),
        };
        let logits = affine(&x, weight, bias)?.flatten_all()?;
        // A label that cannot be drafted has an overlap of 0 here.
        let rated = binary_cross_entropy(&logits, &overlap, &out.rated_shares())?;
        Ok((loss + (rated * self.config.confidence_weight)?)?)
    }

    fn drafts(&self, out: &BlockOut<'_>) -> Result<Vec<u32>> {
        let (n_blocks, block_rows) = (out.blocks.at.len(), out.block_rows());
        let mut before: Vec<u32> = (0..n_blocks)
            .map(|block| out.blocks.ids[block * block_rows])
            .collect();
        let mut state = self.start(n_blocks)?;
        let mut drafts = vec![0; n_blocks * block_rows];
        for slot in 0..block_rows {
            let hidden = of_slot(out.hidden, n_blocks, slot)?;
            let z = self.mixed(&self.embed(&before)?, &hidden, &mut state)?;
            let logits = (of_slot(out.logits, n_blocks, slot)? + linear(&z, &self.w2)?)?;
            before = out.vocab.target_ids(logits.argmax(1)?.to_vec1()?);
            for (block, token) in before.iter().enumerate() {
                drafts[block * block_rows + slot] = *token;
            }
        }
        Ok(drafts)
    }

    /// The flat spelling of the released drafters.
    fn finish_config(&self, config: &mut Value) {
        let mut nested = config["dflash_config"].take();
        let map = config.as_object_mut().expect("a config is an object");
        map.remove("dflash_config");
        for key in ["mask_token_id", "target_layer_ids"] {
            map.insert(key.to_owned(), nested[key].take());
        }
        let mut own = json!({
            "architectures": ["Qwen3DSparkModel"],
            "markov_rank": self.config.rank,
            "markov_head_type": match self.config.markov {
                MarkovKind::Vanilla => "vanilla",
                MarkovKind::Gated => "gated",
                MarkovKind::Rnn => "rnn",
            },
            "enable_confidence_head": self.confidence.is_some(),
        });
        if self.confidence.is_some() {
            let reads_markov = self.config.confidence == ConfidenceInput::HiddenAndMarkov;
            own["confidence_head_with_markov"] = reads_markov.into();
        }
        let own = own.as_object_mut().map(std::mem::take).unwrap_or_default();
        map.extend(own);
    }
}

impl Sequential {
    fn embed(&self, before: &[u32]) -> Result<Tensor> {
        Ok(self
            .w1
            .index_select(&Tensor::new(before, &Device::Cpu)?, 0)?)
    }

    /// `[N, V_d]` corrections of all slots, each after the token the target wrote.
    fn bias(&self, embedded: &Tensor, out: &BlockOut<'_>) -> Result<Tensor> {
        let n_blocks = out.blocks.at.len();
        let mut state = self.start(n_blocks)?;
        let z = match self.config.markov {
            MarkovKind::Vanilla | MarkovKind::Gated => {
                self.mixed(embedded, out.hidden, &mut state)?
            }
            MarkovKind::Rnn => {
                // One slot of all blocks after the other; [blocks, 1, rank] each, side by side.
                let slots = (0..out.block_rows())
                    .map(|slot| {
                        let embedded = of_slot(embedded, n_blocks, slot)?;
                        let hidden = of_slot(out.hidden, n_blocks, slot)?;
                        let z = self.mixed(&embedded, &hidden, &mut state)?;
                        Ok(z.unsqueeze(1)?)
                    })
                    .collect::<Result<Vec<_>>>()?;
                let z = Tensor::cat(&slots, 1)?;
                z.reshape(((), self.config.rank))?.contiguous()?
            }
        };
        Ok(linear(&z, &self.w2)?)
    }

    /// The state before a block's first slot.
    fn start(&self, n_blocks: usize) -> Result<Tensor> {
        Ok(Tensor::zeros(
            (n_blocks, self.config.rank),
            self.w1.dtype(),
            &Device::Cpu,
        )?)
    }

    /// `[M, rank]`, what the correction is made of; `state` is read and renewed by the recurrent kind alone.
    fn mixed(&self, embedded: &Tensor, hidden: &Tensor, state: &mut Tensor) -> Result<Tensor> {
        let Some((weight, bias)) = &self.mix else {
            return Ok(embedded.clone());
        };
        if self.config.markov == MarkovKind::Gated {
            let x = Tensor::cat(&[hidden, embedded], D::Minus1)?;
            return Ok((sigmoid(&affine(&x, weight, bias)?)? * embedded)?);
        }
        let x = Tensor::cat(&[&*state, embedded, hidden], D::Minus1)?;
        let joint = affine(&x, weight, bias)?;
        let part = |i| joint.narrow(D::Minus1, i * self.config.rank, self.config.rank);
        let keep = sigmoid(&part(0)?)?;
        let new = (keep.affine(-1.0, 1.0)? * part(1)?.tanh()?)?;
        *state = ((keep * &*state)? + new)?;
        Ok(part(2)?.tanh()?)
    }
}

/// The token before each slot: the anchor, then the labels.
fn tokens_before(out: &BlockOut<'_>) -> Vec<u32> {
    let blocks = out.blocks;
    let block_rows = out.block_rows();
    (0..blocks.ids.len())
        .map(|slot| match slot % block_rows {
            0 => blocks.ids[slot],
            _ => blocks.labels[slot - 1],
        })
        .collect()
}

/// `[N, V_d]` logits of the target for each slot's label: those of the row before it. Over a reduced vocabulary its law is
/// what is left of it, made whole.
fn teacher(out: &BlockOut<'_>) -> Result<Tensor> {
    let last = out.pack.ids.len().saturating_sub(1);
    let block_rows = out.block_rows();
    // A context ends where its anchor stands. Slots past the text's end have no weight.
    let rows: Vec<u32> = out
        .blocks
        .at
        .iter()
        .flat_map(|at| (0..block_rows).map(|slot| (at.context.end + slot).min(last) as u32))
        .collect();
    let rows = Tensor::new(rows, &Device::Cpu)?;
    let hidden = out.target_hidden.index_select(&rows, 0)?;
    Ok(linear(&hidden, out.lm_head)?.detach())
}

/// Rows of one slot, `[blocks * block_rows, W]` -> `[blocks, W]`.
fn of_slot(t: &Tensor, n_blocks: usize, slot: usize) -> Result<Tensor> {
    let (n_rows, width) = t.dims2()?;
    let t = t.reshape((n_blocks, n_rows / n_blocks.max(1), width))?;
    Ok(t.narrow(1, slot, 1)?.squeeze(1)?.contiguous()?)
}

fn affine(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    Ok(linear(x, weight)?.broadcast_add(bias)?)
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    Ok((x.neg()?.exp()? + 1.0)?.recip()?)
}

/// `sum of weight * -(c log sigmoid(x) + (1 - c) log(1 - sigmoid(x)))`.
fn binary_cross_entropy(logits: &Tensor, claims: &[f32], weights: &[f32]) -> Result<Tensor> {
    let claims = Tensor::new(claims, &Device::Cpu)?;
    let weights = Tensor::new(weights, &Device::Cpu)?;
    // softplus(x) - c x, softplus in a form that cannot overflow.
    let tail = (logits.abs()?.neg()?.exp()? + 1.0)?.log()?;
    let rows = ((logits.relu()? + tail)? - (logits * claims)?)?;
    Ok((rows * weights)?.sum_all()?)
}

#[cfg(test)]
mod tests;
