//! What an EAGLE-3 drafter's config.json says, in each of its three spellings.

use decode::LayerId;
use models::{Fields, RopeConfig, RopeKind, Source, refuse_other_forward_passes};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::trunk::HARMLESS;
use crate::{Error, Result, TargetFacts};

const CONFIG: &str = "config.json";

/// Architectures of the authors' code, SpecForge and AngelSlim; older files of the authors carry the target's.
const FLAT: &[&str] = &[
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "LlamaForCausalLM",
];

/// The architecture of DeepSpec.
const DEEPSPEC: &str = "Qwen3Eagle3Model";

/// More keys that do not change a frozen forward pass. Angles are computed for any position, so a short
/// `max_position_embeddings` does not limit the text; drafts beyond it are less likely to be accepted.
const HARMLESS_HERE: &[&str] = &[
    "architectures",
    "draft_num_hidden_layers",
    "embed_requires_grad",
    "has_no_defaults_at_init",
    "max_position_embeddings",
    "pretraining_tp",
    "speculators_config",
    "speculators_version",
    "step_loss_decay",
    "target_model_type",
    "ttt_length",
];

/// What is normalised before the taps are joined and projected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusionNorm {
    /// Nothing.
    Off,
    /// The joined taps, by one norm as wide as all of them.
    Joined,
    /// Each tap by its own norm.
    Each,
}

/// Which form of a state is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateForm {
    /// As the layer left it.
    Raw,
    /// After the norm.
    Normed,
}

/// Shape of an EAGLE-3 drafter. The norms of queries and keys are not here, and the width of a head only as the config
/// has it: configs contradict their tensors, so the tensors decide.
#[derive(Clone, Debug)]
pub struct Eagle3Config {
    /// Width of the drafter's own stream, H.
    pub hidden: usize,
    /// Vocabulary, V; equals the target's.
    pub vocab: usize,
    /// Token ids it can draft, at most V.
    pub draft_vocab: usize,
    /// Target layers it reads; `None` for the three of the authors' code.
    pub taps: Option<Vec<LayerId>>,
    /// Width of a tap; equals the target's hidden size.
    pub tap_width: usize,
    /// Layers of the target it was trained for, where the config tells.
    pub n_target_layers: Option<usize>,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head, where no tensor tells: random weights have none.
    pub head_dim_said: usize,
    /// Inner width of the feed-forward block.
    pub intermediate: usize,
    /// Epsilon of every norm.
    pub rms_eps: f32,
    /// Rotary angles.
    pub rope: RopeConfig,
    /// Norm of the taps.
    pub fusion_norm: FusionNorm,
    /// What the layer's residual carries: the fused state or its norm.
    pub residual: StateForm,
    /// What the next draft step is fed.
    pub feedback: StateForm,
    /// What the head reads.
    pub head_input: StateForm,
}

impl Eagle3Config {
    /// Reads a config.json of the authors' code, SpecForge or AngelSlim (flat), of speculators (nested
    /// `transformer_layer_config`) or of DeepSpec (`Qwen3Eagle3Model`).
    ///
    /// # Errors
    /// If a key is missing, unknown or of the wrong type, or a value is not supported.
    pub fn load(source: &Source) -> Result<Self> {
        let label = source.label(CONFIG);
        let mut fields = Fields::parse(&label, &source.read(CONFIG)?)?;
        let named: Vec<String> = fields.optional("architectures")?.unwrap_or_default();
        let named = named.join(" ");
        let config = if fields.has("speculators_model_type") {
            Self::speculators(&mut fields)?
        } else if named == DEEPSPEC {
            Self::deepspec(&mut fields)?
        } else if FLAT.contains(&named.as_str()) {
            Self::flat(&mut fields)?
        } else {
            let known = format!("{}, {DEEPSPEC}", FLAT.join(", "));
            return Err(fields
                .unsupported("architectures", &json!(named), &known)
                .into());
        };
        finish(fields)?;
        config.check(label)
    }

    fn flat(fields: &mut Fields) -> Result<Self> {
        let mut config = Self::layer(fields)?;
        let own: Option<usize> = fields.optional("draft_vocab_size")?;
        config.draft_vocab = own.unwrap_or(config.vocab);
        config.norms(fields)?;
        if let Some(mut inner) = fields.object("eagle_config")? {
            inner.only("use_aux_hidden_state", &json!(true))?;
            inner.only("use_input_layernorm_in_first_layer", &json!(true))?;
            inner.only("use_last_layernorm", &json!(true))?;
            inner.only("use_mtp_layernorm", &json!(false))?;
            let key = "eagle_aux_hidden_state_layer_ids";
            let ids: Option<Vec<usize>> = inner.optional(key)?;
            inner.finish()?;
            // Here, other than at the outer level, a layer is named by its own number: SGLang, which reads this
            // object, takes what enters the layer after it.
            config.taps = ids.filter(|ids| !ids.is_empty()).map(layers);
        }
        config.outer_taps(fields)?;
        // SpecForge's word for the norm before the head; it always feeds the raw state back.
        if fields.optional("norm_output")? == Some(false) {
            config.head_input = StateForm::Raw;
        }
        Ok(config)
    }

    fn speculators(fields: &mut Fields) -> Result<Self> {
        fields.only("speculators_model_type", &json!("eagle3"))?;
        let Some(mut inner) = fields.object("transformer_layer_config")? else {
            return Err(Error::Load(models::LoadError::MissingKey {
                file: fields.file().to_owned(),
                key: "transformer_layer_config".to_owned(),
            }));
        };
        let mut config = Self::layer(&mut inner)?;
        finish(inner)?;
        config.draft_vocab = fields.size("draft_vocab_size")?;
        config.norms(fields)?;
        config.outer_taps(fields)?;
        // The same key means something else here: the state fed back is the normed one.
        if fields.optional("norm_output")? == Some(true) {
            config.feedback = StateForm::Normed;
        }
        Ok(config)
    }

    fn deepspec(fields: &mut Fields) -> Result<Self> {
        let mut config = Self::layer(fields)?;
        config.taps = Some(layers(fields.required("target_layer_ids")?));
        config.n_target_layers = Some(fields.size("num_target_layers")?);
        Ok(config)
    }

    /// Keys of the layer, which all spellings share.
    fn layer(fields: &mut Fields) -> Result<Self> {
        refuse_other_forward_passes(fields)?;
        fields.only("bias", &json!(false))?;
        fields.only("num_hidden_layers", &json!(1))?;
        let (hidden, vocab) = (fields.size("hidden_size")?, fields.size("vocab_size")?);
        let n_heads = fields.size("num_attention_heads")?;
        let n_kv_heads: Option<usize> = fields.optional("num_key_value_heads")?;
        models::full_attention_only(fields, 1)?;
        let head_dim: Option<usize> = fields.optional("head_dim")?;
        Ok(Self {
            hidden,
            vocab,
            draft_vocab: vocab,
            taps: None,
            tap_width: hidden,
            n_target_layers: None,
            n_heads,
            n_kv_heads: n_kv_heads.unwrap_or(n_heads),
            head_dim_said: head_dim.unwrap_or(hidden / n_heads),
            intermediate: fields.size("intermediate_size")?,
            rms_eps: fields.positive("rms_norm_eps")? as f32,
            rope: rope(fields)?,
            fusion_norm: FusionNorm::Off,
            residual: StateForm::Raw,
            feedback: StateForm::Raw,
            head_input: StateForm::Normed,
        })
    }

    fn norms(&mut self, fields: &mut Fields) -> Result<()> {
        let width: Option<usize> = fields.optional("target_hidden_size")?;
        self.tap_width = width.unwrap_or(self.hidden);
        let mut on = |key: &str| fields.optional::<bool>(key).map(|on| on == Some(true));
        if on("norm_before_residual")? {
            self.residual = StateForm::Normed;
        }
        self.fusion_norm = match (on("norm_before_fc")?, on("fc_norm")?) {
            (false, false) => FusionNorm::Off,
            (true, false) => FusionNorm::Joined,
            (false, true) => FusionNorm::Each,
            (true, true) => {
                let why = "stands beside norm_before_fc; one of the two must be false".into();
                return Err(fields.bad_value("fc_norm", why).into());
            }
        };
        Ok(())
    }

    /// Taps at the outer level: a layer is named by what enters it, that is by the number of the one before it plus 1.
    fn outer_taps(&mut self, fields: &mut Fields) -> Result<()> {
        let key = "eagle_aux_hidden_state_layer_ids";
        let Some(ids) = fields.optional::<Vec<usize>>(key)? else {
            return Ok(());
        };
        if self.taps.is_some() {
            let why = "stands beside the one in eagle_config; keep one of the two".into();
            return Err(fields.bad_value(key, why).into());
        }
        if ids.contains(&0) {
            let why = "names 0, the embeddings; only what enters layers from 1 on is read".into();
            return Err(fields.bad_value(key, why).into());
        }
        self.taps = Some(ids.into_iter().map(|id| LayerId(id - 1)).collect());
        Ok(())
    }

    fn check(self, file: String) -> Result<Self> {
        let why = if self.draft_vocab == 0 || self.draft_vocab > self.vocab {
            format!(
                "draft_vocab_size {} must lie between 1 and vocab_size {}",
                self.draft_vocab, self.vocab
            )
        } else if self.n_kv_heads == 0 || !self.n_heads.is_multiple_of(self.n_kv_heads) {
            format!(
                "num_key_value_heads {} must divide num_attention_heads {}",
                self.n_kv_heads, self.n_heads
            )
        } else {
            return Ok(self);
        };
        Err(Error::Config { file, why })
    }

    /// The layers to tap in a target of `n_layers`: those named, or those before layers 2, L / 2 and L - 3.
    ///
    /// # Errors
    /// [`Error::Config`] if they do not rise or the target has no such layer.
    pub fn taps_in(&self, file: &str, n_layers: usize) -> Result<Vec<LayerId>> {
        let taps = match &self.taps {
            Some(taps) => taps.clone(),
            None => layers(vec![
                1,
                (n_layers / 2).saturating_sub(1),
                n_layers.saturating_sub(4),
            ]),
        };
        let rising = taps.windows(2).all(|w| w[0] < w[1]);
        if rising && taps.last().is_some_and(|tap| tap.0 < n_layers) {
            return Ok(taps);
        }
        let ids: Vec<usize> = taps.iter().map(|tap| tap.0).collect();
        Err(Error::Config {
            file: file.to_owned(),
            why: format!(
                "the drafter would read layers {ids:?} of a target of {n_layers}; they must rise and exist: name them in eagle_config.eagle_aux_hidden_state_layer_ids"
            ),
        })
    }

    pub(super) fn check_target(&self, file: &str, target: &TargetFacts) -> Result<()> {
        let n_layers = self.n_target_layers.unwrap_or(target.n_layers);
        let pairs = [
            ("target_hidden_size", self.tap_width, target.hidden),
            ("vocab_size", self.vocab, target.vocab),
            ("num_target_layers", n_layers, target.n_layers),
        ];
        match pairs.into_iter().find(|(_, got, want)| got != want) {
            None => Ok(()),
            Some((what, got, want)) => Err(Error::OtherTarget {
                file: file.to_owned(),
                what,
                got,
                target: target.id.clone(),
                want,
            }),
        }
    }
}

fn layers(ids: Vec<usize>) -> Vec<LayerId> {
    ids.into_iter().map(LayerId).collect()
}

fn finish(mut fields: Fields) -> Result<()> {
    fields.ignore(HARMLESS);
    fields.ignore(HARMLESS_HERE);
    Ok(fields.finish()?)
}

/// A config without any word on angles was trained with the base of the authors' code.
fn rope(fields: &mut Fields) -> Result<RopeConfig> {
    let keys = ["rope_theta", "rope_parameters", "rope_scaling"];
    if keys.iter().any(|key| fields.has(key)) {
        return Ok(RopeConfig::read(
            fields,
            &[RopeKind::Default, RopeKind::Llama3],
        )?);
    }
    fields.ignore(&keys);
    Ok(RopeConfig::Default { theta: 10000.0 })
}
