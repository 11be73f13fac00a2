//! `train dflash`: a block drafter on a frozen target's own answers.
//!
//! Source: DFlash (arXiv 2602.06036): position-weighted cross-entropy against the tokens the target wrote.

use crate::anchors::{BlockShape, Blocks, Coverage, DraftPack};
use crate::answers::{answers, texts};
use crate::data::{Cursor, Texts};
use crate::error::{Error, Result};
use crate::files::{save_weights, write_json};
use crate::lm::CausalLm;
use crate::ops::{cross_entropy, linear};
use crate::optim::Gradients;
use crate::params::{Params, fnv1a};
use crate::progress::Progress;
use crate::recipe::DflashRecipe;
use crate::run::{Batch, Job, Plan, run};
use crate::tokenizer::{MASK, TextCodec};
use crate::trunk::{Trunk, TrunkConfig};
use baselines::Alignment;
use candle_core::Tensor;
use datasets::Domain;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::path::Path;

/// Anchors of each held-out text.
const HELD_OUT_ANCHORS: usize = 8;

/// Trains, or goes on training, the DFlash drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub fn train_dflash(recipe: &DflashRecipe, progress: &mut dyn Progress) -> Result<()> {
    let target = CausalLm::load(&recipe.target)?;
    check_taps(recipe, &target)?;
    let (answers, file) = answers(&recipe.target, &recipe.work, &recipe.answers, progress)?;
    let texts = texts(&answers, recipe.seed)?;
    let codec = TextCodec::load(&recipe.target.join("tokenizer.json"))?;
    let trunk = Trunk::new(&recipe.drafter, target.config(), recipe.seed)?;
    let copied = trunk.warm_start(&target)?;
    progress.note(&format!(
        "{} training texts, {} tokens a pass; {} trained values, {} tensors start as the target's",
        texts.len(),
        texts.tokens(),
        trunk.params.count(),
        copied.len()
    ));
    let shape = BlockShape {
        block_rows: recipe.drafter.block_rows,
        alignment: recipe.drafter.alignment,
        mask: codec.special(MASK)?,
        decay: Some(recipe.batch.decay),
        coverage: Coverage::EachLabel,
    };
    let mut job = DflashJob {
        recipe,
        net: DraftNet::new(target, trunk, &recipe.drafter),
        texts,
        shape,
    };
    let plan = Plan {
        fingerprint: recipe.fingerprint(&file.display().to_string()),
        work: &recipe.work,
        optimizer: &recipe.optimizer,
        stop: &recipe.stop,
        report: &recipe.report,
    };
    run(&plan, &mut job, progress)
}

fn check_taps(recipe: &DflashRecipe, target: &CausalLm) -> Result<()> {
    let depth = target.config().num_hidden_layers;
    let taps = &recipe.drafter.target_layer_ids;
    match taps.iter().find(|id| **id >= depth) {
        None => Ok(()),
        Some(id) => Err(Error::RecipeValue {
            file: recipe.file.clone(),
            key: "drafter.target_layer_ids",
            problem: format!("names layer {id}, the target has 0..{depth}"),
        }),
    }
}

/// A frozen target and the trunk that drafts for it.
pub(crate) struct DraftNet {
    pub(crate) target: CausalLm,
    pub(crate) trunk: Trunk,
    head: Tensor,
    taps: Vec<usize>,
}

impl DraftNet {
    pub(crate) fn new(target: CausalLm, trunk: Trunk, config: &TrunkConfig) -> Self {
        Self {
            head: target.head_weight(),
            target,
            trunk,
            taps: config.target_layer_ids.clone(),
        }
    }

    /// `[blocks * block_rows, V]` logits of all slots.
    pub(crate) fn logits(&self, pack: &DraftPack, blocks: &Blocks) -> Result<Tensor> {
        let (_, taps) = self.target.states(&pack.ids, &pack.texts, &self.taps)?;
        let slots = self.target.embed(&blocks.ids)?.detach();
        let hidden = self
            .trunk
            .forward(&taps, &pack.positions(), &slots, &blocks.at)?;
        Ok(linear(&hidden, &self.head)?)
    }

    /// Sum over slots of weight times cross-entropy, divided by `total`.
    pub(crate) fn loss(&self, pack: &DraftPack, blocks: &Blocks, total: f64) -> Result<Tensor> {
        let share = |w: &f32| (f64::from(*w) / total) as f32;
        let weights: Vec<f32> = blocks.weights.iter().map(share).collect();
        Ok(cross_entropy(
            &self.logits(pack, blocks)?,
            &blocks.labels,
            &weights,
        )?)
    }

    /// Writes the drafter's folder: `config.json` and bf16 `model.safetensors`.
    pub(crate) fn save(&self, folder: &Path, shape: &BlockShape) -> Result<()> {
        save_weights(&folder.join("model.safetensors"), &self.trunk.params)?;
        write_json(&folder.join("config.json"), &self.config_json(shape))
    }

    /// The drafter's `config.json` in z-lab spelling.
    fn config_json(&self, shape: &BlockShape) -> serde_json::Value {
        let net = self.trunk.net();
        serde_json::json!({
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": shape.block_rows,
            "dflash_config": {
                "mask_token_id": shape.mask,
                "target_layer_ids": self.taps,
                "shift_label": shape.alignment == Alignment::Shifted,
            },
            "num_target_layers": self.target.config().num_hidden_layers,
            "hidden_size": net.hidden_size,
            "intermediate_size": net.intermediate_size,
            "num_hidden_layers": net.num_hidden_layers,
            "num_attention_heads": net.num_attention_heads,
            "num_key_value_heads": net.num_key_value_heads,
            "head_dim": net.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": net.rms_norm_eps,
            "rope_theta": net.rope_theta,
            "rope_scaling": null,
            "max_position_embeddings": net.max_position_embeddings,
            "vocab_size": net.vocab_size,
            "attention_bias": false,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
        })
    }

    /// Mean over blocks of 1 + drafts that equal the target's tokens before the first that does not. A block that the
    /// text's end cuts short counts with what is left of it.
    pub(crate) fn acceptance_length(&self, pack: &DraftPack, blocks: &Blocks) -> Result<f64> {
        let block_rows = blocks.ids.len() / blocks.at.len().max(1);
        let drafts: Vec<u32> = self.logits(pack, blocks)?.argmax(1)?.to_vec1()?;
        let first = blocks.weights.iter().position(|w| *w > 0.0).unwrap_or(0) % block_rows;
        let mut committed = blocks.at.len();
        for start in (0..blocks.ids.len()).step_by(block_rows) {
            let slots = start + first..start + block_rows;
            let is_kept = |s: &usize| blocks.weights[*s] > 0.0 && drafts[*s] == blocks.labels[*s];
            committed += slots.take_while(is_kept).count();
        }
        Ok(committed as f64 / blocks.at.len().max(1) as f64)
    }
}

struct DflashJob<'a> {
    recipe: &'a DflashRecipe,
    net: DraftNet,
    texts: Texts,
    shape: BlockShape,
}

impl DflashJob<'_> {
    /// The same blocks at every measurement. Packs whose answers are all too short for an anchor measure nothing and
    /// are left out.
    fn held_out_blocks(&self) -> impl Iterator<Item = (Domain, DraftPack, Blocks)> {
        self.texts.held_out.iter().filter_map(|(domain, pack)| {
            let pack = DraftPack::of(pack);
            let mut rng = ChaCha8Rng::seed_from_u64(self.recipe.seed);
            let anchors = pack.draw_anchors(HELD_OUT_ANCHORS, &mut rng);
            let blocks = Blocks::new(&pack, &anchors, &self.shape);
            (!anchors.is_empty()).then_some((*domain, pack, blocks))
        })
    }
}

impl Job for DflashJob<'_> {
    fn params(&self) -> &Params {
        &self.net.trunk.params
    }

    fn batch(&mut self, gradients: &mut Gradients) -> Result<Batch> {
        let config = &self.recipe.batch;
        // The place in the stream decides the anchors, so a resumed run draws the same.
        let place = format!("{} {:?}", self.recipe.seed, self.texts.cursor());
        let mut rng = ChaCha8Rng::seed_from_u64(fnv1a(place.as_bytes()));
        let packs: Vec<(DraftPack, Blocks)> = (0..config.packs_per_step)
            .map(|_| {
                let pack = DraftPack::of(&self.texts.next_pack(config.micro_tokens));
                let anchors = pack.draw_anchors(config.anchors_per_text, &mut rng);
                let blocks = Blocks::new(&pack, &anchors, &self.shape);
                (pack, blocks)
            })
            .collect();
        let total = packs.iter().map(|(_, b)| b.weight()).sum::<f64>();
        let mut loss = 0.0;
        for (pack, blocks) in packs.iter().filter(|(_, b)| !b.at.is_empty()) {
            let term = self.net.loss(pack, blocks, total)?;
            loss += f64::from(term.to_scalar::<f32>()?);
            gradients.add(&self.net.trunk.params, &term)?;
        }
        let tokens = packs.iter().map(|(p, _)| p.ids.len()).sum();
        Ok(Batch { loss, tokens })
    }

    fn cursor(&self) -> Cursor {
        self.texts.cursor()
    }

    fn seek(&mut self, cursor: Cursor) {
        self.texts.seek(cursor);
    }

    fn held_out(&self) -> Result<Vec<(Domain, f64)>> {
        let measure = |(domain, pack, blocks): (Domain, DraftPack, Blocks)| {
            let loss = self.net.loss(&pack, &blocks, blocks.weight())?;
            Ok((domain, f64::from(loss.to_scalar::<f32>()?)))
        };
        self.held_out_blocks().map(measure).collect()
    }

    fn export(&self, progress: &mut dyn Progress) -> Result<()> {
        self.net.save(&self.recipe.out, &self.shape)?;
        for (domain, pack, blocks) in self.held_out_blocks() {
            let tau = self.net.acceptance_length(&pack, &blocks)?;
            progress.note(&format!(
                "held-out {domain}: acceptance length about {tau:.2}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
