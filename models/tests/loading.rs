//! One test for each way in which a checkpoint can be wrong, and for each spelling that is right.

#![allow(
    clippy::unwrap_used,
    reason = "a panic in a helper fails the test that called it"
)]

mod common;

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use common::{CAPACITY, build, config, configs, logits, parse, prompt, tensors};
use decode::Target;
use models::{Decoder, DecoderConfig, DecoderOptions, LoadError, RopeConfig, Source, Weights};
use serde_json::{Value, json};

fn config_error(config: &Value) -> String {
    let bytes = config.to_string();
    let error = DecoderConfig::from_json("config.json", bytes.as_bytes()).unwrap_err();
    error.to_string()
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

fn with(key: &str, value: Value) -> Value {
    let mut config = config("Qwen3ForCausalLM");
    config[key] = value;
    config
}

#[test]
fn an_unknown_config_key_is_named_with_its_file() {
    assert_says(
        &config_error(&with("logit_softcap", json!(30.0))),
        &["config.json", "logit_softcap"],
    );
    let scaling = json!({"rope_type": "default", "mscale": 1.0});
    assert_says(
        &config_error(&with("rope_scaling", scaling)),
        &["config.json", "rope_scaling.mscale"],
    );
    // A key of another family means something there, so it is not harmless here.
    assert_says(
        &config_error(&with("num_experts", json!(8))),
        &["num_experts"],
    );
}

#[test]
fn an_unsupported_value_is_named_with_what_is_supported() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0});
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32
    });
    let cases: [(&str, Value, &[&str]); 10] = [
        (
            "architectures",
            json!(["GemmaForCausalLM"]),
            &["GemmaForCausalLM", "Qwen3MoeForCausalLM, LlamaForCausalLM"],
        ),
        (
            "model_type",
            json!("llama"),
            &["\"llama\"", "supported: \"qwen3\""],
        ),
        (
            "hidden_act",
            json!("gelu"),
            &["gelu", "supported: \"silu\""],
        ),
        ("attention_bias", json!(true), &["true", "supported: false"]),
        ("mlp_bias", json!(true), &["true", "supported: false"]),
        (
            "use_sliding_window",
            json!(true),
            &["true", "supported: false"],
        ),
        ("sliding_window", json!(4096), &["4096", "supported: null"]),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
            &["sliding_attention", "supported: full_attention"],
        ),
        (
            "rope_scaling",
            yarn,
            &[
                "rope_scaling.rope_type",
                "yarn",
                "supported: default, llama3",
            ],
        ),
        ("rope_scaling", llama3, &["Llama3", "supported: [Default]"]),
    ];
    for (key, value, parts) in cases {
        let message = config_error(&with(key, value));
        assert_says(&message, &["config.json", key]);
        assert_says(&message, parts);
    }
    let (_, moe) = &configs()[2];
    for (key, value) in [
        ("decoder_sparse_step", json!(2)),
        ("mlp_only_layers", json!([0])),
        ("shared_expert_intermediate_size", json!(64)),
    ] {
        let mut moe = moe.clone();
        moe[key] = value;
        assert_says(&config_error(&moe), &[key, "supported"]);
    }
}

#[test]
fn a_missing_key_or_a_wrong_type_is_named() {
    for key in [
        "vocab_size",
        "rms_norm_eps",
        "rope_theta",
        "intermediate_size",
        "architectures",
    ] {
        let mut config = config("Qwen3ForCausalLM");
        config.as_object_mut().unwrap().remove(key);
        assert_says(&config_error(&config), &["config.json", key, "missing"]);
    }
    let cases = [
        ("hidden_size", json!("24")),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-1)),
        ("rms_norm_eps", json!(0.0)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(7)),
        ("layer_types", json!(["full_attention"])),
        ("eos_token_id", json!([5, 61])),
        ("rope_scaling", json!("linear")),
    ];
    for (key, value) in cases {
        let error = config_error(&with(key, value));
        assert_says(&error, &["config.json", key]);
        assert!(!error.contains("missing"), "{error}");
    }
    let (_, mut moe) = configs().swap_remove(2);
    moe["num_experts_per_tok"] = json!(6);
    assert_says(&config_error(&moe), &["num_experts_per_tok", "5 experts"]);
}

#[test]
fn bytes_that_are_not_a_json_object_are_refused_with_the_place() {
    for bytes in [&b"{\"vocab_size\": 61,"[..], b"[1]", b"\xff"] {
        let error = DecoderConfig::from_json("dir/config.json", bytes).unwrap_err();
        assert!(matches!(error, LoadError::Json { .. }), "{error}");
        assert_says(&error.to_string(), &["dir/config.json", "line 1"]);
    }
}

#[test]
fn both_rope_spellings_give_one_config() {
    let llama = || config("LlamaForCausalLM");
    let scaling = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32
    });
    let want = RopeConfig::Llama3 {
        theta: 10000.0,
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 32,
    };
    for kind in ["type", "rope_type"] {
        let mut older = llama();
        older["rope_scaling"] = scaling.clone();
        older["rope_scaling"][kind] = json!("llama3");
        assert_eq!(parse(&older).rope, want);
    }
    let mut newer = llama();
    newer.as_object_mut().unwrap().remove("rope_theta");
    newer["rope_parameters"] = scaling;
    newer["rope_parameters"]["rope_type"] = json!("llama3");
    assert_says(&config_error(&newer), &["rope_theta", "missing"]);
    newer["rope_parameters"]["rope_theta"] = json!(10000.0);
    assert_eq!(parse(&newer).rope, want);
    newer["rope_theta"] = json!(5.0);
    assert_says(
        &config_error(&newer),
        &["rope_parameters.rope_theta", "10000", "5"],
    );
    assert_eq!(parse(&llama()).rope, RopeConfig::Default { theta: 10000.0 });
}

#[test]
fn the_keys_of_released_checkpoints_are_all_known() {
    let qwen3_4b = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
        "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936
    });
    let coder = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5472, "max_position_embeddings": 262144,
        "max_window_layers": 28, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "qkv_bias": false,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.0,
        "shared_expert_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.52.3", "use_cache": true, "use_qk_norm": true,
        "use_sliding_window": false, "vocab_size": 151936
    });
    let llama = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256
    });
    assert_eq!(parse(&qwen3_4b).stop_tokens, [151645]);
    assert_eq!(parse(&coder).n_kv_heads, 4);
    let llama = parse(&llama);
    assert_eq!((llama.head_dim, llama.stop_tokens.len()), (128, 3));
}

/// Bytes of a safetensors file, leaked so that they can stand for embedded ones.
fn file(tensors: &[(String, Tensor)]) -> &'static [u8] {
    let named: HashMap<String, Tensor> = tensors.iter().cloned().collect();
    let bytes = safetensors::serialize(named, None).unwrap();
    Box::leak(bytes.into_boxed_slice())
}

fn leak(value: &Value) -> &'static [u8] {
    Box::leak(value.to_string().into_bytes().into_boxed_slice())
}

fn embedded(files: Vec<(&'static str, &'static [u8])>) -> Source {
    Source::Embedded {
        name: "tiny",
        files,
    }
}

fn load(source: &Source) -> Result<Decoder, LoadError> {
    let options = DecoderOptions {
        slots: 1,
        capacity: CAPACITY,
        precision: models::Precision::F32,
    };
    Decoder::load(source, options)
}

/// A whole embedded checkpoint whose tensors went through `change`.
fn changed(change: impl FnOnce(&mut Vec<(String, Tensor)>)) -> Source {
    let config = config("Qwen3ForCausalLM");
    let mut tensors = tensors(&parse(&config));
    change(&mut tensors);
    embedded(vec![
        ("config.json", leak(&config)),
        ("model.safetensors", file(&tensors)),
    ])
}

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

#[test]
fn an_embedded_checkpoint_equals_its_tensors_with_or_without_the_prefix() {
    let config = config("Qwen3ForCausalLM");
    let want = logits(&mut build(&config, 1), &prompt(9));
    let mut whole = load(&changed(|_| {})).unwrap();
    assert_eq!(logits(&mut whole, &prompt(9)), want);
    assert!(whole.stop_tokens().is_empty());
    let bare = changed(|tensors| {
        for (name, _) in tensors.iter_mut() {
            *name = name.trim_start_matches("model.").to_owned();
        }
        tensors.push((
            "layers.0.self_attn.rotary_emb.inv_freq".into(),
            zeros(&[4], DType::F32),
        ));
    });
    assert_eq!(logits(&mut load(&bare).unwrap(), &prompt(9)), want);
}

#[test]
fn half_precision_files_are_widened_exactly() {
    for dtype in [DType::BF16, DType::F16] {
        let narrow = changed(|tensors| {
            for (_, tensor) in tensors.iter_mut() {
                *tensor = tensor.to_dtype(dtype).unwrap();
            }
        });
        let rounded = changed(|tensors| {
            for (_, tensor) in tensors.iter_mut() {
                *tensor = tensor
                    .to_dtype(dtype)
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap();
            }
        });
        let (mut narrow, mut rounded) = (load(&narrow).unwrap(), load(&rounded).unwrap());
        let got = logits(&mut narrow, &prompt(9));
        assert_eq!(got, logits(&mut rounded, &prompt(9)));
        assert_ne!(
            got,
            logits(&mut load(&changed(|_| {})).unwrap(), &prompt(9))
        );
    }
}

#[test]
fn a_tied_checkpoint_may_hold_its_head_twice() {
    let (_, config) = &configs()[1];
    let mut tensors = tensors(&parse(config));
    tensors.push(("lm_head.weight".into(), zeros(&[61, 24], DType::F32)));
    let source = embedded(vec![
        ("config.json", leak(config)),
        ("model.safetensors", file(&tensors)),
    ]);
    let want = logits(&mut build(config, 1), &prompt(9));
    assert_eq!(logits(&mut load(&source).unwrap(), &prompt(9)), want);
}

#[test]
fn a_missing_tensor_is_named_with_its_file() {
    let lacking = changed(|tensors| tensors.retain(|(name, _)| !name.contains("1.mlp.up_proj")));
    let error = load(&lacking).unwrap_err();
    assert!(matches!(error, LoadError::MissingTensor { .. }), "{error}");
    let tensor = "model.layers.1.mlp.up_proj.weight";
    assert_says(
        &error.to_string(),
        &["embedded tiny/model.safetensors", tensor],
    );
}

#[test]
fn an_unexpected_tensor_is_named_with_its_file() {
    let extra = changed(|tensors| {
        tensors.push((
            "model.layers.3.mlp.up_proj.weight".into(),
            zeros(&[20, 24], DType::F32),
        ));
    });
    let error = load(&extra).unwrap_err();
    assert!(
        matches!(error, LoadError::UnexpectedTensors { .. }),
        "{error}"
    );
    assert_says(
        &error.to_string(),
        &["embedded tiny/model.safetensors", "layers.3.mlp.up_proj"],
    );
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let misshapen = changed(|tensors| {
        for (name, tensor) in tensors
            .iter_mut()
            .filter(|(name, _)| name.contains("0.mlp.down"))
        {
            assert!(name.ends_with("weight"));
            *tensor = zeros(&[20, 24], DType::F32);
        }
    });
    let error = load(&misshapen).unwrap_err();
    assert!(matches!(error, LoadError::Shape { .. }), "{error}");
    assert_says(
        &error.to_string(),
        &["layers.0.mlp.down_proj.weight", "[20, 24]", "[24, 20]"],
    );
}

#[test]
fn a_tensor_of_another_type_is_named_with_what_is_supported() {
    let integers = changed(|tensors| tensors[1].1 = zeros(&[24], DType::U32));
    let error = load(&integers).unwrap_err();
    assert!(matches!(error, LoadError::Dtype { .. }), "{error}");
    assert_says(
        &error.to_string(),
        &["model.norm.weight", "U32", "BF16, F16, F32"],
    );
}

#[test]
fn a_damaged_weight_file_is_named() {
    let whole = file(&tensors(&parse(&config("Qwen3ForCausalLM"))));
    let mut lying = whole.to_vec();
    // The header's length, little-endian, claims more than the file.
    lying[5] = 1;
    let mut garbled = whole.to_vec();
    garbled[8] = b'[';
    let grown = [whole, &[0; 4]].concat();
    for bytes in [
        &whole[..whole.len() - 1],
        &whole[..100],
        &whole[..5],
        &lying,
        &garbled,
        &grown,
    ] {
        let leaked: &'static [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
        let error = Weights::open(&embedded(vec![("model.safetensors", leaked)])).unwrap_err();
        assert!(matches!(error, LoadError::BrokenWeights { .. }), "{error}");
        assert_says(&error.to_string(), &["embedded tiny/model.safetensors"]);
    }
}

#[test]
fn missing_files_are_named() {
    let error = load(&embedded(Vec::new())).unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }), "{error}");
    assert_says(&error.to_string(), &["embedded tiny/config.json"]);
    let error = load(&Source::Dir("no/such/directory".into())).unwrap_err();
    assert_says(&error.to_string(), &["no/such/directory/config.json"]);
    let config = leak(&config("Qwen3ForCausalLM"));
    let error = load(&embedded(vec![("config.json", config)])).unwrap_err();
    assert!(matches!(error, LoadError::NoWeights { .. }), "{error}");
    assert_says(
        &error.to_string(),
        &["embedded tiny", "model.safetensors.index.json"],
    );
}

#[test]
fn an_index_that_misplaces_a_tensor_is_refused() {
    let shards = [
        ("a".to_owned(), zeros(&[2], DType::F32)),
        ("b".to_owned(), zeros(&[3], DType::F32)),
    ];
    let files = |index: &Value| {
        embedded(vec![
            ("model.safetensors.index.json", leak(index)),
            ("1.safetensors", file(&shards[..1])),
            ("2.safetensors", file(&shards[1..])),
        ])
    };
    let right = json!({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}});
    let mut weights = Weights::open(&files(&right)).unwrap();
    assert_eq!(weights.take("b", &[3]).unwrap().dims(), [3]);
    assert!(!weights.has("b") && weights.has("a"));
    let wrong = json!({"weight_map": {"a": "2.safetensors", "b": "2.safetensors"}});
    let error = Weights::open(&files(&wrong)).unwrap_err();
    assert_says(
        &error.to_string(),
        &["embedded tiny/2.safetensors", "\"a\" is missing"],
    );
    let absent = json!({"weight_map": {"a": "3.safetensors"}});
    let error = Weights::open(&files(&absent)).unwrap_err();
    assert_says(&error.to_string(), &["embedded tiny/3.safetensors"]);
}

#[test]
fn a_cache_longer_than_the_model_or_empty_is_refused() {
    for (slots, capacity, why) in [
        (1, 129, "position 128"),
        (0, 5, "at least 1"),
        (1, 0, "at least 1"),
    ] {
        let config = parse(&config("LlamaForCausalLM"));
        let weights = Weights::from_tensors("seeded", tensors(&config));
        let error = Decoder::new(
            config,
            weights,
            DecoderOptions {
                slots,
                capacity,
                precision: models::Precision::F32,
            },
        )
        .unwrap_err();
        assert_says(&error.to_string(), &[why]);
    }
}

#[test]
fn whole_numbers_are_read_from_every_type_that_holds_them() {
    let mut bytes = Vec::new();
    let header = json!({
        "wide": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        "flags": {"dtype": "BOOL", "shape": [3], "data_offsets": [16, 19]},
        "real": {"dtype": "F32", "shape": [1], "data_offsets": [19, 23]},
    })
    .to_string();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend([7i64, -2].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([1, 0, 1]);
    bytes.extend(1f32.to_le_bytes());
    let source = Source::Embedded {
        name: "lists",
        files: vec![("model.safetensors", bytes.leak())],
    };
    let mut weights = Weights::open(&source).unwrap();
    assert_eq!(weights.take_integers("wide", 2).unwrap(), [7, -2]);
    assert_eq!(weights.take_integers("flags", 3).unwrap(), [1, 0, 1]);
    let error = weights.take_integers("real", 1).unwrap_err().to_string();
    assert!(error.contains("F32") && error.contains("I64"), "{error}");
    let ids = Tensor::new(&[3u32, 9], &Device::Cpu).unwrap();
    let mut held = Weights::from_tensors("held", [("ids".to_owned(), ids)]);
    let error = held.take_integers("ids", 3).unwrap_err().to_string();
    assert!(error.contains("\"ids\" is [2]"), "{error}");
}
