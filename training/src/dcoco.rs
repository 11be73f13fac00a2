//! `train dcoco`: a corrector on the shared trunk, learnt jointly or on a frozen trunk. DCOCO (reimplementation).
//!
//! The loss is not published. Ours, in the manner of the method's relatives: the trunk's own cross-entropy, and that of
//! the corrected scores over each slot's candidates after the right predecessor,
//!
//! `sum_i w_i CE(U_i, y_i) + lambda sum_(i > 1) w_i m_i CE over C_i (S_i(y_(i-1), .), y_i)`,
//!
//! `m_i` = 1 if the candidates `C_i` hold the label `y_i`. With teacher forcing there is one predecessor a slot, so
//! this is (gamma - 1) K scores a block; the predecessor needs only its embedding, its slot's state and its
//! log-probability, and may be no candidate.

mod corrector;

use crate::anchors::Coverage;
use crate::block::{BlockOut, Head, HeadDims, train};
use crate::check::{ABOVE_0, Check, NOT_BELOW_0, is_not_negative};
use crate::error::Result;
use crate::lm::CausalLm;
use crate::ops::{cross_entropy, linear, log_probs_at};
use crate::params::{Init, Params};
use crate::progress::Progress;
use crate::recipe::BlockRecipe;
use baselines::dcoco::{Candidates, Channels, Corrector, CorrectorSizes, Lattice, Layout};
use candle_core::{D, Device, Tensor};
use corrector::{PairNet, Sides};
use decode::TokenIo;
use models::Weights;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// The `[head]` table of a DCOCO recipe.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DcocoRecipeHead {
    /// How the corrector makes its inputs.
    pub layout: Layout,
    /// Candidates a slot, K.
    pub candidates: usize,
    /// Width of a candidate's vector.
    pub candidate_width: usize,
    /// Width of a pair state.
    pub pair_width: usize,
    /// Hidden units of the scoring network.
    pub hidden_width: usize,
    /// What the corrector sees.
    pub channels: ChannelNames,
    /// Weight of the corrector's loss beside the trunk's.
    pub lambda: f64,
    /// Inside it: weight of the cross-entropy against the label.
    pub ce: f64,
    /// Inside it: weight of `sum over C of p (ln p - ln q)` against the target's law p.
    pub kl: f64,
    /// Inside it: weight of the total variation against the target's law, whose rest outside C counts as missed.
    pub tv: f64,
    /// Whether a label that is no candidate takes the place of the last one.
    pub force_label: bool,
    /// Weight of the confidence head's loss; 0 trains none. Its gradient reaches no other tensor, and as Adam's step
    /// does not depend on the loss's scale, a small weight keeps it out of the gradient's clipped norm.
    pub confidence: f64,
}

impl Default for DcocoRecipeHead {
    fn default() -> Self {
        Self {
            layout: Layout::L1,
            candidates: 16,
            candidate_width: 128,
            pair_width: 128,
            hidden_width: 256,
            channels: ChannelNames::All,
            lambda: 1.0,
            ce: 1.0,
            kl: 0.0,
            tv: 0.0,
            force_label: false,
            confidence: 0.0,
        }
    }
}

/// What the corrector sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelNames {
    /// Everything.
    All,
    /// No pair states.
    NoPairState,
    /// No candidate vectors.
    NoCandidate,
}

impl ChannelNames {
    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::NoPairState => "no_pair_state",
            Self::NoCandidate => "no_candidate",
        }
    }

    fn channels(self) -> Channels {
        self.name()
            .parse()
            .expect("the names are those of the method")
    }
}

/// Reads and checks a recipe of `draftbench train dcoco`.
///
/// # Errors
/// [`Error::Recipe`](crate::Error::Recipe) for an unknown or missing key,
/// [`Error::RecipeValue`](crate::Error::RecipeValue) for a value that makes no sense.
pub fn load_dcoco_recipe(file: &Path) -> Result<BlockRecipe<DcocoRecipeHead>> {
    BlockRecipe::load_with(file, DcocoHead::checks)
}

/// Trains, or goes on training, the DCOCO drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub fn train_dcoco(
    recipe: &BlockRecipe<DcocoRecipeHead>,
    progress: &mut dyn Progress,
) -> Result<()> {
    train::<DcocoHead>(recipe, progress)
}

/// A corrector under training.
pub(crate) struct DcocoHead {
    config: DcocoRecipeHead,
    dims: HeadDims,
    net: PairNet,
    /// Weight `[1, H]` and bias `[1]`.
    confidence: Option<[Tensor; 2]>,
}

/// The parts of a loss, each already divided by the batch's weight but not multiplied with its own.
struct Parts {
    base: Tensor,
    pair: Tensor,
    confidence: Option<Tensor>,
}

impl Head for DcocoHead {
    type Config = DcocoRecipeHead;

    const COVERAGE: Coverage = Coverage::EachLabel;

    fn checks(config: &DcocoRecipeHead) -> Vec<Check> {
        let weight = |key, value| (key, is_not_negative(value), NOT_BELOW_0);
        vec![
            (
                "head.candidates",
                (1..=32).contains(&config.candidates),
                "must be 1 to 32",
            ),
            ("head.candidate_width", config.candidate_width > 0, ABOVE_0),
            ("head.pair_width", config.pair_width > 0, ABOVE_0),
            ("head.hidden_width", config.hidden_width > 0, ABOVE_0),
            weight("head.lambda", config.lambda),
            weight("head.ce", config.ce),
            weight("head.kl", config.kl),
            weight("head.tv", config.tv),
            weight("head.confidence", config.confidence),
        ]
    }

    fn new(
        config: &DcocoRecipeHead,
        dims: HeadDims,
        params: &mut Params,
        seed: u64,
    ) -> Result<Self> {
        let sizes = CorrectorSizes {
            hidden: dims.hidden,
            candidate: config.candidate_width,
            pair: config.pair_width,
            units: config.hidden_width,
        };
        let net = PairNet::new(
            config.layout,
            sizes,
            config.channels.channels(),
            params,
            seed,
        )?;
        let confidence = match config.confidence > 0.0 {
            false => None,
            true => {
                let zero = Init::Normal(0.0);
                let weight = "confidence_head.proj.weight";
                Some([
                    params.add(weight, &[1, dims.hidden], zero, seed)?,
                    params.add("confidence_head.proj.bias", &[1], zero, seed)?,
                ])
            }
        };
        Ok(Self {
            config: config.clone(),
            dims,
            net,
            confidence,
        })
    }

    fn loss(&self, out: &BlockOut<'_>) -> Result<Tensor> {
        let parts = self.parts(out)?;
        let mut loss = (parts.base + (parts.pair * self.config.lambda)?)?;
        if let Some(confidence) = parts.confidence {
            loss = (loss + (confidence * self.config.confidence)?)?;
        }
        Ok(loss)
    }

    fn drafts(&self, out: &BlockOut<'_>) -> Result<Vec<u32>> {
        let (rows, first) = (out.block_rows(), self.dims.alignment.first_slot());
        let (n_blocks, gamma, k) = (out.blocks.at.len(), rows - first, self.config.candidates);
        let slots = |t: &Tensor| -> Result<Tensor> {
            let width = t.dim(D::Minus1)?;
            let t = t
                .reshape((n_blocks, rows, width))?
                .narrow(1, first, gamma)?;
            Ok(t.contiguous()?.reshape((n_blocks * gamma, width))?.detach())
        };
        // The method's own code, so that what is measured is what will run.
        let mut weights = Weights::from_tensors("the trained corrector", self.net.snapshot());
        let (sizes, channels) = (*self.net.sizes(), self.config.channels.channels());
        let mut corrector = Corrector::new(sizes, channels, &mut weights, "the recipe")
            .expect("tensors of a layout fit that layout");
        let mut candidates = Candidates::of(&slots(out.logits)?, k)?;
        candidates.ids = out.vocab.target_ids(candidates.ids);
        let io = FrozenEnds(out.target);
        let scores = corrector.scores(&slots(out.hidden)?, &candidates, gamma, &io)?;
        let mut drafts = Vec::with_capacity(n_blocks * rows);
        let square = (gamma - 1) * k * k;
        for block in 0..n_blocks {
            let (at, own) = (block * gamma * k, block * square);
            let unary = &candidates.log_probs[at..at + k];
            let ranks = Lattice::new(unary, &scores[own..own + square]).walk();
            // An anchor's own slot drafts nothing.
            drafts.resize(block * rows + first, 0);
            let ids = candidates.ids[at..at + gamma * k].chunks_exact(k);
            drafts.extend(ids.zip(ranks).map(|(ids, rank)| ids[rank]));
        }
        Ok(drafts)
    }

    fn finish_config(&self, config: &mut Value) {
        let head = &self.config;
        config["architectures"] = json!(["DCOCODraftModel"]);
        let keys = [
            ("projector_type", json!("dcoco")),
            ("corrector_candidates", json!(head.candidates)),
            ("corrector_candidate_width", json!(head.candidate_width)),
            ("corrector_pair_width", json!(head.pair_width)),
            ("corrector_hidden_width", json!(head.hidden_width)),
            ("corrector_channels", json!(head.channels.name())),
            ("enable_confidence_head", json!(self.confidence.is_some())),
        ];
        for (key, value) in keys {
            config["dflash_config"][key] = value;
        }
    }
}

impl DcocoHead {
    /// Numbers of the slots that follow another draft slot of their block.
    fn later_slots(&self, n_slots: usize) -> Vec<u32> {
        let (rows, first) = (self.dims.block_rows, self.dims.alignment.first_slot());
        let slots = 0..n_slots as u32;
        slots.filter(|slot| *slot as usize % rows > first).collect()
    }

    fn parts(&self, out: &BlockOut<'_>) -> Result<Parts> {
        let (k, shares) = (self.config.candidates, out.shares());
        let (labels, classes) = (&out.blocks.labels, &out.blocks.classes);
        let n = labels.len();
        let candidates = self.candidates(out)?;
        // [N, K + 1]: the candidates, then the label, which is also the next slot's predecessor. Draft ids.
        let ids: Vec<u32> = candidates
            .chunks_exact(k)
            .zip(classes)
            .flat_map(|(ids, label)| ids.iter().chain([label]))
            .copied()
            .collect();
        let log_probs = log_probs_at(out.logits, &ids)?;
        let weights = Tensor::new(shares.as_slice(), &Device::Cpu)?;
        let base = (log_probs.narrow(1, k, 1)?.squeeze(1)? * weights)?
            .sum_all()?
            .neg()?;

        let later = self.later_slots(n);
        if later.is_empty() {
            // A block of one draft has no pair.
            let pair = base.zeros_like()?;
            let confidence = None;
            return Ok(Parts {
                base,
                pair,
                confidence,
            });
        }
        let at = |slot: &u32| *slot as usize;
        let scores = self.net.scores(&Sides {
            hidden: out.hidden,
            embedding: &out.target.embedding(),
            earlier: &later.iter().map(|slot| slot - 1).collect::<Vec<_>>(),
            later: &later,
            predecessors: &later
                .iter()
                .map(|slot| labels[at(slot) - 1])
                .collect::<Vec<_>>(),
            candidates: &out.vocab.target_ids(
                later
                    .iter()
                    .flat_map(|slot| &candidates[at(slot) * k..][..k])
                    .copied()
                    .collect(),
            ),
            log_probs: &log_probs,
        })?;
        let rank = |slot: &u32| {
            let ids = &candidates[at(slot) * k..][..k];
            ids.iter().position(|id| *id == classes[at(slot)])
        };
        let ranks: Vec<Option<usize>> = later.iter().map(rank).collect();
        // Behind a label that cannot be drafted no candidate of the slot before it is right, so there is nothing to go on from.
        let share = |slot: &u32| match shares[at(slot) - 1] > 0.0 {
            true => shares[at(slot)],
            false => 0.0,
        };
        let own: Vec<f32> = later.iter().map(share).collect();
        let pair = self.pair_loss(out, &scores, &ranks, &own, &later, &candidates)?;
        let confidence = match &self.confidence {
            None => None,
            Some(head) => {
                // A slot whose first choice is the label; the first slots have nothing else.
                let first = |slot| candidates[slot * k] == classes[slot];
                let mut kept: Vec<bool> = (0..n).map(first).collect();
                let best = scores.detach().argmax(D::Minus1)?.to_vec1::<u32>()?;
                for ((slot, best), rank) in later.iter().zip(best).zip(&ranks) {
                    kept[at(slot)] = *rank == Some(best as usize);
                }
                Some(confidence_loss(head, out, kept)?)
            }
        };
        Ok(Parts {
            base,
            pair,
            confidence,
        })
    }

    /// `[N * K]` draft ids of the trunk's best tokens, with the label in the last place if that is asked for.
    fn candidates(&self, out: &BlockOut<'_>) -> Result<Vec<u32>> {
        let k = self.config.candidates;
        let (ids, _) = kernels::topk_rows(&out.logits.detach(), k)?;
        let mut ids = ids.flatten_all()?.to_vec1::<u32>()?;
        if self.config.force_label {
            for (ids, label) in ids.chunks_exact_mut(k).zip(&out.blocks.classes) {
                if !ids.contains(label) {
                    ids[k - 1] = *label;
                }
            }
        }
        Ok(ids)
    }

    /// The corrector's loss from `[T, K]` scores.
    fn pair_loss(
        &self,
        out: &BlockOut<'_>,
        scores: &Tensor,
        ranks: &[Option<usize>],
        shares: &[f32],
        later: &[u32],
        candidates: &[u32],
    ) -> Result<Tensor> {
        let config = &self.config;
        let labels: Vec<u32> = ranks.iter().map(|r| r.unwrap_or(0) as u32).collect();
        let held = ranks.iter().zip(shares);
        let weights: Vec<f32> = held
            .map(|(r, w)| if r.is_some() { *w } else { 0.0 })
            .collect();
        let mut loss = (cross_entropy(scores, &labels, &weights)? * config.ce)?;
        if config.kl == 0.0 && config.tv == 0.0 {
            return Ok(loss);
        }
        let k = config.candidates;
        // Slots past the end of a text carry no weight and have no law to follow.
        let seen: Vec<usize> = (0..later.len()).filter(|i| shares[*i] > 0.0).collect();
        if seen.is_empty() {
            return Ok(loss);
        }
        let index: Vec<u32> = seen.iter().map(|i| *i as u32).collect();
        let index = Tensor::new(index.as_slice(), &Device::Cpu)?;
        let rows: Vec<u32> = seen
            .iter()
            .map(|i| out.blocks.target_rows[later[*i] as usize])
            .collect();
        let ids: Vec<u32> = seen
            .iter()
            .flat_map(|i| &candidates[later[*i] as usize * k..][..k])
            .copied()
            .collect();
        let rows = out
            .target_hidden
            .index_select(&Tensor::new(rows.as_slice(), &Device::Cpu)?, 0)?;
        let p = log_probs_at(&linear(&rows, out.lm_head)?.detach(), &ids)?.detach();
        let scores = scores.index_select(&index, 0)?;
        let q = scores.broadcast_sub(&log_sum_exp(&scores)?)?;
        let own: Vec<f32> = seen.iter().map(|i| shares[*i]).collect();
        let own = Tensor::new(own.as_slice(), &Device::Cpu)?;
        let weigh = |terms: Tensor| -> Result<Tensor> { Ok((terms * &own)?.sum_all()?) };
        let kl = (p.exp()? * (&p - &q)?)?.sum(D::Minus1)?;
        loss = (loss + (weigh(kl)? * config.kl)?)?;
        // Half of |p - q| over the candidates and of what p, made whole over the draft vocabulary, has elsewhere.
        let rest = (1.0 - p.exp()?.sum(D::Minus1)?)?;
        let tv = ((p.exp()? - q.exp()?)?.abs()?.sum(D::Minus1)? + rest)?;
        Ok((loss + (weigh(tv)? * (0.5 * config.tv))?)?)
    }
}

/// `[T, K]` to `[T, 1]`.
fn log_sum_exp(scores: &Tensor) -> Result<Tensor> {
    let top = scores.max_keepdim(D::Minus1)?.detach();
    let total = scores.broadcast_sub(&top)?.exp()?.sum_keepdim(D::Minus1)?;
    Ok((total.log()? + top)?)
}

/// Weighted binary cross-entropy of a slot's chance to be kept, from its state alone; no gradient reaches the state.
fn confidence_loss(
    [weight, bias]: &[Tensor; 2],
    out: &BlockOut<'_>,
    mut kept: Vec<bool>,
) -> Result<Tensor> {
    // Labels that cannot be drafted are refused, whatever id stands in for them.
    let slots = kept.iter_mut().zip(&out.blocks.weights);
    slots.for_each(|(kept, weight)| *kept &= *weight > 0.0);
    let z = linear(&out.hidden.detach(), weight)?
        .broadcast_add(bias)?
        .squeeze(1)?;
    let kept: Vec<f32> = kept.iter().map(|kept| f32::from(u8::from(*kept))).collect();
    let kept = Tensor::new(kept.as_slice(), &Device::Cpu)?;
    let shares = Tensor::new(out.rated_shares().as_slice(), &Device::Cpu)?;
    // max(z, 0) - z y + ln(1 + e^-|z|)
    let tail = (z.abs()?.neg()?.exp()? + 1.0)?.log()?;
    let terms = ((z.relu()? - (&z * kept)?)? + tail)?;
    Ok((terms * shares)?.sum_all()?)
}

/// The frozen ends of a target in the decode loop's words.
struct FrozenEnds<'a>(&'a CausalLm);

fn model(error: crate::Error) -> decode::Error {
    decode::Error::Model(error.to_string())
}

impl TokenIo for FrozenEnds<'_> {
    fn vocab(&self) -> usize {
        self.0.config().vocab_size
    }

    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        let rows = self.0.embed(&ids.to_vec1::<u32>()?).map_err(model)?;
        Ok(rows.detach())
    }

    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        self.0.logits(hidden).map_err(model)
    }
}

#[cfg(test)]
mod tests;
