//! What a drafter's config.json says about its trunk.

use decode::{LayerId, TokenId};
use models::{
    AttentionDims, Fields, LayerDims, LoadError, MlpDims, QkNorm, RopeConfig, RopeKind, Source,
    full_attention_only, refuse_other_forward_passes,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Error, TargetFacts};

pub(crate) const CONFIG: &str = "config.json";

/// Keys of real drafter configs that do not change a frozen forward pass.
pub(crate) const HARMLESS: &[&str] = &[
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

/// Architectures whose block keys lie in `dflash_config`.
const NESTED: &[&str] = &["DFlashDraftModel", "DominoDraftModel", "DCOCODraftModel"];

/// The architecture whose block keys lie beside the others.
const FLAT: &str = "Qwen3DSparkModel";

/// The objects of a drafter's config that may hold keys of its head.
pub(crate) struct HeadFields<'a> {
    /// The whole file.
    pub(crate) outer: &'a mut Fields,
    /// `dflash_config`; `None` in the flat spelling of DeepSpec.
    pub(crate) nested: Option<&'a mut Fields>,
}

/// Refuses what would be a head.
pub(crate) fn no_head(fields: HeadFields<'_>) -> crate::Result<()> {
    match fields.nested {
        Some(nested) => nested.only("projector_type", &json!("dflash"))?,
        None => {
            fields.outer.only("markov_rank", &json!(0))?;
            fields.outer.only("enable_confidence_head", &json!(false))?;
        }
    }
    Ok(())
}

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
    /// Tokens it can draft, V_d: V of them, with the target's head, or fewer, with a head of its own.
    pub draft_vocab: usize,
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
    /// Reads the config.json of a bare trunk: `DFlashDraftModel` (nested `dflash_config`, in-place unless
    /// `shift_label` is true) or `Qwen3DSparkModel` with `markov_rank` 0 (flat keys, shifted).
    ///
    /// # Errors
    /// If a key is missing, unknown or of the wrong type, or a value is not supported.
    pub fn load(source: &Source) -> crate::Result<Self> {
        let (config, ()) = Self::load_with(source, no_head)?;
        Ok(config)
    }

    /// Reads config.json and hands the keys that a head may own to `head`, which must read all of them.
    ///
    /// # Errors
    /// As [`TrunkConfig::load`], and those of `head`.
    pub(crate) fn load_with<C>(
        source: &Source,
        head: impl FnOnce(HeadFields<'_>) -> crate::Result<C>,
    ) -> crate::Result<(Self, C)> {
        let label = source.label(CONFIG);
        let mut fields = Fields::parse(&label, &source.read(CONFIG)?)?;
        let architectures: Vec<String> = fields.required("architectures")?;
        let architecture = architectures.join(" ");
        let (block, head) = if NESTED.contains(&architecture.as_str()) {
            let Some(mut nested) = fields.object("dflash_config")? else {
                return Err(missing(&fields, "dflash_config"));
            };
            let block = Block::nested(&mut fields, &mut nested)?;
            let head = head(HeadFields {
                outer: &mut fields,
                nested: Some(&mut nested),
            })?;
            nested.finish()?;
            (block, head)
        } else if architecture == FLAT {
            let block = Block::flat(&mut fields)?;
            let head = head(HeadFields {
                outer: &mut fields,
                nested: None,
            })?;
            (block, head)
        } else {
            let known = format!("{}, {FLAT}", NESTED.join(", "));
            return Err(fields
                .unsupported("architectures", &json!(architectures), &known)
                .into());
        };
        let config = Self::rest(&mut fields, block)?;
        fields.ignore(HARMLESS);
        fields.finish()?;
        Ok((config.check(label)?, head))
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
        let vocab = fields.size("vocab_size")?;
        let draft_vocab: Option<usize> = fields.optional("draft_vocab_size")?;
        Ok(Self {
            hidden,
            vocab,
            draft_vocab: draft_vocab.unwrap_or(vocab),
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
        } else if self.draft_vocab == 0 || self.draft_vocab > self.vocab {
            let (draft_vocab, vocab) = (self.draft_vocab, self.vocab);
            format!("draft_vocab_size {draft_vocab} must lie between 1 and vocab_size {vocab}")
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

    pub(crate) fn check_target(&self, file: String, target: &TargetFacts) -> crate::Result<()> {
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
    fn nested(fields: &mut Fields, inner: &mut Fields) -> crate::Result<Self> {
        let outer = match fields.has("block_size") {
            true => Some(fields.size("block_size")?),
            false => None,
        };
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
        Ok(Self {
            rows,
            mask: inner.required("mask_token_id")?,
            taps: inner.required("target_layer_ids")?,
            alignment: match shifted {
                Some(true) => Alignment::Shifted,
                Some(false) | None => Alignment::InPlace,
            },
        })
    }

    fn flat(fields: &mut Fields) -> crate::Result<Self> {
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
