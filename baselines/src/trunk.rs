//! The DFlash trunk: a few Qwen3-shaped layers that see the target's taps as keys and values and fill a whole block of
//! masked slots in one pass. DFlash is this trunk with the target's head on top.
//!
//! Source: DFlash (arXiv 2602.06036) and its reference code; checkpoints in z-lab and DeepSpec spelling.

use candle_core::{D, Device, Tensor};
use decode::{Anchor, Committed, LayerId, Result, Slot, TokenId, TokenIo};
use models::{
    AttentionDims, CacheAt, CacheDims, Fields, Layer, LayerDims, LoadError, MlpDims, Plan, QkNorm,
    Rope, RopeConfig, RopeKind, Rows, SlotCache, Source, Weights, full_attention_only,
    refuse_other_forward_passes,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Error, Load, TargetFacts};

const CONFIG: &str = "config.json";

/// Keys of real drafter configs that do not change a frozen forward pass.
const HARMLESS: &[&str] = &[
    "_name_or_path",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "max_window_layers",
    "model_type",
    "num_anchors",
    "pad_token_id",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Which position a block slot predicts. Tensors of both look alike; only the config tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// Slot k predicts its own position: slot 0 holds the anchor and predicts nothing, gamma is one less than the rows.
    InPlace,
    /// Slot k predicts the next position: gamma equals the rows.
    Shifted,
}

impl Alignment {
    /// Distance from the anchor to the position that row `row` of a block predicts; `None` if it predicts nothing.
    pub fn label_offset(self, row: usize) -> Option<usize> {
        match self {
            Self::InPlace => (row > 0).then_some(row),
            Self::Shifted => Some(row + 1),
        }
    }

    /// The first row of a block that predicts something.
    pub fn first_slot(self) -> usize {
        match self {
            Self::InPlace => 1,
            Self::Shifted => 0,
        }
    }
}

/// Shape of a trunk, read from the drafter's config.json.
#[derive(Clone, Debug)]
pub struct TrunkConfig {
    /// Width of the residual stream, H; equals the target's.
    pub hidden: usize,
    /// Vocabulary, V; equals the target's.
    pub vocab: usize,
    /// Layers of the target it was trained for.
    pub n_target_layers: usize,
    /// Target layers it reads, in the order their taps are joined.
    pub taps: Vec<LayerId>,
    /// Rows of a block: the anchor and the masked slots after it.
    pub block_rows: usize,
    /// What a slot predicts.
    pub alignment: Alignment,
    /// Token whose embedding fills the slots after the anchor.
    pub mask: TokenId,
    /// Layers of the trunk.
    pub n_layers: usize,
    /// Sizes of each layer.
    pub layer: LayerDims,
    /// Rotary angles.
    pub rope: RopeConfig,
    /// Positions it was trained for.
    pub max_positions: usize,
}

impl TrunkConfig {
    /// Reads config.json: `DFlashDraftModel` (nested `dflash_config`, in-place unless `shift_label` is true) or
    /// `Qwen3DSparkModel` with `markov_rank` 0 (flat keys, shifted).
    ///
    /// # Errors
    /// If a key is missing, unknown or of the wrong type, or a value is not supported.
    pub fn load(source: &Source) -> crate::Result<Self> {
        let label = source.label(CONFIG);
        let mut fields = Fields::parse(&label, &source.read(CONFIG)?)?;
        let architectures: Vec<String> = fields.required("architectures")?;
        let block = match architectures.join(" ").as_str() {
            "DFlashDraftModel" => Block::nested(&mut fields)?,
            "Qwen3DSparkModel" => Block::flat(&mut fields)?,
            _ => {
                let known = "DFlashDraftModel, Qwen3DSparkModel";
                return Err(fields
                    .unsupported("architectures", &json!(architectures), known)
                    .into());
            }
        };
        let config = Self::rest(&mut fields, block)?;
        fields.ignore(HARMLESS);
        fields.finish()?;
        config.check(label)
    }

    fn rest(fields: &mut Fields, block: Block) -> crate::Result<Self> {
        refuse_other_forward_passes(fields)?;
        let hidden = fields.size("hidden_size")?;
        let n_heads = fields.size("num_attention_heads")?;
        let n_kv_heads = fields.size("num_key_value_heads")?;
        let n_layers = fields.size("num_hidden_layers")?;
        full_attention_only(fields, n_layers)?;
        let attention = AttentionDims {
            input: hidden,
            hidden,
            n_heads,
            n_kv_heads,
            head_dim: fields.size("head_dim")?,
            rms_eps: fields.positive("rms_norm_eps")? as f32,
            qk_norm: QkNorm::PerHead,
        };
        let intermediate = fields.size("intermediate_size")?;
        Ok(Self {
            hidden,
            vocab: fields.size("vocab_size")?,
            n_target_layers: fields.size("num_target_layers")?,
            taps: block.taps.into_iter().map(LayerId).collect(),
            block_rows: block.rows,
            alignment: block.alignment,
            mask: block.mask,
            n_layers,
            layer: LayerDims {
                attention,
                mlp: MlpDims::Dense { intermediate },
            },
            rope: RopeConfig::read(fields, &[RopeKind::Default, RopeKind::Llama3])?,
            max_positions: fields.size("max_position_embeddings")?,
        })
    }

    fn check(self, file: String) -> crate::Result<Self> {
        let AttentionDims {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = self.layer.attention;
        let rising = self.taps.windows(2).all(|w| w[0] < w[1]);
        let last = self.taps.last().map_or(0, |tap| tap.0);
        let why = if self.taps.is_empty() || !rising || last >= self.n_target_layers {
            let taps: Vec<usize> = self.taps.iter().map(|tap| tap.0).collect();
            format!(
                "target_layer_ids {taps:?} must rise and stay below num_target_layers {}",
                self.n_target_layers
            )
        } else if self.mask as usize >= self.vocab {
            let (mask, vocab) = (self.mask, self.vocab);
            format!("mask_token_id {mask} is not below vocab_size {vocab}")
        } else if n_heads % n_kv_heads != 0 || head_dim % 2 != 0 {
            format!(
                "num_key_value_heads {n_kv_heads} must divide num_attention_heads {n_heads}, and head_dim {head_dim} must be even"
            )
        } else if self.gamma() == 0 {
            format!("block_size {} leaves no draft token", self.block_rows)
        } else {
            return Ok(self);
        };
        Err(Error::Config { file, why })
    }

    /// Draft tokens a block yields.
    pub fn gamma(&self) -> usize {
        match self.alignment {
            Alignment::InPlace => self.block_rows - 1,
            Alignment::Shifted => self.block_rows,
        }
    }

    fn check_target(&self, file: String, target: &TargetFacts) -> crate::Result<()> {
        let pairs = [
            ("hidden_size", self.hidden, target.hidden),
            ("vocab_size", self.vocab, target.vocab),
            ("num_target_layers", self.n_target_layers, target.n_layers),
        ];
        match pairs.into_iter().find(|(_, got, want)| got != want) {
            None => Ok(()),
            Some((what, got, want)) => Err(Error::OtherTarget {
                file,
                what,
                got,
                target: target.id.clone(),
                want,
            }),
        }
    }
}

/// The keys that differ between the two spellings.
struct Block {
    rows: usize,
    mask: TokenId,
    taps: Vec<usize>,
    alignment: Alignment,
}

impl Block {
    fn nested(fields: &mut Fields) -> crate::Result<Self> {
        let outer = match fields.has("block_size") {
            true => Some(fields.size("block_size")?),
            false => None,
        };
        let mut inner = match fields.object("dflash_config")? {
            Some(inner) => inner,
            None => return Err(missing(fields, "dflash_config")),
        };
        inner.only("projector_type", &json!("dflash"))?;
        for key in ["causal", "use_swa", "is_causal"] {
            inner.only(key, &json!(false))?;
        }
        fields.only("is_causal", &json!(false))?;
        let shifted: Option<bool> = inner.optional("shift_label")?;
        let nested = match inner.has("block_size") {
            true => Some(inner.size("block_size")?),
            false => None,
        };
        let rows = match (nested, outer) {
            (Some(nested), Some(outer)) if nested != outer => {
                let why = format!("is {nested}, the outer block_size is {outer}");
                return Err(inner.bad_value("block_size", why).into());
            }
            (Some(rows), _) | (None, Some(rows)) => rows,
            (None, None) => return Err(missing(fields, "block_size")),
        };
        let block = Self {
            rows,
            mask: inner.required("mask_token_id")?,
            taps: inner.required("target_layer_ids")?,
            alignment: match shifted {
                Some(true) => Alignment::Shifted,
                Some(false) | None => Alignment::InPlace,
            },
        };
        inner.finish()?;
        Ok(block)
    }

    fn flat(fields: &mut Fields) -> crate::Result<Self> {
        fields.only("markov_rank", &json!(0))?;
        fields.only("enable_confidence_head", &json!(false))?;
        Ok(Self {
            rows: fields.size("block_size")?,
            mask: fields.required("mask_token_id")?,
            taps: fields.required("target_layer_ids")?,
            alignment: Alignment::Shifted,
        })
    }
}

fn missing(fields: &Fields, key: &str) -> Error {
    Error::Load(LoadError::MissingKey {
        file: fields.file().to_owned(),
        key: key.to_owned(),
    })
}

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
}

/// What a trunk says about the draft slots of R rows.
pub(crate) struct Drafted {
    /// `[R * gamma, H]` f32, final-normed.
    pub(crate) hidden: Tensor,
    /// `[R * gamma, V]` f32.
    pub(crate) logits: Tensor,
}

impl Trunk {
    pub(crate) fn load(load: &Load<'_>, source: &Source) -> crate::Result<Self> {
        let config = TrunkConfig::load(source)?;
        config.check_target(source.label(CONFIG), load.target)?;
        load.check_positions(source, config.max_positions)?;
        Self::new(config, Weights::open(source)?, load.slots, load.capacity)
    }

    pub(crate) fn new(
        config: TrunkConfig,
        mut weights: Weights,
        slots: usize,
        capacity: usize,
    ) -> crate::Result<Self> {
        let hidden = config.hidden;
        // Copies of the target's own tables, in DeepSpec checkpoints.
        weights.ignore("embed_tokens.weight");
        weights.ignore("lm_head.weight");
        let fc = weights.take("fc.weight", &[hidden, config.taps.len() * hidden])?;
        let hidden_norm = weights.take("hidden_norm.weight", &[hidden])?;
        let norm = weights.take("norm.weight", &[hidden])?;
        let layers = (0..config.n_layers)
            .map(|i| Layer::load(&mut weights, &format!("layers.{i}."), config.layer))
            .collect::<std::result::Result<_, _>>()?;
        weights.finish()?;
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
        })
    }

    pub(crate) fn config(&self) -> &TrunkConfig {
        &self.config
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

    /// Runs one block a row: `[anchor, mask, ..]` through all layers and the target's head.
    pub(crate) fn draft(&mut self, rows: &[Anchor<'_>], io: &dyn TokenIo) -> Result<Drafted> {
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
        let hidden = match self.config.alignment {
            Alignment::Shifted => hidden,
            Alignment::InPlace => {
                let drafts: Vec<u32> = (0..(rows.len() * n) as u32)
                    .filter(|i| i % n as u32 != 0)
                    .collect();
                hidden.index_select(&Tensor::new(drafts, &Device::Cpu)?, 0)?
            }
        };
        let logits = io.lm_head(&hidden)?;
        Ok(Drafted { hidden, logits })
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
