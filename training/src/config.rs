//! The shape of a network, spelled as Hugging Face's `config.json` spells it.

use crate::check::{ABOVE_0, Check, is_positive};
use crate::error::{Error, Result};
use crate::ops::AttentionShape;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Model families this crate can train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// Norms over each query and key head; dense feed-forward.
    Qwen3ForCausalLM,
    /// As Qwen3, with routed experts in every layer.
    Qwen3MoeForCausalLM,
    /// No norms over heads; dense feed-forward.
    LlamaForCausalLM,
}

impl Family {
    /// Whether queries and keys are normed head by head.
    pub fn norms_heads(self) -> bool {
        !matches!(self, Self::LlamaForCausalLM)
    }

    /// The `model_type` that belongs to the architecture.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3ForCausalLM => "qwen3",
            Self::Qwen3MoeForCausalLM => "qwen3_moe",
            Self::LlamaForCausalLM => "llama",
        }
    }
}

/// Routed experts of a mixture model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Experts in each layer.
    pub num_experts: usize,
    /// Experts a token is sent to.
    pub num_experts_per_tok: usize,
    /// Width of one expert.
    pub moe_intermediate_size: usize,
}

/// Sizes of a network, as a recipe's `[model]` table gives them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// Which family.
    pub architecture: Family,
    /// Tokens in the embedding table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the dense feed-forward block; unused by layers with experts.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Columns of a head; even.
    pub head_dim: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Positions the model can be run at.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Present for mixture models only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
}

impl NetConfig {
    /// How attention columns split into heads.
    pub fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
        }
    }

    /// What the `[model]` table must fulfil.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let heads = self.num_attention_heads;
        let kv_heads = self.num_key_value_heads;
        let is_mixture = self.architecture == Family::Qwen3MoeForCausalLM;
        let mut checks = vec![
            ("model.vocab_size", self.vocab_size > 0, ABOVE_0),
            ("model.hidden_size", self.hidden_size > 0, ABOVE_0),
            (
                "model.intermediate_size",
                self.intermediate_size > 0,
                ABOVE_0,
            ),
            (
                "model.num_hidden_layers",
                self.num_hidden_layers > 0,
                ABOVE_0,
            ),
            ("model.num_attention_heads", heads > 0, ABOVE_0),
            (
                "model.num_key_value_heads",
                kv_heads > 0 && heads.is_multiple_of(kv_heads),
                "must divide num_attention_heads",
            ),
            (
                "model.head_dim",
                self.head_dim > 0 && self.head_dim.is_multiple_of(2),
                "must be even and above 0",
            ),
            (
                "model.rms_norm_eps",
                is_positive(self.rms_norm_eps),
                ABOVE_0,
            ),
            ("model.rope_theta", is_positive(self.rope_theta), ABOVE_0),
            (
                "model.experts",
                self.experts.is_some() == is_mixture,
                "must be there for Qwen3MoeForCausalLM and for no other architecture",
            ),
        ];
        if let Some(experts) = self.experts {
            checks.push((
                "model.experts.num_experts_per_tok",
                (1..=experts.num_experts).contains(&experts.num_experts_per_tok),
                "must be 1..=num_experts",
            ));
            checks.push((
                "model.experts.moe_intermediate_size",
                experts.moe_intermediate_size > 0,
                ABOVE_0,
            ));
        }
        checks
    }

    /// Reads back what [`Self::to_hugging_face`] wrote.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Json`] if the file is missing or lacks a key.
    pub fn from_hugging_face(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let read = || -> std::result::Result<Self, serde_json::Error> {
            let mut json: serde_json::Value = serde_json::from_str(&text)?;
            json["architecture"] = json["architectures"][0].take();
            let experts = json.get("num_experts").map(|_| keep(&json, &EXPERT_KEYS));
            let mut own = keep(&json, &KEYS);
            if let Some(experts) = experts {
                own["experts"] = experts;
            }
            serde_json::from_value(own)
        };
        read().map_err(Error::json(path))
    }

    /// The `config.json` of a Hugging Face checkpoint. `stop` is the end-of-turn token, `pad` the padding token.
    pub fn to_hugging_face(&self, stop: u32, pad: u32) -> serde_json::Value {
        let mut json = serde_json::json!({
            "architectures": [self.architecture],
            "model_type": self.architecture.model_type(),
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": null,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": false,
            "eos_token_id": stop,
            "pad_token_id": pad,
            "torch_dtype": "bfloat16",
        });
        if let (Some(experts), Some(map)) = (self.experts, json.as_object_mut()) {
            for (key, value) in [
                ("num_experts", serde_json::json!(experts.num_experts)),
                (
                    "num_experts_per_tok",
                    serde_json::json!(experts.num_experts_per_tok),
                ),
                (
                    "moe_intermediate_size",
                    serde_json::json!(experts.moe_intermediate_size),
                ),
                ("norm_topk_prob", serde_json::json!(true)),
                ("decoder_sparse_step", serde_json::json!(1)),
                ("mlp_only_layers", serde_json::json!([])),
            ] {
                map.insert(key.to_owned(), value);
            }
        }
        json
    }
}

const KEYS: [&str; 12] = [
    "architecture",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "max_position_embeddings",
    "tie_word_embeddings",
];

const EXPERT_KEYS: [&str; 3] = [
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
];

/// The named keys of an object; a missing one stays missing and is reported by the reader.
fn keep(json: &serde_json::Value, keys: &[&str]) -> serde_json::Value {
    let found = keys
        .iter()
        .filter_map(|k| Some(((*k).to_owned(), json.get(*k)?.clone())));
    serde_json::Value::Object(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SMALL, small};

    #[test]
    fn a_config_survives_its_hugging_face_spelling() -> Result<()> {
        for family in SMALL {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("config.json");
            let config = small(family);
            std::fs::write(&path, config.to_hugging_face(1, 0).to_string()).unwrap();
            assert_eq!(NetConfig::from_hugging_face(&path)?, config);
        }
        Ok(())
    }
}
