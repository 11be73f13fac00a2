//! Small decoders of every family with seeded weights.
#![allow(dead_code, reason = "each test file uses its own part")]

use candle_core::{Device, Tensor};
use decode::{Feed, Keep, LayerId, Slot, Target, TokenId};
use models::{Decoder, DecoderConfig, DecoderOptions, HeadKind, MlpDims, QkNorm, Weights};
use serde_json::{Value, json};

pub(crate) const CAPACITY: usize = 80;
pub(crate) const VOCAB: usize = 61;

/// A family's config.json: name for messages, content.
pub(crate) fn configs() -> Vec<(&'static str, Value)> {
    let mut qwen3 = config("Qwen3ForCausalLM");
    qwen3["tie_word_embeddings"] = json!(true);
    let mut moe = config("Qwen3MoeForCausalLM");
    for (key, value) in [
        ("num_experts", json!(5)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(12)),
        ("norm_topk_prob", json!(true)),
        ("decoder_sparse_step", json!(1)),
        ("mlp_only_layers", json!([])),
    ] {
        moe[key] = value;
    }
    let mut as_routed = moe.clone();
    as_routed["norm_topk_prob"] = json!(false);
    let llama = config("LlamaForCausalLM");
    let mut llama3 = llama.clone();
    llama3["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32
    });
    vec![
        ("qwen3", config("Qwen3ForCausalLM")),
        ("qwen3 with a tied head", qwen3),
        ("qwen3-moe", moe),
        ("qwen3-moe as routed", as_routed),
        ("llama", llama),
        ("llama3", llama3),
    ]
}

pub(crate) fn config(architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "hidden_act": "silu", "attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": null, "max_position_embeddings": 128, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "use_cache": true
    })
}

pub(crate) fn parse(config: &Value) -> DecoderConfig {
    DecoderConfig::from_json("config.json", config.to_string().as_bytes()).unwrap()
}

/// A decoder with weights that depend on the config alone.
pub(crate) fn build(config: &Value, slots: usize) -> Decoder {
    let config = parse(config);
    let weights = Weights::from_tensors("seeded", tensors(&config));
    let options = DecoderOptions {
        slots,
        capacity: CAPACITY,
        precision: models::Precision::F32,
    };
    Decoder::new(config, weights, options).unwrap()
}

/// Every tensor a checkpoint with this config holds.
pub(crate) fn tensors(config: &DecoderConfig) -> Vec<(String, Tensor)> {
    let mut seed = 1u64;
    shapes(config)
        .into_iter()
        .map(|(name, shape)| {
            let base = if name.contains("norm") { 1.0 } else { 0.0 };
            let values: Vec<f32> = (0..shape.iter().product())
                .map(|_| base + 0.5 * next(&mut seed))
                .collect();
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            (name, tensor)
        })
        .collect()
}

/// A number in -0.5..0.5 of a linear congruential sequence.
fn next(seed: &mut u64) -> f32 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}

fn shapes(config: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    let (h, d) = (config.hidden, config.head_dim);
    let (q, kv) = (config.n_heads * d, config.n_kv_heads * d);
    let mut shapes = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![config.vocab, h],
        ),
        ("model.norm.weight".to_owned(), vec![h]),
    ];
    if config.head == HeadKind::Own {
        shapes.push(("lm_head.weight".to_owned(), vec![config.vocab, h]));
    }
    for layer in 0..config.n_layers {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((
                format!("model.layers.{layer}.{name}.weight"),
                shape.to_vec(),
            ));
        };
        add("input_layernorm", &[h]);
        add("post_attention_layernorm", &[h]);
        add("self_attn.q_proj", &[q, h]);
        add("self_attn.k_proj", &[kv, h]);
        add("self_attn.v_proj", &[kv, h]);
        add("self_attn.o_proj", &[h, q]);
        if config.family.qk_norm == QkNorm::PerHead {
            add("self_attn.q_norm", &[d]);
            add("self_attn.k_norm", &[d]);
        }
        let (prefixes, i) = match config.mlp {
            MlpDims::Dense { intermediate } => (vec!["mlp.".to_owned()], intermediate),
            MlpDims::Experts {
                intermediate,
                n_experts,
                ..
            } => {
                add("mlp.gate", &[n_experts, h]);
                let prefixes = (0..n_experts).map(|e| format!("mlp.experts.{e}."));
                (prefixes.collect(), intermediate)
            }
        };
        for prefix in prefixes {
            add(&format!("{prefix}gate_proj"), &[i, h]);
            add(&format!("{prefix}up_proj"), &[i, h]);
            add(&format!("{prefix}down_proj"), &[h, i]);
        }
    }
    shapes
}

/// `n` token ids that repeat nothing regularly.
pub(crate) fn prompt(n: usize) -> Vec<TokenId> {
    (0..n)
        .map(|i| ((i * i * 7 + i * 3 + 5) % VOCAB) as TokenId)
        .collect()
}

pub(crate) fn chain(slot: usize, tokens: &[TokenId]) -> Feed<'_> {
    Feed {
        slot: Slot(slot),
        tokens,
        parents: None,
        logits: Keep::All,
    }
}

/// Logits of a chain in slot 0, every row.
pub(crate) fn logits(decoder: &mut Decoder, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let forward = decoder.forward(&[chain(0, tokens)], &[]).unwrap();
    forward.logits.to_vec2().unwrap()
}

pub(crate) fn all_taps(decoder: &Decoder) -> Vec<LayerId> {
    (0..decoder.config().n_layers).map(LayerId).collect()
}
