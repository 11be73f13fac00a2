//! The one layer of EAGLE-3: it reads a token's embedding beside a state and continues the state's stream.

use candle_core::{D, DType, Device, Tensor};
use decode::{LayerId, TokenId, TokenIo};
use models::{Attention, AttentionDims, CacheAt, Mlp, MlpDims, QkNorm, Weights};

use super::config::{Eagle3Config, FusionNorm, StateForm};
use crate::draft_vocab::DraftVocab;
use crate::{Error, Result};

/// Weights of a drafter.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) config: Eagle3Config,
    /// Sizes of its attention, as the tensors have them.
    pub(super) attention_dims: AttentionDims,
    pub(super) vocab: DraftVocab,
    fusion_norms: Vec<Tensor>,
    fc: Tensor,
    embed_norm: Tensor,
    state_norm: Tensor,
    attention: Attention,
    mlp_norm: Tensor,
    mlp: Mlp,
    norm: Option<Tensor>,
    /// `None` where the target's own tables serve.
    embed: Option<Tensor>,
    head: Option<Tensor>,
}

impl Net {
    /// Takes all tensors. The layer is called `midlayer` by the authors' code and `layers.0` elsewhere.
    pub(super) fn load(
        config: Eagle3Config,
        weights: &mut Weights,
        taps: &[LayerId],
    ) -> Result<Self> {
        let (h, fused) = (config.hidden, taps.len() * config.tap_width);
        let layer = match weights.has("midlayer.self_attn.q_proj.weight") {
            true => "midlayer.",
            false => "layers.0.",
        };
        let attention_dims = attention_dims(&config, weights, layer)?;
        let fusion_norms = match config.fusion_norm {
            FusionNorm::Off => Vec::new(),
            FusionNorm::Joined => vec![weights.take("input_norm.weight", &[fused])?],
            FusionNorm::Each => (0..taps.len())
                .map(|i| weights.take(&format!("fc_norm.{i}.weight"), &[config.tap_width]))
                .collect::<std::result::Result<_, _>>()?,
        };
        let fc = weights.take_matrix("fc.weight", [h, fused])?;
        let mut norm = |name: &str| weights.take(&format!("{layer}{name}.weight"), &[h]);
        let embed_norm = norm("input_layernorm")?;
        let state_norm = norm("hidden_norm")?;
        let mlp_norm = norm("post_attention_layernorm")?;
        let attention = Attention::load(weights, &format!("{layer}self_attn."), attention_dims)?;
        let dims = MlpDims::Dense {
            intermediate: config.intermediate,
        };
        let mlp = Mlp::load(weights, &format!("{layer}mlp."), h, dims)?;
        let needed = [config.feedback, config.head_input].contains(&StateForm::Normed);
        let norm = match needed || weights.has("norm.weight") {
            true => Some(weights.take("norm.weight", &[h])?),
            false => None,
        };
        // Random weights have every table that the target's cannot stand in for.
        let narrow = h != config.tap_width;
        let few = config.draft_vocab != config.vocab;
        let mut table = |name: &str, rows: usize, own: bool| {
            let is_there = weights.has(name) || (own && weights.is_random());
            let table = is_there.then(|| weights.take_matrix(name, [rows, h]));
            table.transpose()
        };
        let embed = table("embed_tokens.weight", config.vocab, narrow)?;
        let head = table("lm_head.weight", config.draft_vocab, narrow || few)?;
        let net = Self {
            vocab: DraftVocab::load(weights, config.vocab, config.draft_vocab)?,
            attention_dims,
            fusion_norms,
            fc,
            embed_norm,
            state_norm,
            attention,
            mlp_norm,
            mlp,
            norm,
            embed,
            head,
            config,
        };
        net.check_borrowed(weights.place())?;
        Ok(net)
    }

    /// The target's tables can stand in for missing ones only if they fit.
    fn check_borrowed(&self, file: &str) -> Result<()> {
        let narrow = self.config.hidden != self.config.tap_width;
        let few = self.config.draft_vocab != self.config.vocab;
        let why = if self.embed.is_none() && narrow {
            "embed_tokens.weight is missing, and the target's embeddings have another width"
        } else if self.head.is_none() && (narrow || few) {
            "lm_head.weight is missing, and the target's head has another shape"
        } else {
            return Ok(());
        };
        Err(Error::Config {
            file: file.to_owned(),
            why: why.to_owned(),
        })
    }

    /// Taps, one `[N, tap width]` each, to the states `[N, H]` that stand for them.
    pub(super) fn fuse(&self, taps: &[Tensor]) -> candle_core::Result<Tensor> {
        let joined = match self.config.fusion_norm {
            FusionNorm::Off => Tensor::cat(taps, D::Minus1)?,
            FusionNorm::Joined => {
                self.rms_norm(&Tensor::cat(taps, D::Minus1)?, &self.fusion_norms[0])?
            }
            FusionNorm::Each => {
                let normed = taps.iter().zip(&self.fusion_norms);
                let normed = normed.map(|(tap, norm)| self.rms_norm(tap, norm));
                Tensor::cat(&normed.collect::<candle_core::Result<Vec<_>>>()?, D::Minus1)?
            }
        };
        kernels::linear(&joined, &self.fc)
    }

    /// Tokens and the states before them, `[N, H]`, to the states after them, `[N, H]`, before any norm.
    pub(super) fn forward(
        &self,
        tokens: &[TokenId],
        state: &Tensor,
        io: &dyn TokenIo,
        at: &mut CacheAt<'_>,
    ) -> decode::Result<Tensor> {
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let embedded = match &self.embed {
            Some(table) => table.index_select(&ids, 0)?.to_dtype(DType::F32)?,
            None => io.embed(&ids)?,
        };
        let normed = self.rms_norm(state, &self.state_norm)?;
        let embedded = self.rms_norm(&embedded, &self.embed_norm)?;
        // [N, H] twice -> [N, 2H], the embedding first
        let both = Tensor::cat(&[&embedded, &normed], 1)?;
        let residual = match self.config.residual {
            StateForm::Raw => state,
            StateForm::Normed => &normed,
        };
        let x = (residual + self.attention.forward(&both, at)?)?;
        let inner = self.rms_norm(&x, &self.mlp_norm)?;
        Ok((&x + self.mlp.forward(&inner)?)?)
    }

    /// What the next step takes as state, from what [`Net::forward`] gave.
    pub(super) fn feedback(&self, y: &Tensor) -> candle_core::Result<Tensor> {
        self.as_state(y, self.config.feedback)
    }

    /// `[N, H]` of [`Net::forward`] to `[N, draft vocabulary]` logits.
    pub(super) fn logits(&self, y: &Tensor, io: &dyn TokenIo) -> decode::Result<Tensor> {
        let x = self.as_state(y, self.config.head_input)?;
        match &self.head {
            Some(head) => Ok(kernels::linear(&x, head)?),
            None => io.lm_head(&x),
        }
    }

    fn as_state(&self, y: &Tensor, state: StateForm) -> candle_core::Result<Tensor> {
        match (state, &self.norm) {
            (StateForm::Raw, _) => Ok(y.clone()),
            (StateForm::Normed, Some(norm)) => self.rms_norm(y, norm),
            (StateForm::Normed, None) => {
                unreachable!("`load` takes the norm that the config asks for")
            }
        }
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
        kernels::rms_norm(x, weight, self.config.rms_eps)
    }
}

/// Published configs contradict their tensors about the width of a head, so the tensors' word counts.
fn attention_dims(config: &Eagle3Config, weights: &Weights, layer: &str) -> Result<AttentionDims> {
    let name = format!("{layer}self_attn.q_proj.weight");
    let rows = match weights.shape(&name) {
        Some(&[rows, _]) => rows,
        None if weights.is_random() => config.n_heads * config.head_dim_said,
        _ => {
            return Err(Error::Load(models::LoadError::MissingTensor {
                file: weights.place().to_owned(),
                tensor: name,
            }));
        }
    };
    let (n_heads, head_dim) = (config.n_heads, rows / config.n_heads);
    if !rows.is_multiple_of(n_heads) || head_dim % 2 != 0 || head_dim == 0 {
        return Err(Error::Config {
            file: weights.place().to_owned(),
            why: format!(
                "the {rows} rows of {name:?} do not make {n_heads} heads of one even width"
            ),
        });
    }
    let normed = weights.has(&format!("{layer}self_attn.q_norm.weight"));
    Ok(AttentionDims {
        input: 2 * config.hidden,
        hidden: config.hidden,
        n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim,
        rms_eps: config.rms_eps,
        qk_norm: match normed {
            true => QkNorm::PerHead,
            false => QkNorm::Off,
        },
    })
}
