//! What the integration tests share: weights from a hash, so that golden values need no weight files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};

/// The workspace this test run belongs to. Asked of cargo at run time: a target directory shared by two clones may
/// hold a test that was compiled in the other one.
pub fn workspace() -> PathBuf {
    let compiled = env!("CARGO_MANIFEST_DIR").into();
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(compiled);
    Path::new(&package).join("..")
}

/// Shapes by tensor name, in byte-wise order.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// `base + scale * (hash / 2^32 - 0.5)` for element i of a tensor, computed in f64.
pub fn hash_fill(n: usize, seed: u64, scale: f64, base: f64) -> Vec<f32> {
    const MASK: u64 = 0xFFFF_FFFF;
    (0..n as u64)
        .map(|i| {
            let mut x = (i.wrapping_mul(2_654_435_761) + seed * 40_503 + 12_345) & MASK;
            x ^= x >> 16;
            x = (x * 2_246_822_519) & MASK;
            x ^= x >> 13;
            x = (x * 3_266_489_917) & MASK;
            x ^= x >> 16;
            (base + scale * (x as f64 / 4_294_967_296.0 - 0.5)) as f32
        })
        .collect()
}

/// Weights of every named tensor: norms around 1, the rest around 0; the seed of a tensor is `seed0` plus its rank.
pub fn hash_weights(shapes: &Shapes, seed0: u64) -> BTreeMap<String, Tensor> {
    let ranked = shapes.iter().enumerate();
    ranked
        .map(|(rank, (name, shape))| {
            let is_norm = name.ends_with("norm.weight") || name.contains("layernorm");
            let (scale, base) = if is_norm { (0.2, 1.0) } else { (0.5, 0.0) };
            let values = hash_fill(shape.iter().product(), seed0 + rank as u64, scale, base);
            let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu);
            (
                name.clone(),
                tensor.expect("as many values as the shape holds"),
            )
        })
        .collect()
}

/// Makes of a block drafter one that drafts the `kept` ids alone, which rise: it gets their rows of `head`, the target's
/// `[V, H]`, and of the table that corrects logits.
///
/// # Panics
/// If `kept` names an id that `head` has not.
pub fn reduce(
    config: &mut serde_json::Value,
    weights: &mut BTreeMap<String, Tensor>,
    head: &Tensor,
    kept: &[u32],
) {
    config["draft_vocab_size"] = kept.len().into();
    let list = |values: Vec<i64>| Tensor::new(values, &Device::Cpu).expect("a list fits");
    let ids = Tensor::new(kept, &Device::Cpu).expect("a list fits");
    let rows = |table: &Tensor| table.index_select(&ids, 0).expect("ids are below V");
    for (name, table) in weights.iter_mut() {
        if name.ends_with("markov_w2.weight") || name.ends_with("embed_proj.2.weight") {
            *table = rows(table);
        }
    }
    weights.insert("lm_head.weight".into(), rows(head));
    let offsets = kept.iter().zip(0i64..).map(|(id, j)| i64::from(*id) - j);
    weights.insert("d2t".into(), list(offsets.collect()));
}

/// The target that the drafter goldens were made with: Qwen3, V 40, H 16, 6 layers.
pub mod golden {
    use super::{BTreeMap, Device, Shapes, Tensor, hash_weights};
    use decode::TokenId;
    use models::{Decoder, DecoderConfig, DecoderOptions, Weights};

    /// Hidden size.
    pub const H: usize = 16;
    /// Vocabulary.
    pub const V: usize = 40;
    /// Token that fills masked slots.
    pub const MASK: TokenId = 39;
    /// The prompt most goldens start from.
    pub const P0: [TokenId; 7] = [3, 17, 5, 9, 22, 11, 7];

    /// Adds the eleven tensors of one layer.
    pub fn layer_shapes(prefix: &str, shapes: &mut Shapes) {
        let (heads, kv, d, i) = (4, 2, 8, 24);
        let mut add = |name: &str, shape: &[usize]| {
            shapes.insert(format!("{prefix}{name}.weight"), shape.to_vec());
        };
        add("self_attn.q_proj", &[heads * d, H]);
        add("self_attn.k_proj", &[kv * d, H]);
        add("self_attn.v_proj", &[kv * d, H]);
        add("self_attn.o_proj", &[H, heads * d]);
        add("self_attn.q_norm", &[d]);
        add("self_attn.k_norm", &[d]);
        add("mlp.gate_proj", &[i, H]);
        add("mlp.up_proj", &[i, H]);
        add("mlp.down_proj", &[H, i]);
        add("input_layernorm", &[H]);
        add("post_attention_layernorm", &[H]);
    }

    /// Shapes of the target's tensors.
    pub fn target_shapes() -> Shapes {
        let mut shapes = Shapes::new();
        shapes.insert("model.embed_tokens.weight".into(), vec![V, H]);
        shapes.insert("lm_head.weight".into(), vec![V, H]);
        shapes.insert("model.norm.weight".into(), vec![H]);
        (0..6).for_each(|l| layer_shapes(&format!("model.layers.{l}."), &mut shapes));
        shapes
    }

    /// Shapes of the two-layer DFlash drafter with taps 1 and 3.
    pub fn dflash_shapes() -> Shapes {
        let mut shapes = Shapes::new();
        shapes.insert("fc.weight".into(), vec![H, 2 * H]);
        shapes.insert("hidden_norm.weight".into(), vec![H]);
        shapes.insert("norm.weight".into(), vec![H]);
        (0..2).for_each(|l| layer_shapes(&format!("layers.{l}."), &mut shapes));
        shapes
    }

    /// The target's config.json.
    pub fn target_config() -> serde_json::Value {
        serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": V, "hidden_size": H,
            "intermediate_size": 24, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 256,
            "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
        })
    }

    /// The in-place drafter's config.json, block of 4.
    pub fn dflash_config() -> serde_json::Value {
        serde_json::json!({
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 4, "num_target_layers": 6,
            "hidden_size": H, "vocab_size": V, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
            "rope_theta": 1e4, "rope_scaling": null, "max_position_embeddings": 256, "hidden_act": "silu",
            "attention_bias": false, "tie_word_embeddings": false,
            "dflash_config": { "mask_token_id": MASK, "target_layer_ids": [1, 3] },
        })
    }

    /// Every second token id, from 0 on, is one that the EAGLE-3 drafter can draft.
    pub const DRAFT_V: usize = V / 2;

    /// Shapes of the float tensors of the EAGLE-3 drafter with taps 1, 2 and 4.
    pub fn eagle3_shapes() -> Shapes {
        let (heads, kv, d, i) = (4, 2, 8, 24);
        let mut shapes = Shapes::new();
        let mut add = |name: &str, shape: &[usize]| {
            shapes.insert(format!("{name}.weight"), shape.to_vec());
        };
        add("fc", &[H, 3 * H]);
        add("norm", &[H]);
        add("lm_head", &[DRAFT_V, H]);
        add("midlayer.hidden_norm", &[H]);
        add("midlayer.input_layernorm", &[H]);
        add("midlayer.post_attention_layernorm", &[H]);
        add("midlayer.self_attn.q_proj", &[heads * d, 2 * H]);
        add("midlayer.self_attn.k_proj", &[kv * d, 2 * H]);
        add("midlayer.self_attn.v_proj", &[kv * d, 2 * H]);
        add("midlayer.self_attn.o_proj", &[H, heads * d]);
        add("midlayer.mlp.gate_proj", &[i, H]);
        add("midlayer.mlp.up_proj", &[i, H]);
        add("midlayer.mlp.down_proj", &[H, i]);
        shapes
    }

    /// Its config.json; a layer is named by its own number.
    pub fn eagle3_config() -> serde_json::Value {
        serde_json::json!({
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "vocab_size": V,
            "draft_vocab_size": DRAFT_V, "hidden_size": H, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
            "rope_theta": 1e4, "rope_scaling": null, "max_position_embeddings": 256, "hidden_act": "silu",
            "attention_bias": false, "tie_word_embeddings": false,
            "eagle_config": { "eagle_aux_hidden_state_layer_ids": [1, 2, 4], "use_aux_hidden_state": true },
        })
    }

    /// Its weights; the embeddings are the target's. It starts from the last tap and has the target's rows as head, so
    /// that some of its drafts are right.
    ///
    /// # Panics
    /// Never: all tensors hold as many values as their shapes.
    pub fn eagle3_weights() -> BTreeMap<String, Tensor> {
        let mut weights = hash_weights(&eagle3_shapes(), 3000);
        let target = hash_weights(&target_shapes(), 1000);
        let list = |values: Vec<i64>| Tensor::new(values, &Device::Cpu).expect("a list fits");
        let even: Vec<u32> = (0..V as u32).step_by(2).collect();
        let even = Tensor::new(even, &Device::Cpu).expect("a list fits");
        let head = target["lm_head.weight"].index_select(&even, 0);
        weights.insert("lm_head.weight".into(), head.expect("ids are below V"));
        weights.insert("norm.weight".into(), target["model.norm.weight"].clone());
        let passes = |i: usize| f32::from(u8::from(i % (3 * H) == 2 * H + i / (3 * H)));
        let fc = Tensor::from_vec(
            (0..3 * H * H).map(passes).collect(),
            (H, 3 * H),
            &Device::Cpu,
        );
        weights.insert(
            "fc.weight".into(),
            fc.expect("as many values as H rows of 3 H"),
        );
        let offsets = (0..DRAFT_V as i64).collect();
        weights.insert("d2t".into(), list(offsets));
        let kept = (0..V as i64).map(|id| i64::from(id % 2 == 0)).collect();
        weights.insert("t2d".into(), list(kept));
        weights
    }

    /// The DFlash drafter's trunk with a Domino head: G 5, rank 6.
    pub fn domino_weights() -> BTreeMap<String, Tensor> {
        let mut head = Shapes::new();
        for (name, shape) in [
            ("prefix_gru.weight_ih_l0", [15, H]),
            ("prefix_gru.weight_hh_l0", [15, 5]),
            ("embed_proj.0.weight", [6, H + 5]),
            ("embed_proj.2.weight", [V, 6]),
        ] {
            head.insert(name.into(), shape.to_vec());
        }
        let mut weights = hash_weights(&dflash_shapes(), 2000);
        weights.extend(hash_weights(&head, 3000));
        weights
    }

    /// The in-place Domino drafter's config.json: the first draft is the trunk's alone.
    pub fn domino_config() -> serde_json::Value {
        let mut config = dflash_config();
        config["dflash_config"] = serde_json::json!({
            "mask_token_id": MASK, "target_layer_ids": [1, 3], "projector_type": "domino",
            "gru_hidden_dim": 5, "emb_dim": 6, "pure_draft_prefix_len": 1,
        });
        config
    }

    /// The DFlash drafter's trunk with DSpark's vanilla Markov head of rank 4 and its confidence head.
    pub fn dspark_weights() -> BTreeMap<String, Tensor> {
        let mut shapes = dflash_shapes();
        for (name, shape) in [
            ("markov_head.markov_w1.weight", vec![V, 4]),
            ("markov_head.markov_w2.weight", vec![V, 4]),
            ("confidence_head.proj.weight", vec![1, H + 4]),
            ("confidence_head.proj.bias", vec![1]),
        ] {
            shapes.insert(name.into(), shape);
        }
        hash_weights(&shapes, 3000)
    }

    /// The DSpark drafter's config.json: shifted slots, keys beside each other.
    pub fn dspark_config() -> serde_json::Value {
        let mut config = dflash_config();
        let own = serde_json::json!({
            "architectures": ["Qwen3DSparkModel"], "mask_token_id": MASK, "target_layer_ids": [1, 3], "markov_rank": 4, "markov_head_type": "vanilla",
            "enable_confidence_head": true, "confidence_head_with_markov": true,
        });
        if let (Some(config), Some(own)) = (config.as_object_mut(), own.as_object()) {
            config.remove("dflash_config");
            config.extend(own.clone());
        }
        config
    }

    /// The DFlash drafter's trunk with a corrector of widths 5, 3 and 6 (layout L1).
    pub fn dcoco_weights() -> BTreeMap<String, Tensor> {
        let (c, p, u) = (5, 3, 6);
        let mut head = Shapes::new();
        for (name, shape) in [
            ("candidate", [c, 2 * H]),
            ("pair", [p, 2 * H]),
            ("mlp.0", [u, 3 * c + p + 2]),
            ("mlp.2", [1, u]),
        ] {
            head.insert(format!("corrector.{name}.weight"), shape.to_vec());
            head.insert(format!("corrector.{name}.bias"), vec![shape[0]]);
        }
        let mut weights = hash_weights(&dflash_shapes(), 2000);
        weights.extend(hash_weights(&head, 4000));
        weights
    }

    /// The shifted DCOCO drafter's config.json, 6 candidates a slot.
    pub fn dcoco_config() -> serde_json::Value {
        let mut config = dflash_config();
        config["dflash_config"] = serde_json::json!({
            "mask_token_id": MASK, "target_layer_ids": [1, 3], "shift_label": true, "projector_type": "dcoco",
            "corrector_candidates": 6, "corrector_candidate_width": 5, "corrector_pair_width": 3,
            "corrector_hidden_width": 6, "corrector_channels": "all", "enable_confidence_head": false,
        });
        config
    }

    /// The target with `slots` slots of 128 positions.
    ///
    /// # Panics
    /// If the decoder refuses its own golden.
    pub fn target(slots: usize) -> Decoder {
        let bytes = target_config().to_string();
        let config = DecoderConfig::from_json("golden", bytes.as_bytes())
            .expect("the golden config is valid");
        let weights = Weights::from_tensors("golden", hash_weights(&target_shapes(), 1000));
        Decoder::new(
            config,
            weights,
            DecoderOptions {
                slots,
                capacity: 128,
                precision: models::Precision::F32,
            },
        )
        .expect("the golden weights fit")
    }
}
