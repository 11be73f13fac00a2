//! Shape and constants of a decoder, read from a checkpoint's config.json.

use decode::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Result;
use crate::fields::Fields;
use crate::layer::{AttentionDims, LayerDims};
use crate::mlp::{ExpertWeights, MlpDims};
use crate::rope::RopeConfig;
use crate::source::Source;
use crate::spec::{FAMILIES, Family, MlpKind, RopeKind};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// Keys of real config files that do not change a frozen forward pass.
const HARMLESS: &[&str] = &[
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "initializer_range",
    "max_window_layers",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// A decoder's shape. Everything a checkpoint's config.json says that changes the forward pass.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// The family, found by `architectures`.
    pub family: &'static Family,
    /// Number of token ids, V.
    pub vocab: usize,
    /// Width of the residual stream, H.
    pub hidden: usize,
    /// Number of layers, L.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of one head, D.
    pub head_dim: usize,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// Rotary angles.
    pub rope: RopeConfig,
    /// Positions the model was trained for.
    pub max_positions: usize,
    /// Feed-forward block.
    pub mlp: MlpDims,
    /// Where the output matrix comes from.
    pub head: HeadKind,
    /// Tokens that end an answer; empty if the files name none.
    pub stop_tokens: Vec<TokenId>,
}

/// Where the output matrix `[V, H]` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// The embedding table.
    Tied,
    /// `lm_head.weight`.
    Own,
}

impl DecoderConfig {
    /// Reads config.json and, if there is one, the stop tokens of generation_config.json, which win.
    ///
    /// # Errors
    /// If a file cannot be read, a key is missing, unknown or of the wrong type, or a value is not supported.
    pub fn load(source: &Source) -> Result<Self> {
        let mut config = Self::from_json(source.label(CONFIG), &source.read(CONFIG)?)?;
        if source.exists(GENERATION_CONFIG) {
            let label = source.label(GENERATION_CONFIG);
            let mut fields = Fields::parse(label, &source.read(GENERATION_CONFIG)?)?;
            if fields.has("eos_token_id") {
                config.stop_tokens = stop_tokens(&mut fields, config.vocab)?;
            }
        }
        Ok(config)
    }

    /// Reads the bytes of a config.json; `file` is the label used in errors.
    ///
    /// # Errors
    /// As [`DecoderConfig::load`].
    pub fn from_json(file: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::parse(file, bytes)?;
        let family = family(&mut fields)?;
        refuse_other_forward_passes(&mut fields)?;
        let vocab = fields.size("vocab_size")?;
        let hidden = fields.size("hidden_size")?;
        let n_layers = fields.size("num_hidden_layers")?;
        let n_heads = fields.size("num_attention_heads")?;
        let n_kv_heads = fields.optional("num_key_value_heads")?.unwrap_or(n_heads);
        let head_dim = fields.optional("head_dim")?.unwrap_or(hidden / n_heads);
        if n_kv_heads == 0 || n_heads % n_kv_heads != 0 {
            let why = format!("{n_kv_heads} does not divide the {n_heads} query heads");
            return Err(fields.bad_value("num_key_value_heads", why));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            let why = format!("must be even and above 0 to be rotated, is {head_dim}");
            return Err(fields.bad_value("head_dim", why));
        }
        let tied: bool = fields.optional("tie_word_embeddings")?.unwrap_or(false);
        let config = Self {
            family,
            vocab,
            hidden,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            rms_eps: fields.positive("rms_norm_eps")? as f32,
            rope: RopeConfig::read(&mut fields, family.ropes)?,
            max_positions: fields.size("max_position_embeddings")?,
            mlp: mlp(&mut fields, family.mlp)?,
            head: if tied { HeadKind::Tied } else { HeadKind::Own },
            stop_tokens: stop_tokens(&mut fields, vocab)?,
        };
        full_attention_only(&mut fields, n_layers)?;
        fields.ignore(HARMLESS);
        fields.finish()?;
        Ok(config)
    }

    /// Weights of the matrices that one row is multiplied with, the output matrix included; of experts only the active
    /// ones.
    pub fn weights_per_row(&self) -> usize {
        let heads = 2 * self.n_heads + 2 * self.n_kv_heads;
        let mlp = match self.mlp {
            MlpDims::Dense { intermediate } => 3 * intermediate,
            MlpDims::Experts {
                intermediate,
                n_experts,
                n_active,
                ..
            } => 3 * intermediate * n_active + n_experts,
        };
        self.hidden * (self.n_layers * (heads * self.head_dim + mlp) + self.vocab)
    }

    /// What each of the decoder's layers is built from.
    pub fn layer_dims(&self) -> LayerDims {
        LayerDims {
            attention: AttentionDims {
                input: self.hidden,
                hidden: self.hidden,
                n_heads: self.n_heads,
                n_kv_heads: self.n_kv_heads,
                head_dim: self.head_dim,
                rms_eps: self.rms_eps,
                qk_norm: self.family.qk_norm,
            },
            mlp: self.mlp,
        }
    }
}

fn family(fields: &mut Fields) -> Result<&'static Family> {
    let named: Vec<String> = fields.required("architectures")?;
    let found = FAMILIES
        .iter()
        .find(|family| named.len() == 1 && named[0] == family.architecture);
    let Some(family) = found else {
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.architecture).collect();
        return Err(fields.unsupported("architectures", &json!(named), &known.join(", ")));
    };
    fields.only("model_type", &json!(family.model_type))?;
    Ok(family)
}

/// Reads the keys that would change the forward pass of a layer: each must hold the one value computed here (SiLU, no
/// biases, no sliding window).
///
/// # Errors
/// [`crate::LoadError::Unsupported`] for another value.
pub fn refuse_other_forward_passes(fields: &mut Fields) -> Result<()> {
    fields.only("hidden_act", &json!("silu"))?;
    for key in ["attention_bias", "mlp_bias", "qkv_bias"] {
        fields.only(key, &json!(false))?;
    }
    let off: Option<bool> = fields.optional("use_sliding_window")?;
    match off {
        Some(true) => return Err(fields.unsupported("use_sliding_window", &json!(true), "false")),
        Some(false) => fields.ignore(&["sliding_window"]),
        None => {
            if let Some(window) = fields.optional::<Value>("sliding_window")? {
                return Err(fields.unsupported("sliding_window", &window, "null"));
            }
        }
    }
    Ok(())
}

/// Reads `layer_types`, which may be absent and may list full attention only.
///
/// # Errors
/// [`crate::LoadError::BadValue`] for another number of layers, [`crate::LoadError::Unsupported`] for another kind.
pub fn full_attention_only(fields: &mut Fields, n_layers: usize) -> Result<()> {
    let Some(types) = fields.optional::<Vec<String>>("layer_types")? else {
        return Ok(());
    };
    if types.len() != n_layers {
        let why = format!(
            "lists {} layers, num_hidden_layers is {n_layers}",
            types.len()
        );
        return Err(fields.bad_value("layer_types", why));
    }
    match types.iter().find(|kind| *kind != "full_attention") {
        Some(kind) => Err(fields.unsupported("layer_types", &json!(kind), "full_attention")),
        None => Ok(()),
    }
}

fn mlp(fields: &mut Fields, kind: MlpKind) -> Result<MlpDims> {
    match kind {
        MlpKind::Dense => Ok(MlpDims::Dense {
            intermediate: fields.size("intermediate_size")?,
        }),
        MlpKind::Experts => {
            // Width of dense layers, of which decoder_sparse_step 1 leaves none.
            fields.ignore(&["intermediate_size"]);
            fields.only("decoder_sparse_step", &json!(1))?;
            fields.only("mlp_only_layers", &json!([]))?;
            fields.only("shared_expert_intermediate_size", &json!(0))?;
            fields.only("use_qk_norm", &json!(true))?;
            let n_experts = fields.size("num_experts")?;
            let n_active = fields.size("num_experts_per_tok")?;
            if n_active > n_experts {
                let why = format!("{n_active} exceeds the {n_experts} experts there are");
                return Err(fields.bad_value("num_experts_per_tok", why));
            }
            let renormalise: bool = fields.required("norm_topk_prob")?;
            Ok(MlpDims::Experts {
                intermediate: fields.size("moe_intermediate_size")?,
                n_experts,
                n_active,
                weights: if renormalise {
                    ExpertWeights::SumToOne
                } else {
                    ExpertWeights::AsRouted
                },
            })
        }
    }
}

fn scaled(inner: &mut Fields, theta: f64) -> Result<RopeConfig> {
    let key = if inner.has("rope_type") {
        "rope_type"
    } else {
        "type"
    };
    let kind: String = inner.required(key)?;
    // Some files carry both spellings of the kind.
    inner.only("type", &json!(kind))?;
    match kind.as_str() {
        "default" => Ok(RopeConfig::Default { theta }),
        "llama3" => Ok(RopeConfig::Llama3 {
            theta,
            factor: inner.positive("factor")?,
            low_freq_factor: inner.positive("low_freq_factor")?,
            high_freq_factor: inner.positive("high_freq_factor")?,
            original_max_positions: inner.size("original_max_position_embeddings")?,
        }),
        _ => Err(inner.unsupported(key, &json!(kind), "default, llama3")),
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(TokenId),
    Many(Vec<TokenId>),
}

fn stop_tokens(fields: &mut Fields, vocab: usize) -> Result<Vec<TokenId>> {
    let tokens = match fields.optional("eos_token_id")? {
        None => Vec::new(),
        Some(OneOrMany::One(token)) => vec![token],
        Some(OneOrMany::Many(tokens)) => tokens,
    };
    match tokens.iter().find(|token| **token as usize >= vocab) {
        Some(token) => {
            let why = format!("{token} is not below the vocabulary size {vocab}");
            Err(fields.bad_value("eos_token_id", why))
        }
        None => Ok(tokens),
    }
}

impl RopeConfig {
    /// Reads both spellings: `rope_parameters`, or `rope_theta` beside an optional `rope_scaling`.
    ///
    /// # Errors
    /// If theta is missing or not above 0, the spellings contradict each other, or the kind is not among `allowed`.
    pub fn read(fields: &mut Fields, allowed: &[RopeKind]) -> Result<Self> {
        let outer: Option<f64> = match fields.has("rope_theta") {
            true => Some(fields.positive("rope_theta")?),
            false => None,
        };
        let newer = fields.object("rope_parameters")?;
        let older = fields.object("rope_scaling")?;
        let (mut inner, spelling) = match (newer, older) {
            (Some(_), Some(_)) => {
                let why = "stands beside rope_parameters; keep one of the two".into();
                return Err(fields.bad_value("rope_scaling", why));
            }
            (Some(inner), None) => (inner, "rope_parameters"),
            (None, Some(inner)) => (inner, "rope_scaling"),
            (None, None) => {
                let theta = match outer {
                    Some(theta) => theta,
                    None => fields.positive("rope_theta")?,
                };
                return Ok(RopeConfig::Default { theta });
            }
        };
        let nested: Option<f64> = inner.optional("rope_theta")?;
        let theta = match (outer, nested) {
            (Some(a), Some(b)) if a != b => {
                let why = format!("is {b}, the outer rope_theta is {a}");
                return Err(inner.bad_value("rope_theta", why));
            }
            (Some(theta), _) | (None, Some(theta)) => theta,
            (None, None) => fields.positive("rope_theta")?,
        };
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(inner.bad_value("rope_theta", format!("must be above 0, is {theta}")));
        }
        let config = scaled(&mut inner, theta)?;
        inner.finish()?;
        if !allowed.contains(&config.kind()) {
            let got = json!(format!("{:?}", config.kind()));
            return Err(fields.unsupported(spelling, &got, &format!("{allowed:?}")));
        }
        Ok(config)
    }

    /// Which kind it is.
    pub fn kind(&self) -> RopeKind {
        match self {
            Self::Default { .. } => RopeKind::Default,
            Self::Llama3 { .. } => RopeKind::Llama3,
        }
    }
}
