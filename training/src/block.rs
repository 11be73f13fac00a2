//! `train dflash|dspark|domino|dcoco`: a block drafter on a frozen target's own answers. What differs between them is
//! a [`Head`]; trunk, data, anchors, budget and optimiser are one.
//!
//! Source: DFlash (arXiv 2602.06036): position-weighted losses against the tokens the target wrote.

mod at;

use crate::anchors::{BlockShape, Blocks, Coverage, DraftPack};
use crate::answers::{answers, check_kept, dependence, states_of, texts};
use crate::check::Check;
use crate::data::{Cursor, Texts};
use crate::error::{Error, Result};
use crate::files::{save_drafter, write_json};
use crate::lm::CausalLm;
use crate::ops::linear;
use crate::optim::Gradients;
use crate::params::{Params, fnv1a};
use crate::parts::Workers;
use crate::progress::Progress;
use crate::recipe::BlockRecipe;
use crate::run::{Batch, Job, Plan, run};
use crate::states::States;
use crate::tokenizer::{MASK, TextCodec};
use crate::trunk::Trunk;
use crate::vocab::DraftVocab;
pub(crate) use at::{Chunk, Place};
use baselines::Alignment;
use candle_core::{DType, Device, Tensor, Var, safetensors};
use datasets::Domain;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::path::Path;

/// Anchors of each held-out text.
const HELD_OUT_ANCHORS: usize = 8;

/// What one method trains on top of the shared trunk.
pub(crate) trait Head: Sized + Sync {
    /// The `[head]` table of its recipe.
    type Config: Clone + Debug + Default + DeserializeOwned;

    /// Which slots of a block carry loss.
    const COVERAGE: Coverage;

    /// What the table must fulfil.
    fn checks(config: &Self::Config) -> Vec<Check>;

    /// Adds the head's tensors, under checkpoint names, to `params`.
    ///
    /// # Errors
    /// If a tensor cannot be made.
    fn new(config: &Self::Config, dims: HeadDims, params: &mut Params, seed: u64) -> Result<Self>;

    /// The loss of these blocks, already divided by `out.total`, so that the parts of a batch add up.
    ///
    /// # Errors
    /// If shapes do not fit.
    fn loss(&self, out: &BlockOut<'_>) -> Result<Tensor>;

    /// `[blocks * block_rows]` target ids the head would draft greedily from these states.
    ///
    /// # Errors
    /// If shapes do not fit.
    fn drafts(&self, out: &BlockOut<'_>) -> Result<Vec<u32>>;

    /// Changes the trunk's `config.json` into that of the whole drafter.
    fn finish_config(&self, config: &mut Value);
}

/// Sizes a head is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadDims {
    /// Width of the residual stream, H.
    pub(crate) hidden: usize,
    /// Vocabulary, V.
    pub(crate) vocab: usize,
    /// Ids that are drafted, V_d.
    pub(crate) draft_vocab: usize,
    /// Rows of a block.
    pub(crate) block_rows: usize,
    /// What a slot predicts.
    pub(crate) alignment: Alignment,
}

/// What trunk and target say about some blocks of a pack.
pub(crate) struct BlockOut<'a> {
    /// `[N, H]`, N = blocks * block_rows: the trunk's final-normed states; gradients reach the trunk through it.
    pub(crate) hidden: &'a Tensor,
    /// `[N, V_d]`: `hidden` through `lm_head`.
    pub(crate) logits: &'a Tensor,
    /// `[V_d, H]`: the target's head, or its rows of the ids that are drafted.
    pub(crate) lm_head: &'a Tensor,
    /// What is drafted.
    pub(crate) vocab: &'a DraftVocab,
    /// `[C, H]`: the target's final-normed states of the pack's rows, without gradient.
    pub(crate) target_hidden: &'a Tensor,
    /// The frozen target: embeddings and head.
    pub(crate) target: &'a CausalLm,
    /// The texts.
    pub(crate) pack: &'a DraftPack,
    /// Ids, labels and weights of the N slots.
    pub(crate) blocks: &'a Blocks,
    /// Sum of all slots' weights in the whole batch.
    pub(crate) total: f64,
    /// Part of the run that is over, 0 to 1.
    pub(crate) progress: f64,
}

impl BlockOut<'_> {
    /// Rows of one block.
    pub(crate) fn block_rows(&self) -> usize {
        self.blocks.ids.len() / self.blocks.at.len().max(1)
    }

    /// Each slot's weight as a part of the whole batch.
    pub(crate) fn shares(&self) -> Vec<f32> {
        self.parts_of_total(&self.blocks.weights)
    }

    /// The same of what a confidence is learnt with.
    pub(crate) fn rated_shares(&self) -> Vec<f32> {
        self.parts_of_total(&self.blocks.rated)
    }

    fn parts_of_total(&self, weights: &[f32]) -> Vec<f32> {
        let share = |w: &f32| (f64::from(*w) / self.total) as f32;
        weights.iter().map(share).collect()
    }
}

/// Trains, or goes on training, the drafter of a recipe and exports it to the recipe's `out` folder.
///
/// # Errors
/// If the target, a file or the corpus fails; a checkpoint of another recipe is refused.
pub(crate) fn train<H: Head>(
    recipe: &BlockRecipe<H::Config>,
    progress: &mut dyn Progress,
) -> Result<()> {
    let target = CausalLm::load(&recipe.target)?;
    check_fit(recipe, &target)?;
    let (answers, file) = answers(&recipe.target, &recipe.work, &recipe.answers, progress)?;
    let vocab = target.config().vocab_size;
    let vocab = match recipe.drafter.draft_vocab_size {
        None => DraftVocab::whole(vocab),
        Some(size) => DraftVocab::of(&answers, vocab, size),
    };
    let states = states_of(&recipe.target, &recipe.work, &recipe.answers, &answers)?;
    let texts = texts(&answers, recipe.seed)?;
    let codec = TextCodec::load(&recipe.target.join("tokenizer.json"))?;
    let mut trunk = Trunk::new(&recipe.drafter, target.config(), recipe.seed)?;
    // What the run starts from belongs to it, so that a checkpoint never goes on from an older one.
    let init = match &recipe.init {
        None => String::new(),
        Some(folder) => {
            let path = folder.join("model.safetensors");
            let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
            format!(" {:016x}", fnv1a(&bytes))
        }
    };
    let start = match &recipe.init {
        None => format!(
            "{} tensors start as the target's",
            trunk.warm_start(&target)?.len()
        ),
        Some(folder) => {
            let path = folder.join("model.safetensors");
            let found = safetensors::load(&path, &Device::Cpu)?;
            trunk.params.fill(&found, &path, "")?;
            format!("the trunk starts as {}", folder.display())
        }
    };
    let dims = HeadDims {
        hidden: trunk.net().hidden_size,
        vocab: trunk.net().vocab_size,
        draft_vocab: vocab.len(),
        block_rows: recipe.drafter.block_rows,
        alignment: recipe.drafter.alignment,
    };
    let head = H::new(&recipe.head, dims, &mut trunk.params, recipe.seed)?;
    progress.note(&format!(
        "{} training texts, {} tokens a pass; {} trained values, {start}",
        texts.len(),
        texts.tokens(),
        trunk.params.count(),
    ));
    let shape = BlockShape {
        block_rows: recipe.drafter.block_rows,
        alignment: recipe.drafter.alignment,
        mask: codec.special(recipe.mask_token.as_deref().unwrap_or(MASK))?,
        decay: Some(recipe.batch.decay),
        coverage: H::COVERAGE,
    };
    let mut job = BlockJob {
        workers: Workers::new()?,
        recipe,
        net: DraftNet::new(target, states, trunk, head, vocab)?,
        texts,
        shape,
    };
    let plan = Plan {
        fingerprint: recipe.fingerprint(&format!("{}{init}", dependence(&file, &recipe.answers))),
        work: &recipe.work,
        optimizer: &recipe.optimizer,
        stop: &recipe.stop,
        report: &recipe.report,
    };
    run(&plan, &mut job, progress)
}

fn check_fit<C>(recipe: &BlockRecipe<C>, target: &CausalLm) -> Result<()> {
    let refuse = |key, problem| {
        Err(Error::RecipeValue {
            file: recipe.file.clone(),
            key,
            problem,
        })
    };
    let (depth, vocab) = (
        target.config().num_hidden_layers,
        target.config().vocab_size,
    );
    let taps = &recipe.drafter.target_layer_ids;
    if let Some(id) = taps.iter().find(|id| **id >= depth) {
        let problem = format!("names layer {id}, the target has 0..{depth}");
        return refuse("drafter.target_layer_ids", problem);
    }
    if recipe.drafter.draft_vocab_size.is_some_and(|n| n > vocab) {
        let problem = format!("must not exceed the target's {vocab} tokens");
        return refuse("drafter.draft_vocab_size", problem);
    }
    check_kept(&recipe.answers, taps, depth).or_else(|p| refuse("answers.keep_states", p))
}

/// A frozen target, the trunk that drafts for it and the trunk's head.
pub(crate) struct DraftNet<H> {
    pub(crate) target: CausalLm,
    states: States,
    /// Its `params` hold the head's tensors too.
    pub(crate) trunk: Trunk,
    pub(crate) head: H,
    /// `[V_d, H]`.
    pub(crate) lm_head: Tensor,
    pub(crate) vocab: DraftVocab,
}

/// The states of a pack's blocks.
pub(crate) struct BlockStates {
    /// `[N, H]` of the trunk.
    pub(crate) hidden: Tensor,
    /// `[C, H]` of the target.
    pub(crate) target_hidden: Tensor,
}

impl<H: Head> DraftNet<H> {
    pub(crate) fn new(
        target: CausalLm,
        states: States,
        trunk: Trunk,
        head: H,
        vocab: DraftVocab,
    ) -> Result<Self> {
        let lm_head = match vocab.is_whole() {
            true => target.head_weight(),
            false => {
                let ids = Tensor::new(vocab.ids.as_slice(), &Device::Cpu)?;
                target.head_weight().index_select(&ids, 0)?
            }
        };
        Ok(Self {
            lm_head,
            target,
            states,
            trunk,
            head,
            vocab,
        })
    }

    /// Every id is drafted, and the target reads each text anew.
    #[cfg(test)]
    pub(crate) fn live(target: CausalLm, trunk: Trunk, head: H) -> Result<Self> {
        let vocab = DraftVocab::whole(target.config().vocab_size);
        Self::new(target, States::Live, trunk, head, vocab)
    }

    /// Runs target and trunk over a pack and its blocks.
    pub(crate) fn states(&self, pack: &DraftPack, blocks: &Blocks) -> Result<BlockStates> {
        let taps = &self.trunk.config().target_layer_ids;
        let (target_hidden, taps) = self.states.of(&self.target, &pack.ids, &pack.texts, taps)?;
        let slots = self.target.embed(&blocks.ids)?.detach();
        let hidden = self
            .trunk
            .forward(&taps, &pack.positions(), &slots, &blocks.at)?;
        Ok(BlockStates {
            hidden,
            target_hidden,
        })
    }

    /// `[N, V_d]` logits of all slots, without the head.
    #[cfg(test)]
    pub(crate) fn logits(&self, pack: &DraftPack, blocks: &Blocks) -> Result<Tensor> {
        Ok(linear(&self.states(pack, blocks)?.hidden, &self.lm_head)?)
    }

    /// What a method sees, from states that may be part of a pack's.
    fn with_out<T>(
        &self,
        pack: &DraftPack,
        blocks: &Blocks,
        (hidden, target_hidden): (&Tensor, &Tensor),
        at: Place,
        see: impl FnOnce(&BlockOut<'_>) -> Result<T>,
    ) -> Result<T> {
        let logits = linear(hidden, &self.lm_head)?;
        see(&BlockOut {
            hidden,
            logits: &logits,
            lm_head: &self.lm_head,
            vocab: &self.vocab,
            target_hidden,
            target: &self.target,
            pack,
            blocks,
            total: at.total,
            progress: at.progress,
        })
    }

    /// The head's loss over all blocks of a pack.
    pub(crate) fn loss(&self, pack: &DraftPack, blocks: &Blocks, at: Place) -> Result<Tensor> {
        let states = self.states(pack, blocks)?;
        let states = (&states.hidden, &states.target_hidden);
        self.with_out(pack, blocks, states, at, |out| self.head.loss(out))
    }

    /// Adds the gradients of a pack's loss and returns the loss. Logits exist for `chunk` blocks at a time: each
    /// chunk's gradient in the trunk's states is kept, and the trunk runs backward once.
    pub(crate) fn accumulate(
        &self,
        pack: &DraftPack,
        blocks: &Blocks,
        at: Place,
        chunk: Chunk,
        gradients: &mut Gradients,
    ) -> Result<f64> {
        let states = self.states(pack, blocks)?;
        let block_rows = blocks.ids.len() / blocks.at.len().max(1);
        let params = &self.trunk.params;
        let mut slopes = Vec::new();
        let mut loss = 0.0;
        for start in (0..blocks.at.len()).step_by(chunk.blocks) {
            let part = blocks.slice(start..(start + chunk.blocks).min(blocks.at.len()));
            let rows = states
                .hidden
                .narrow(0, start * block_rows, part.ids.len())?
                .detach();
            let rows = Var::from_tensor(&rows)?;
            let seen = (rows.as_tensor(), &states.target_hidden);
            let term = self.with_out(pack, &part, seen, at, |out| self.head.loss(out))?;
            loss += f64::from(term.to_scalar::<f32>()?);
            let mut grads = term.backward()?;
            slopes.push(match grads.remove(rows.as_tensor()) {
                Some(slope) => slope,
                None => rows.zeros_like()?,
            });
            gradients.absorb(params, grads)?;
        }
        if !chunk.frozen_trunk && !slopes.is_empty() {
            let slopes = Tensor::cat(&slopes, 0)?.detach();
            gradients.add(params, &(&states.hidden * slopes)?.sum_all()?)?;
        }
        Ok(loss)
    }

    /// Adds the gradients of the parts of a batch, whose weights come to more than 0, and returns its loss.
    fn learn(
        &self,
        parts: &[(DraftPack, Blocks)],
        at: Place,
        chunk: Chunk,
        workers: &Workers,
        gradients: &mut Gradients,
    ) -> Result<f64> {
        // A confidence learns where a draft cannot.
        let teaches = |blocks: &Blocks| blocks.rated.iter().any(|weight| *weight > 0.0);
        let parts: Vec<_> = parts.iter().filter(|(_, b)| teaches(b)).collect();
        let learn = |(pack, blocks): &&(DraftPack, Blocks)| {
            let mut own = Gradients::default();
            let loss = self.accumulate(pack, blocks, at, chunk, &mut own)?;
            Ok((loss, own))
        };
        let mut sum = 0.0;
        workers.run(&parts, learn, |(loss, own)| {
            sum += loss;
            gradients.merge(own);
        })?;
        Ok(sum)
    }

    /// Writes the drafter's folder: `config.json` and bf16 `model.safetensors`.
    pub(crate) fn save(&self, folder: &Path, shape: &BlockShape) -> Result<()> {
        let path = folder.join("model.safetensors");
        let mut tensors = self.trunk.params.snapshot(DType::BF16)?;
        if !self.vocab.is_whole() {
            tensors.extend(self.vocab.tensors()?);
            let head = self.lm_head.to_dtype(DType::BF16)?;
            tensors.insert("lm_head.weight".to_owned(), head);
        }
        save_drafter(&path, &tensors)?;
        let mut config = self.trunk_json(shape);
        self.head.finish_config(&mut config);
        write_json(&folder.join("config.json"), &config)
    }

    /// The `config.json` of a bare trunk in z-lab spelling.
    fn trunk_json(&self, shape: &BlockShape) -> Value {
        let net = self.trunk.net();
        let mut config = json!({
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": shape.block_rows,
            "dflash_config": {
                "mask_token_id": shape.mask,
                "target_layer_ids": self.trunk.config().target_layer_ids,
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
        });
        if !self.vocab.is_whole() {
            config["draft_vocab_size"] = self.vocab.len().into();
        }
        config
    }

    /// Mean over blocks of 1 + drafts that equal the target's tokens before the first that does not. A block that the
    /// text's end cuts short counts with what is left of it.
    pub(crate) fn acceptance_length(&self, pack: &DraftPack, blocks: &Blocks) -> Result<f64> {
        let block_rows = blocks.ids.len() / blocks.at.len().max(1);
        let states = self.states(pack, blocks)?;
        let seen = (&states.hidden, &states.target_hidden);
        let drafts = self.with_out(pack, blocks, seen, Place::end(1.0), |out| {
            self.head.drafts(out)
        })?;
        let first = self.trunk.config().alignment.first_slot();
        let mut committed = blocks.at.len();
        for start in (0..blocks.ids.len()).step_by(block_rows) {
            let slots = start + first..start + block_rows;
            let is_kept = |s: &usize| blocks.weights[*s] > 0.0 && drafts[*s] == blocks.labels[*s];
            committed += slots.take_while(is_kept).count();
        }
        Ok(committed as f64 / blocks.at.len().max(1) as f64)
    }
}

struct BlockJob<'a, H: Head> {
    recipe: &'a BlockRecipe<H::Config>,
    net: DraftNet<H>,
    texts: Texts,
    shape: BlockShape,
    workers: Workers,
}

impl<H: Head> BlockJob<'_, H> {
    fn blocks(&self, pack: &DraftPack, anchors: &[usize]) -> Blocks {
        let mut blocks = Blocks::new(pack, anchors, &self.shape);
        self.net.vocab.classify(&mut blocks);
        blocks
    }

    /// The same blocks at every measurement. Packs whose answers are all too short for an anchor measure nothing and
    /// are left out.
    fn held_out_blocks(&self) -> impl Iterator<Item = (Domain, DraftPack, Blocks)> {
        self.texts.held_out.iter().filter_map(|(domain, pack)| {
            let pack = DraftPack::of(pack);
            let mut rng = ChaCha8Rng::seed_from_u64(self.recipe.seed);
            let anchors = pack.draw_anchors(HELD_OUT_ANCHORS, &mut rng);
            let blocks = self.blocks(&pack, &anchors);
            (blocks.weight() > 0.0).then_some((*domain, pack, blocks))
        })
    }
}

impl<H: Head> Job for BlockJob<'_, H> {
    fn params(&self) -> &Params {
        &self.net.trunk.params
    }

    fn batch(&mut self, progress: f64, gradients: &mut Gradients) -> Result<Batch> {
        let config = &self.recipe.batch;
        // The place in the stream decides the anchors, so a resumed run draws the same.
        let place = format!("{} {:?}", self.recipe.seed, self.texts.cursor());
        let mut rng = ChaCha8Rng::seed_from_u64(fnv1a(place.as_bytes()));
        let mut parts: Vec<(DraftPack, Blocks)> = Vec::new();
        let mut tokens = 0;
        for _ in 0..config.packs_per_step {
            let pack = self.texts.next_pack(config.micro_tokens);
            tokens += pack.ids.len();
            self.net.states.prepare(&pack.ids, &pack.texts)?;
            let pack = DraftPack::of(&pack);
            let anchors = pack.draw_anchors(config.anchors_per_text, &mut rng);
            for (part, anchors) in pack.deal(&anchors, self.workers.count()) {
                let blocks = self.blocks(&part, &anchors);
                parts.push((part, blocks));
            }
        }
        let at = Place {
            total: parts.iter().map(|(_, b)| b.weight()).sum::<f64>(),
            progress,
        };
        let chunk = Chunk {
            blocks: config.blocks_per_chunk.div_ceil(self.workers.count()),
            frozen_trunk: self.recipe.frozen_trunk,
        };
        let loss = match at.total > 0.0 {
            true => self
                .net
                .learn(&parts, at, chunk, &self.workers, gradients)?,
            false => 0.0,
        };
        let weights = parts.iter().flat_map(|(_, blocks)| &blocks.weights);
        Ok(Batch {
            loss,
            tokens,
            predicted: weights.filter(|w| **w > 0.0).count(),
        })
    }

    fn cursor(&self) -> Cursor {
        self.texts.cursor()
    }

    fn seek(&mut self, cursor: Cursor) {
        self.texts.seek(cursor);
    }

    fn held_out(&self) -> Result<Vec<(Domain, f64)>> {
        let measure = |(domain, pack, blocks): (Domain, DraftPack, Blocks)| {
            let loss = self.net.loss(&pack, &blocks, Place::end(blocks.weight()))?;
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
