//! config.json and generation_config.json out of GGUF metadata.

use serde_json::{Value as Json, json};

use super::{RowOrder, Special};
use crate::error::Result;
use crate::fields::Fields;
use crate::spec::{FAMILIES, Family};

/// Metadata of an architecture that does not change the forward pass: the vocabulary's size is that of the embedding,
/// and the rest means something only beside keys that are refused.
const HARMLESS: [&str; 4] = [
    "vocab_size",
    "expert_used_count",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];
/// Frequency base where a file names none, as llama.cpp reads it.
const DEFAULT_FREQ_BASE: f64 = 10_000.0;

/// What llama.cpp calls one of our decoder families.
#[derive(Clone, Copy, Debug)]
pub(super) struct Architecture {
    /// `general.architecture`, and the prefix of its keys.
    pub(super) id: &'static str,
    model_type: &'static str,
    /// Whether the converter reorders rows of queries and keys.
    paired: Paired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paired {
    Yes,
    No,
}

const ARCHITECTURES: [Architecture; 2] = [
    Architecture {
        id: "llama",
        model_type: "llama",
        paired: Paired::Yes,
    },
    Architecture {
        id: "qwen3",
        model_type: "qwen3",
        paired: Paired::No,
    },
];

impl Architecture {
    /// Reads `general.architecture`.
    pub(super) fn read(head: &mut Fields) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let id: String = head.required(KEY)?;
        let found = ARCHITECTURES.iter().find(|one| one.id == id);
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = ARCHITECTURES.iter().map(|one| one.id).collect();
            head.unsupported(KEY, &json!(id), &known.join(", "))
        })
    }

    fn family(self) -> &'static Family {
        let mut families = FAMILIES.iter();
        families
            .find(|family| family.model_type == self.model_type)
            .expect("the table above names families of the other table")
    }
}

/// The numbers of a decoder.
pub(super) struct Shape {
    architecture: Architecture,
    hidden: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    rms_eps: f64,
    freq_base: f64,
    max_positions: usize,
}

impl Shape {
    /// Reads every key of the architecture; `own` holds them without its prefix.
    pub(super) fn read(own: &mut Fields, architecture: Architecture) -> Result<Self> {
        let hidden = own.size("embedding_length")?;
        let n_heads = own.size("attention.head_count")?;
        let head_dim = match own.optional("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => hidden / n_heads,
        };
        let shape = Self {
            architecture,
            hidden,
            n_layers: own.size("block_count")?,
            n_heads,
            n_kv_heads: match own.has("attention.head_count_kv") {
                true => own.size("attention.head_count_kv")?,
                false => n_heads,
            },
            head_dim,
            intermediate: own.size("feed_forward_length")?,
            rms_eps: own.positive("attention.layer_norm_rms_epsilon")?,
            freq_base: (own.optional("rope.freq_base")?).unwrap_or(DEFAULT_FREQ_BASE),
            max_positions: own.size("context_length")?,
        };
        own.only("attention.value_length", &json!(head_dim))?;
        own.only("rope.dimension_count", &json!(head_dim))?;
        own.only("attention.causal", &json!(true))?;
        own.only("expert_count", &json!(0))?;
        unscaled(own)?;
        own.ignore(&HARMLESS);
        own.check_empty()?;
        Ok(shape)
    }

    /// Holds the number of layers to the tensors, whose names are given: a wrong one would be a cache of any size.
    pub(super) fn check_layers<'a>(
        &self,
        own: &Fields,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<()> {
        let layer = |name: &str| {
            let number = name.strip_prefix("blk.")?.split('.').next()?;
            number.parse::<usize>().ok()
        };
        let n_found = names.filter_map(layer).max().map_or(0, |last| last + 1);
        if n_found != self.n_layers {
            let why = format!(
                "is {}, the file has tensors of {n_found} layers",
                self.n_layers
            );
            return Err(own.bad_value("block_count", why));
        }
        Ok(())
    }

    /// How the rows of a tensor lie, by its name in the file.
    pub(super) fn row_order(&self, name: &str) -> RowOrder {
        let is_paired = self.architecture.paired == Paired::Yes && name.starts_with("blk.");
        match name.rsplit('.').nth(1) {
            Some("attn_q") if is_paired && name.ends_with(".weight") => RowOrder::Pairs {
                n_heads: self.n_heads,
            },
            Some("attn_k") if is_paired && name.ends_with(".weight") => RowOrder::Pairs {
                n_heads: self.n_kv_heads,
            },
            _ => RowOrder::Halves,
        }
    }

    /// config.json and generation_config.json.
    pub(super) fn files(
        &self,
        special: &Special,
        vocab: usize,
        tied: bool,
    ) -> Vec<(&'static str, Json)> {
        let family = self.architecture.family();
        let Special { bos, eos, stop } = special;
        let config = json!({
            "architectures": [family.architecture],
            "model_type": family.model_type,
            "hidden_act": "silu",
            "attention_bias": false,
            "vocab_size": vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.freq_base,
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            "bos_token_id": bos,
            "eos_token_id": eos,
        });
        let generation = json!({"bos_token_id": bos, "eos_token_id": stop});
        vec![
            ("config.json", config),
            ("generation_config.json", generation),
        ]
    }
}

/// Refuses scaled rotary angles, reading a missing kind as llama.cpp does.
fn unscaled(own: &mut Fields) -> Result<()> {
    const KEY: &str = "rope.scaling.type";
    const FACTORS: [&str; 2] = ["rope.scaling.factor", "rope.scale_linear"];
    let kind: Option<String> = own.optional(KEY)?;
    match kind.as_deref() {
        Some("none") => own.ignore(&FACTORS),
        None | Some("linear") => {
            for key in FACTORS {
                own.only(key, &json!(1.0))?;
            }
        }
        Some(other) => return Err(own.unsupported(KEY, &json!(other), "none, linear by 1")),
    }
    Ok(())
}
