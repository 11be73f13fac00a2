//! The EAGLE-3 layer in differentiable form, unrolled over its own outputs.
//!
//! Source: EAGLE-3 (arXiv 2503.01840) and its code; tensor names as in its checkpoints.

use super::walk::{Teacher, Walk};
use crate::config::{Family, NetConfig};
use crate::error::Result;
use crate::layer::{Maker, Mlp, norm_heads};
use crate::lm::CausalLm;
use crate::ops::{
    OwnKeys, RopeTable, attention_with_own, linear, rms_norm, rope, soft_cross_entropy,
};
use crate::params::{Init, Params};
use crate::trunk::passes_last_tap;
use crate::vocab::DraftVocab;
use baselines::StateForm;
use candle_core::{D, DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The `[drafter]` table of an EAGLE-3 recipe; widths and heads are the target's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eagle3Shape {
    /// Width of the feed-forward block; the target's, if it is to be copied from it.
    pub intermediate_size: usize,
    /// Target layers that are read, rising, 0-based.
    pub target_layer_ids: Vec<usize>,
    /// Token ids the head knows, the answers' most frequent ones.
    pub draft_vocab_size: usize,
    /// Draft steps that are unrolled in training.
    pub ttt_steps: usize,
    /// Each step counts this much of the one before.
    pub step_decay: f64,
    /// What the residual of the layer carries: the state as it is, or its norm.
    #[serde(default = "raw")]
    pub residual: StateForm,
    /// What the next step is fed: the layer's output as it is, or its norm.
    #[serde(default = "raw")]
    pub feedback: StateForm,
}

fn raw() -> StateForm {
    StateForm::Raw
}

/// Standard deviation of new matrices.
const INIT_STD: f64 = 0.02;

/// A drafter under training.
pub(crate) struct Eagle3Net {
    /// The trained tensors under checkpoint names.
    pub(crate) params: Params,
    pub(crate) shape: Eagle3Shape,
    pub(crate) vocab: DraftVocab,
    net: NetConfig,
    fc: Tensor,
    embed_norm: Tensor,
    state_norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    head_norms: Option<(Tensor, Tensor)>,
    mlp_norm: Tensor,
    mlp: Mlp,
    norm: Tensor,
    head: Tensor,
    table: Arc<RopeTable>,
}

/// Rotated queries, and keys and values of the rows of one step.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Eagle3Net {
    /// A new drafter for a target of shape `target`, with weights drawn from `seed`.
    ///
    /// # Errors
    /// If a tensor cannot be made.
    pub(crate) fn new(
        shape: &Eagle3Shape,
        target: &NetConfig,
        vocab: DraftVocab,
        seed: u64,
    ) -> Result<Self> {
        let (hidden, heads) = (target.hidden_size, target.attention());
        let (q_width, kv_width) = (
            heads.heads * heads.head_dim,
            heads.kv_heads * heads.head_dim,
        );
        let fused = shape.target_layer_ids.len() * hidden;
        let mut params = Params::default();
        let std = Init::Normal((fused as f64).sqrt().recip());
        let fc = params.add("fc.weight", &[hidden, fused], std, seed)?;
        let norm = params.add("norm.weight", &[hidden], Init::One, seed)?;
        let std = Init::Normal(INIT_STD);
        let head = params.add("lm_head.weight", &[vocab.len(), hidden], std, seed)?;
        let out_std = INIT_STD / 2f64.sqrt();
        let mut maker = Maker {
            params: &mut params,
            prefix: "midlayer.".to_owned(),
            seed,
        };
        let head_norms = match target.architecture.norms_heads() {
            true => Some((
                maker.norm("self_attn.q_norm", heads.head_dim)?,
                maker.norm("self_attn.k_norm", heads.head_dim)?,
            )),
            false => None,
        };
        let n_positions = target.max_position_embeddings + shape.ttt_steps;
        Ok(Self {
            fc,
            embed_norm: maker.norm("input_layernorm", hidden)?,
            state_norm: maker.norm("hidden_norm", hidden)?,
            q: maker.matrix("self_attn.q_proj", q_width, 2 * hidden, INIT_STD)?,
            k: maker.matrix("self_attn.k_proj", kv_width, 2 * hidden, INIT_STD)?,
            v: maker.matrix("self_attn.v_proj", kv_width, 2 * hidden, INIT_STD)?,
            o: maker.matrix("self_attn.o_proj", hidden, q_width, out_std)?,
            head_norms,
            mlp_norm: maker.norm("post_attention_layernorm", hidden)?,
            mlp: Mlp::new(
                "mlp.",
                (hidden, shape.intermediate_size),
                out_std,
                &mut maker,
            )?,
            norm,
            head,
            table: Arc::new(RopeTable::new(
                heads.head_dim,
                n_positions,
                target.rope_theta,
            )),
            params,
            shape: shape.clone(),
            vocab,
            net: target.clone(),
        })
    }

    /// Starts from the target: its last layer where shapes agree, queries, keys and values in the half that reads the
    /// state, its final norm, its head's rows of the kept ids, and a projection that passes the last tap on.
    /// Returns the names that were copied.
    ///
    /// # Errors
    /// If a tensor cannot be copied.
    pub(crate) fn warm_start(&self, target: &CausalLm) -> Result<Vec<String>> {
        let source = target.params.snapshot(DType::F32)?;
        let last = format!("model.layers.{}.", target.config().num_hidden_layers - 1);
        let hidden = self.net.hidden_size;
        let mut copied = Vec::new();
        for (name, var) in self.params.iter() {
            let from = match name.strip_prefix("midlayer.") {
                Some("hidden_norm.weight") => format!("{last}input_layernorm.weight"),
                // There is nothing like it in the target: what it scales goes straight into the projections.
                Some("input_layernorm.weight") => continue,
                Some(rest) => format!("{last}{rest}"),
                None if name == "norm.weight" => "model.norm.weight".to_owned(),
                None => continue,
            };
            let Some(tensor) = source.get(&from) else {
                continue;
            };
            if tensor.dims() == var.dims() {
                var.set(tensor)?;
            } else if [tensor.dim(0)?, 2 * hidden] == *var.dims() {
                let embedded = var.narrow(1, 0, hidden)?.detach();
                var.set(&Tensor::cat(&[&embedded, tensor], 1)?.contiguous()?)?;
            } else {
                continue;
            }
            copied.push(name.to_owned());
        }
        if let Some(head) = self.params.get("lm_head.weight") {
            let ids = Tensor::new(self.vocab.ids.as_slice(), &Device::Cpu)?;
            head.set(&target.head_weight().index_select(&ids, 0)?)?;
            copied.push("lm_head.weight".to_owned());
        }
        if let Some(fc) = self.params.get("fc.weight") {
            fc.set(&passes_last_tap(&self.fc)?)?;
        }
        Ok(copied)
    }

    /// Logits `[asking rows, draft vocabulary]` of every step.
    ///
    /// `taps`: one `[N, H]` a tapped layer; `embed`: ids to rows `[n, H]` of the target's embeddings.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub(crate) fn steps(
        &self,
        walk: &Walk,
        taps: &[Tensor],
        embed: &dyn Fn(&[u32]) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let fused = linear(&Tensor::cat(taps, D::Minus1)?.contiguous()?, &self.fc)?;
        let asking = Tensor::new(walk.asking_rows(), &Device::Cpu)?;
        let positions = walk.positions();
        let asked = walk.asking.iter().map(|(row, _)| positions[*row]);
        let asked: Vec<u32> = asked.collect();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut logits = Vec::with_capacity(self.shape.ttt_steps);
        let mut state = fused;
        for step in 0..self.shape.ttt_steps {
            let ids = match step {
                0 => walk.next_ids(),
                _ => walk.ids_at(step),
            };
            let mut normed = self.rms_norm(&state, &self.state_norm)?;
            let embedded = self.rms_norm(&embed(&ids)?, &self.embed_norm)?;
            let both = Tensor::cat(&[&embedded, &normed], 1)?.contiguous()?;
            let at: Arc<[u32]> = asked.iter().map(|p| p + step as u32).collect();
            let heads = match step {
                // Every row of the first step is a key, but only some rows ask.
                0 => {
                    state = state.index_select(&asking, 0)?;
                    normed = normed.index_select(&asking, 0)?;
                    let queries = both.index_select(&asking, 0)?;
                    self.heads(&queries, &at, &both, &positions.as_slice().into())?
                }
                _ => self.heads(&both, &at, &both, &at)?,
            };
            keys.push(heads.k);
            values.push(heads.v);
            let own = OwnKeys {
                first: walk.ids.len(),
                stride: walk.asking.len(),
                count: step,
            };
            let (k, v) = (Tensor::cat(&keys, 0)?, Tensor::cat(&values, 0)?);
            let seen = [&heads.q, &k, &v];
            let mixed = attention_with_own(seen, self.net.attention(), &walk.segments, own)?;
            let residual = match self.shape.residual {
                StateForm::Raw => &state,
                StateForm::Normed => &normed,
            };
            let x = (residual + linear(&mixed, &self.o)?)?;
            let y = (&x + self.mlp.forward(&self.rms_norm(&x, &self.mlp_norm)?)?)?;
            let for_head = self.rms_norm(&y, &self.norm)?;
            logits.push(linear(&for_head, &self.head)?);
            state = match self.shape.feedback {
                StateForm::Raw => y,
                StateForm::Normed => for_head,
            };
        }
        Ok(logits)
    }

    /// Sum over steps and asking rows of the cross-entropy against the target's laws, later steps decayed, divided by
    /// `total`, the rows of the whole batch, those that do not count included. Also the undecayed terms.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub(crate) fn loss(
        &self,
        walk: &Walk,
        teacher: &Teacher,
        logits: &[Tensor],
        total: f64,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mut terms = Vec::with_capacity(logits.len());
        let mut sum = Tensor::zeros((), DType::F32, &Device::Cpu)?;
        for (step, logits) in logits.iter().enumerate() {
            let share = (1.0 / total) as f32;
            let rows = teacher.rows(walk, step).into_iter();
            let rows = rows.map(|(law, counts)| (law, if counts { share } else { 0.0 }));
            let term = soft_cross_entropy(logits, teacher.laws(), rows.collect())?;
            sum = (sum + (&term * self.shape.step_decay.powi(step as i32))?)?;
            terms.push(term);
        }
        Ok((sum, terms))
    }

    /// Queries of `asking`, keys and values of `all`, each at its rows' positions.
    fn heads(
        &self,
        asking: &Tensor,
        asking_at: &Arc<[u32]>,
        all: &Tensor,
        all_at: &Arc<[u32]>,
    ) -> Result<Heads> {
        let (mut q, mut k) = (linear(asking, &self.q)?, linear(all, &self.k)?);
        if let Some((q_norm, k_norm)) = &self.head_norms {
            q = norm_heads(&q, q_norm, self.net.rms_norm_eps)?;
            k = norm_heads(&k, k_norm, self.net.rms_norm_eps)?;
        }
        Ok(Heads {
            q: rope(&q, &self.table, asking_at)?,
            k: rope(&k, &self.table, all_at)?,
            v: linear(all, &self.v)?,
        })
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        Ok(rms_norm(x, weight, self.net.rms_norm_eps)?)
    }

    /// The drafter's `config.json`: in the authors' spelling, or in that of speculators where a normed state is fed
    /// back, for which the former has no word.
    pub(crate) fn config_json(&self) -> serde_json::Value {
        let net = &self.net;
        let architecture = match net.architecture {
            Family::LlamaForCausalLM => "llama",
            Family::Qwen3ForCausalLM | Family::Qwen3MoeForCausalLM => "qwen3",
        };
        let mut layer = serde_json::json!({
            "model_type": architecture,
            "hidden_size": net.hidden_size,
            "intermediate_size": self.shape.intermediate_size,
            "num_hidden_layers": 1,
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
        let normed = self.shape.residual == StateForm::Normed;
        if self.shape.feedback == StateForm::Normed {
            let entering = self.shape.target_layer_ids.iter().map(|id| id + 1);
            return serde_json::json!({
                "architectures": ["Eagle3Speculator"],
                "speculators_model_type": "eagle3",
                "draft_vocab_size": self.vocab.len(),
                "norm_before_residual": normed,
                "norm_output": true,
                "eagle_aux_hidden_state_layer_ids": entering.collect::<Vec<_>>(),
                "transformer_layer_config": layer,
            });
        }
        layer["architectures"] = serde_json::json!(["LlamaForCausalLMEagle3"]);
        layer["draft_vocab_size"] = self.vocab.len().into();
        layer["eagle_config"] = serde_json::json!({
            "eagle_aux_hidden_state_layer_ids": self.shape.target_layer_ids,
            "use_aux_hidden_state": true,
        });
        if normed {
            layer["norm_before_residual"] = true.into();
        }
        layer
    }
}
