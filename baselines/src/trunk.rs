//! The DFlash trunk: a few Qwen3-shaped layers that see the target's taps as keys and values and fill a whole block of
//! masked slots in one pass. DFlash is this trunk with the target's head on top.
//!
//! Source: DFlash (arXiv 2602.06036) and its reference code; checkpoints in z-lab and DeepSpec spelling.

mod config;

use candle_core::{D, Device, Tensor};
use decode::{Anchor, Committed, Result, Slot, TokenId, TokenIo};
use models::{CacheAt, CacheDims, Layer, Plan, Rope, Rows, SlotCache, Source, Weights};

use crate::Load;
use crate::draft_vocab::DraftVocab;
pub use config::{Alignment, TrunkConfig};
pub(crate) use config::{CONFIG, HARMLESS, HeadFields, no_head};

/// The trunk with its weights and one cache of context keys and values.
///
/// Context rows are computed once for each committed token and stay; a block's own rows are scratch behind them.
#[derive(Debug)]
pub(crate) struct Trunk {
    config: TrunkConfig,
    fc: Tensor,
    hidden_norm: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    rope: Rope,
    cache: SlotCache,
    /// What the logits of a slot are about.
    vocab: DraftVocab,
    /// `[V_d, H]`; `None` where the target's own head serves.
    head: Option<Tensor>,
}

/// What a trunk says about the draft slots of R rows.
pub(crate) struct Drafted<'a> {
    /// Draft slots of each row.
    pub(crate) gamma: usize,
    /// `[R * gamma, H]` f32, final-normed.
    pub(crate) hidden: Tensor,
    /// `[R * gamma, V_d]` f32.
    pub(crate) logits: Tensor,
    /// Target ids of the logits' V_d columns.
    pub(crate) vocab: &'a DraftVocab,
}

impl Trunk {
    /// Checks that a config fits the target, takes the trunk's tensors and leaves the head's.
    pub(crate) fn load(
        load: &Load<'_>,
        source: &Source,
        config: TrunkConfig,
        weights: &mut Weights,
    ) -> crate::Result<Self> {
        config.check_target(source.label(CONFIG), load.target)?;
        load.check_positions(source, config.max_positions)?;
        Self::new(config, weights, load.slots, load.capacity)
    }

    /// Takes the trunk's tensors; `capacity` counts committed positions.
    pub(crate) fn new(
        config: TrunkConfig,
        weights: &mut Weights,
        slots: usize,
        capacity: usize,
    ) -> crate::Result<Self> {
        let hidden = config.hidden;
        let head = take_head(&config, weights)?;
        let vocab = DraftVocab::load(weights, config.vocab, config.draft_vocab)?;
        let fc = weights.take_matrix("fc.weight", [hidden, config.taps.len() * hidden])?;
        let hidden_norm = weights.take("hidden_norm.weight", &[hidden])?;
        let norm = weights.take("norm.weight", &[hidden])?;
        let layers = (0..config.n_layers)
            .map(|i| Layer::load(weights, &format!("layers.{i}."), config.layer))
            .collect::<std::result::Result<_, _>>()?;
        let attention = config.layer.attention;
        let cache = SlotCache::new(CacheDims {
            n_layers: config.n_layers,
            slots,
            capacity: capacity + config.block_rows,
            width: attention.n_kv_heads * attention.head_dim,
        })?;
        let rope = Rope::new(
            &config.rope,
            attention.head_dim,
            capacity + config.block_rows,
        )?;
        Ok(Self {
            config,
            fc,
            hidden_norm,
            layers,
            norm,
            rope,
            cache,
            vocab,
            head,
        })
    }

    pub(crate) fn config(&self) -> &TrunkConfig {
        &self.config
    }

    /// What the logits of a slot are about.
    pub(crate) fn vocab(&self) -> &DraftVocab {
        &self.vocab
    }

    /// Context keys and values of all slots.
    pub(crate) fn cache(&self) -> &SlotCache {
        &self.cache
    }

    /// Fuses the taps of newly fed tokens and appends their keys and values in every layer.
    pub(crate) fn extend(&mut self, rows: &[Committed<'_>]) -> Result<()> {
        let fused = rows
            .iter()
            .map(|row| Tensor::cat(&row.taps, D::Minus1))
            .collect::<candle_core::Result<Vec<_>>>()?;
        let fused = Tensor::cat(&fused, 0)?;
        // [N, taps * H] -> [N, H]
        let ctx = kernels::linear(&fused, &self.fc)?;
        let ctx = kernels::rms_norm(&ctx, &self.hidden_norm, self.rms_eps())?;
        let fed: Vec<Rows<'_>> = rows
            .iter()
            .map(|row| Rows {
                slot: row.slot,
                n_rows: row.fed.len(),
                parents: None,
            })
            .collect();
        let plan = self.cache.plan(&fed)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let (k, v) = layer
                .attention()
                .project_kv(&ctx, &plan.positions, &self.rope)?;
            self.cache.append(i, &k, &v, &plan.dst)?;
        }
        self.cache.advance(&plan);
        Ok(())
    }

    /// Runs one block a row, `[anchor, mask, ..]`, through all layers, and the first `gamma` draft slots of each
    /// through the head: its own, of V_d rows, or the target's.
    pub(crate) fn draft(
        &mut self,
        rows: &[Anchor<'_>],
        gamma: usize,
        io: &dyn TokenIo,
    ) -> Result<Drafted<'_>> {
        let n = self.config.block_rows;
        let slots: Vec<Slot> = rows.iter().map(|row| row.slot).collect();
        for row in rows {
            let held = self.cache.len(row.slot)?;
            if held != row.position {
                return Err(decode::Error::Contract {
                    who: "drafter",
                    what: format!(
                        "its context holds {held} positions, the anchor stands at {}",
                        row.position
                    ),
                });
            }
        }
        let ids: Vec<TokenId> = rows
            .iter()
            .flat_map(|row| {
                std::iter::once(row.token).chain(std::iter::repeat_n(self.config.mask, n - 1))
            })
            .collect();
        let plan = self.cache.plan_block(&slots, n)?;
        let x = io.embed(&Tensor::from_vec(ids, rows.len() * n, &Device::Cpu)?)?;
        let hidden = self.forward(x, &plan)?;
        let first = self.config.alignment.first_slot();
        let hidden = if first == 0 && gamma == n {
            hidden
        } else {
            let drafts: Vec<u32> = (0..rows.len())
                .flat_map(|row| (0..gamma).map(move |slot| (row * n + first + slot) as u32))
                .collect();
            hidden.index_select(&Tensor::new(drafts, &Device::Cpu)?, 0)?
        };
        let logits = match &self.head {
            Some(head) => kernels::linear(&hidden, head)?,
            None => io.lm_head(&hidden)?,
        };
        Ok(Drafted {
            gamma,
            hidden,
            logits,
            vocab: &self.vocab,
        })
    }

    /// `[R * rows, H]` embeddings to `[R * rows, H]`, final-normed.
    fn forward(&mut self, mut x: Tensor, plan: &Plan) -> Result<Tensor> {
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(
                &x,
                &mut CacheAt {
                    cache: &mut self.cache,
                    layer: i,
                    plan,
                    rope: &self.rope,
                },
            )?;
        }
        Ok(kernels::rms_norm(&x, &self.norm, self.rms_eps())?)
    }

    pub(crate) fn finish(&mut self, slot: Slot) {
        self.cache
            .keep(slot, 0, &[])
            .expect("freeing a slot that was started cannot fail");
    }

    fn rms_eps(&self) -> f32 {
        self.config.layer.attention.rms_eps
    }
}

/// The head of a reduced draft vocabulary. DeepSpec checkpoints of a full one hold copies of the target's tables.
fn take_head(config: &TrunkConfig, weights: &mut Weights) -> crate::Result<Option<Tensor>> {
    const HEAD: &str = "lm_head.weight";
    let (vocab, draft_vocab) = (config.vocab, config.draft_vocab);
    weights.ignore("embed_tokens.weight");
    if draft_vocab == vocab {
        weights.ignore(HEAD);
        return Ok(None);
    }
    DraftVocab::require(HEAD, weights, vocab, draft_vocab)?;
    Ok(Some(
        weights.take_matrix(HEAD, [draft_vocab, config.hidden])?,
    ))
}
