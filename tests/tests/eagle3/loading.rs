//! Which checkpoints are read, and as what.

use std::collections::BTreeMap;

use baselines::{Eagle3, Eagle3Config, FusionNorm, StateForm};
use candle_core::{DType, Device, IndexOp, Tensor};
use decode::{Drafter, LayerId};
use models::{Source, Weights};
use serde_json::{Value, json};
use tests::golden;

use super::{
    CHAIN, Ends, build, config, fed, hand_over, list, near, reference, reference_config,
    reference_weights, step, wave,
};

/// Each of the three spellings with what it must lead to.
#[test]
fn a_config_is_read_in_all_spellings() {
    let flat = config(&golden::eagle3_config()).unwrap();
    let taps = |config: &Eagle3Config, n| {
        let taps = config.taps_in("config.json", n).unwrap();
        taps.iter().map(|tap| tap.0).collect::<Vec<_>>()
    };
    assert_eq!(taps(&flat, 6), [1, 2, 4]);
    assert_eq!(flat.feedback, StateForm::Raw);

    // Outside of eagle_config a layer is named by what enters it.
    let mut value = golden::eagle3_config();
    value.as_object_mut().unwrap().remove("eagle_config");
    assert_eq!(taps(&config(&value).unwrap(), 36), [1, 17, 32]);
    assert_eq!(taps(&config(&value).unwrap(), 48), [1, 23, 44]);
    value["eagle_aux_hidden_state_layer_ids"] = json!([2, 3, 5]);
    assert_eq!(taps(&config(&value).unwrap(), 6), [1, 2, 4]);

    // The same key says which state the head reads in one spelling, and which is fed back in the other.
    value["norm_output"] = false.into();
    assert_eq!(config(&value).unwrap().head_input, StateForm::Raw);
    value["norm_output"] = true.into();
    let specforge = config(&value).unwrap();
    assert_eq!(
        (specforge.head_input, specforge.feedback),
        (StateForm::Normed, StateForm::Raw)
    );
    let mut layer = value.clone();
    for key in [
        "draft_vocab_size",
        "norm_output",
        "eagle_aux_hidden_state_layer_ids",
    ] {
        layer.as_object_mut().unwrap().remove(key);
    }
    let nested = config(&json!({
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 20,
        "norm_before_residual": true, "fc_norm": true, "norm_output": true,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 5], "speculators_config": {"algorithm": "eagle3"},
        "transformer_layer_config": layer.clone(),
    }))
    .unwrap();
    assert_eq!(taps(&nested, 6), [1, 2, 4]);
    assert_eq!(
        (nested.residual, nested.feedback, nested.head_input),
        (StateForm::Normed, StateForm::Normed, StateForm::Normed)
    );
    assert_eq!(nested.fusion_norm, FusionNorm::Each);

    layer["architectures"] = json!(["Qwen3Eagle3Model"]);
    layer["target_layer_ids"] = json!([0, 1, 2, 3, 4]);
    layer["num_target_layers"] = 6.into();
    layer["ttt_length"] = 7.into();
    let deepspec = config(&layer).unwrap();
    assert_eq!(taps(&deepspec, 6), [0, 1, 2, 3, 4]);
    assert_eq!(deepspec.draft_vocab, golden::V);
}

#[test]
fn a_config_that_means_another_model_is_refused() {
    let refused = |change: &dyn Fn(&mut Value), says: &str| {
        let mut value = golden::eagle3_config();
        change(&mut value);
        let error = config(&value).unwrap_err().to_string();
        assert!(
            error.contains(says) && error.contains("config.json"),
            "{error}"
        );
    };
    refused(&|v| v["num_hidden_layers"] = 2.into(), "num_hidden_layers");
    refused(&|v| v["attention_bias"] = true.into(), "attention_bias");
    refused(&|v| v["eagle_layers"] = 2.into(), "eagle_layers");
    refused(&|v| v["draft_vocab_size"] = 41.into(), "draft_vocab_size");
    refused(
        &|v| v["num_key_value_heads"] = 3.into(),
        "num_key_value_heads",
    );
    refused(
        &|v| v["architectures"] = json!(["Qwen3ForCausalLM"]),
        "architectures",
    );
    refused(
        &|v| v["eagle_config"]["use_mtp_layernorm"] = true.into(),
        "use_mtp_layernorm",
    );
    refused(
        &|v| v["eagle_aux_hidden_state_layer_ids"] = json!([1]),
        "eagle_aux_hidden_state_layer_ids",
    );
    refused(
        &|v| {
            v["fc_norm"] = true.into();
            v["norm_before_fc"] = true.into();
        },
        "fc_norm",
    );
    // Layers 2, L / 2 and L - 3 fall together in a target of six.
    let mut value = golden::eagle3_config();
    value.as_object_mut().unwrap().remove("eagle_config");
    let error = config(&value).unwrap().taps_in("config.json", 6);
    assert!(error.unwrap_err().to_string().contains("[1, 2, 2]"));
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut BTreeMap<String, Tensor>), says: &str| {
        let mut weights = reference_weights();
        change(&mut weights);
        let config = config(&reference_config()).unwrap();
        let weights = Weights::from_tensors("reference", weights);
        let error = Eagle3::new(config, weights, CHAIN, (1, 64)).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(says) && error.contains("reference"),
            "{error}"
        );
    };
    let put = |name: &'static str, values: &'static [i64]| {
        move |w: &mut BTreeMap<String, Tensor>| drop(w.insert(name.to_owned(), list(values)))
    };
    // One offset too many, at each place.
    refused(&put("d2t", &[1, 1, 1, 2, 3, 4]), "t2d");
    refused(&put("d2t", &[0, 1, 1, 2, 3, 5]), "d2t");
    refused(&put("d2t", &[0, 1, 0, 2, 3, 4]), "d2t");
    refused(&put("d2t", &[-1, 1, 1, 2, 3, 4]), "d2t");
    refused(&put("t2d", &[1, 0, 1, 1, 0, 1, 0, 1, 1, 1]), "t2d");
    refused(&|w| drop(w.remove("d2t")), "d2t");
    refused(&|w| drop(w.remove("lm_head.weight")), "lm_head.weight");
    refused(
        &|w| drop(w.insert("fc.bias".into(), wave(0.0, &[8], 1.0))),
        "fc.bias",
    );
    let q = "midlayer.self_attn.q_proj.weight";
    refused(&|w| drop(w.insert(q.into(), wave(0.5, &[7, 16], 0.3))), q);
}

#[test]
fn layouts_of_other_trainers_load() {
    // A head of another width than the config says, its own embeddings, the layer's other name.
    let mut value = reference_config();
    value["head_dim"] = 128.into();
    let mut weights = BTreeMap::new();
    for (name, tensor) in reference_weights() {
        weights.insert(name.replace("midlayer.", "layers.0."), tensor);
    }
    weights.insert("embed_tokens.weight".into(), wave(0.1, &[10, 8], 0.3));
    let mut drafter = build(&value, weights, CHAIN);
    let want = fed(&mut reference(CHAIN), 4);
    near(
        &fed(&mut drafter, 4),
        &want.i(0).unwrap().to_vec1::<f32>().unwrap(),
    );

    // Five taps, norms of queries and keys, the whole vocabulary and the target's tables.
    let mut config = config(&reference_config()).unwrap();
    config.taps = Some((0..5).map(LayerId).collect());
    config.draft_vocab = 10;
    let mut weights = reference_weights();
    for name in ["d2t", "t2d", "lm_head.weight"] {
        weights.remove(name);
    }
    weights.insert("fc.weight".into(), wave(0.2, &[8, 40], 0.3));
    for name in ["q_norm", "k_norm"] {
        let name = format!("midlayer.self_attn.{name}.weight");
        weights.insert(name, Tensor::ones(4, DType::F32, &Device::Cpu).unwrap());
    }
    let weights = Weights::from_tensors("reference", weights);
    let drafter = Eagle3::new(config, weights, CHAIN, (1, 64)).unwrap();
    assert_eq!(drafter.taps().len(), 5);
}

/// Norms of the taps, checked against plain operations.
#[test]
fn taps_are_normalised_as_the_config_says() {
    let norm = |x: &Tensor, w: &Tensor| {
        let mean = x.sqr().unwrap().mean_keepdim(1).unwrap();
        let root = (mean + 1e-5).unwrap().sqrt().unwrap();
        x.broadcast_div(&root).unwrap().broadcast_mul(w).unwrap()
    };
    let taps = wave(2.0, &[4, 24], 1.0);
    let joined = wave(3.0, &[24], 1.0);
    let by_hand = |taps: &Tensor| {
        let mut drafter = reference(CHAIN);
        let taps = (0..3).map(|t| taps.narrow(1, 8 * t, 8).unwrap()).collect();
        hand_over(&mut drafter, taps)
    };
    for (key, names) in [
        ("norm_before_fc", vec!["input_norm"]),
        ("fc_norm", vec!["fc_norm.0", "fc_norm.1", "fc_norm.2"]),
    ] {
        let width = 24 / names.len();
        let mut value = reference_config();
        value[key] = true.into();
        let mut weights = reference_weights();
        let mut normed = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let weight = joined.narrow(0, width * i, width).unwrap();
            normed.push(norm(&taps.narrow(1, width * i, width).unwrap(), &weight));
            weights.insert(format!("{name}.weight"), weight);
        }
        let got = fed(&mut build(&value, weights, CHAIN), 4);
        let want = by_hand(&Tensor::cat(&normed, 1).unwrap());
        near(&got, &want.i(0).unwrap().to_vec1::<f32>().unwrap());
    }
}

#[test]
fn the_state_fed_back_is_normed_where_the_config_says() {
    let mut config = config(&reference_config()).unwrap();
    config.feedback = StateForm::Normed;
    let weights = Weights::from_tensors("reference", reference_weights());
    let mut normed = Eagle3::new(config, weights, CHAIN, (1, 64)).unwrap();
    let y = fed(&mut normed, 4);
    let got = step(&mut normed, 0, 5, &y, &Ends);
    let weight = (wave(1.3, &[8], 0.1) + 1.0).unwrap();
    let mut raw = reference(CHAIN);
    fed(&mut raw, 4);
    let by_hand = kernels::rms_norm(&y, &weight, 1e-5).unwrap();
    let want = step(&mut raw, 0, 5, &by_hand, &Ends);
    near(&got, &want.i(0).unwrap().to_vec1::<f32>().unwrap());
}

#[test]
fn options_are_read_and_bad_ones_refused() {
    let load = |asked: &str| {
        let dir = tempfile::tempdir().unwrap();
        let config = golden::eagle3_config().to_string();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let weights = golden::eagle3_weights().into_iter().collect();
        candle_core::safetensors::save(&weights, dir.path().join("model.safetensors")).unwrap();
        let source = Source::Dir(dir.path().to_owned());
        let target = baselines::TargetFacts {
            id: "golden".into(),
            hidden: golden::H,
            vocab: golden::V,
            n_layers: 6,
        };
        let arm = baselines::Arm::parse(asked).unwrap();
        let max_draft = arm.options.get("max_draft", "a number").unwrap();
        let load = baselines::Load {
            precision: models::Precision::F32,
            source: Some(&source),
            target: &target,
            slots: 2,
            capacity: 64,
            max_draft,
            options: &arm.options,
        };
        arm.method.load(&load).map(|d| d.max_draft())
    };
    for (asked, want) in [
        ("eagle3", 7),
        ("eagle3-chain-7", 7),
        ("eagle3:depth=2", 2),
        ("eagle3:max_draft=3", 3),
        ("eagle3-tree-7-10-16", 15),
        ("eagle3-tree-7-10-60", 59),
        ("eagle3-tree-7-10-60:total=40", 39),
        ("eagle3:mode=tree:topk=2:total=4:rope_theta=5e5", 3),
    ] {
        assert_eq!(load(asked).unwrap(), want, "{asked}");
    }
    for (asked, says) in [
        ("eagle3:mode=bush", "expected chain or tree"),
        ("eagle3:topk=4", "needs mode=tree"),
        ("eagle3:mode=tree:topk=21", "draft vocabulary of 20"),
        ("eagle3:mode=tree:depth=1:topk=2:total=8", "between 2 and 7"),
        ("eagle3:depth=0", "at least 1"),
        ("eagle3:max_draft=8", "1 to 7"),
        ("eagle3:rope_theta=-1", "above 0"),
    ] {
        let error = load(asked).unwrap_err().to_string();
        assert!(error.contains(says), "{asked}: {error}");
    }
}
