//! The decoder against figures of two other implementations.
//!
//! `fixtures/targets.json` was written by Hugging Face transformers in f32 on a CPU; 1e-4 on a logit is what two f32
//! implementations with other summation orders may differ by.

#![allow(
    clippy::unwrap_used,
    reason = "a panic in a helper fails the test that called it"
)]

use std::collections::{BTreeMap, HashMap};

use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen3, qwen3_moe};
use decode::{Feed, Keep, LayerId, Slot, Target, TokenId};
use models::{Decoder, DecoderConfig, DecoderOptions, Source, Weights};
use serde::Deserialize;
use serde_json::{Value, json};
use tests::golden::{self, P0};
use tests::{Shapes, hash_weights};

const TOLERANCE: f32 = 1e-4;
const OPTIONS: DecoderOptions = DecoderOptions {
    slots: 1,
    capacity: 80,
    precision: models::Precision::F32,
};

#[derive(Deserialize)]
struct Fixtures {
    cases: Vec<Case>,
}

#[derive(Clone, Deserialize)]
struct Case {
    name: String,
    architecture: String,
    config: Value,
    seed0: u64,
    tensors: Shapes,
    prompts: Vec<Prompt>,
}

#[derive(Clone, Deserialize)]
struct Prompt {
    ids: Vec<TokenId>,
    last_logits: Vec<f32>,
    logits_abs_sum: f64,
    tap_abs_sums: Vec<f64>,
    tap_last_row_head: Vec<Vec<f32>>,
    greedy: Vec<TokenId>,
}

fn cases() -> Vec<Case> {
    let fixtures: Fixtures = serde_json::from_str(include_str!("fixtures/targets.json")).unwrap();
    assert_eq!(fixtures.cases.len(), 5);
    fixtures.cases
}

impl Case {
    fn config_json(&self) -> Vec<u8> {
        let mut config = self.config.clone();
        config["architectures"] = json!([self.architecture]);
        config["hidden_act"] = json!("silu");
        serde_json::to_vec(&config).unwrap()
    }

    fn tensors(&self) -> BTreeMap<String, Tensor> {
        hash_weights(&self.tensors, self.seed0)
    }

    fn decoder(&self) -> Decoder {
        let config = DecoderConfig::from_json(&self.name, &self.config_json()).unwrap();
        let weights = Weights::from_tensors("hash weights", self.tensors());
        Decoder::new(config, weights, OPTIONS).unwrap()
    }
}

fn chain(tokens: &[TokenId]) -> Feed<'_> {
    Feed {
        slot: Slot(0),
        tokens,
        parents: None,
        logits: Keep::All,
    }
}

/// Logits of a chain in slot 0, every row.
fn logits(decoder: &mut Decoder, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let forward = decoder.forward(&[chain(tokens)], &[]).unwrap();
    forward.logits.to_vec2().unwrap()
}

fn argmax(row: &[f32]) -> TokenId {
    (0..row.len())
        .max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)))
        .unwrap() as TokenId
}

fn greedy(decoder: &mut Decoder, prompt: &[TokenId], n_tokens: usize) -> Vec<TokenId> {
    let mut last = argmax(logits(decoder, prompt).last().unwrap());
    let mut tokens = vec![last];
    while tokens.len() < n_tokens {
        last = argmax(&logits(decoder, &[last])[0]);
        tokens.push(last);
    }
    tokens
}

fn abs_sum(t: &Tensor) -> f64 {
    let t = t.to_dtype(DType::F64).unwrap().abs().unwrap();
    t.sum_all().unwrap().to_scalar().unwrap()
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() <= TOLERANCE,
            "{what} at {i}: {got}, wanted {want}"
        );
    }
}

/// Sums of many elements may differ by the same share of the whole as one element of size 1.
#[track_caller]
fn assert_sum(what: &str, got: f64, want: f64) {
    let allowed = f64::from(TOLERANCE) * want.abs().max(1.0);
    assert!(
        (got - want).abs() <= allowed,
        "{what}: {got}, wanted {want}"
    );
}

#[test]
fn logits_and_taps_equal_transformers() {
    for case in cases() {
        for prompt in &case.prompts {
            let what = format!("{} on {} tokens", case.name, prompt.ids.len());
            let mut decoder = case.decoder();
            let taps: Vec<LayerId> = (0..prompt.tap_abs_sums.len()).map(LayerId).collect();
            assert_eq!(taps.len(), decoder.config().n_layers - 1);
            let got = decoder.forward(&[chain(&prompt.ids)], &taps).unwrap();
            let last = got.logits.i(prompt.ids.len() - 1).unwrap();
            assert_close(&what, &last.to_vec1::<f32>().unwrap(), &prompt.last_logits);
            assert_sum(&what, abs_sum(&got.logits), prompt.logits_abs_sum);
            for (layer, tap) in got.taps.iter().enumerate() {
                let what = format!("{what}, tap {layer}");
                assert_sum(&what, abs_sum(tap), prompt.tap_abs_sums[layer]);
                let head = tap.i((prompt.ids.len() - 1, ..4)).unwrap();
                let head = head.to_vec1::<f32>().unwrap();
                assert_close(&what, &head, &prompt.tap_last_row_head[layer]);
            }
        }
    }
}

#[test]
fn greedy_tokens_equal_transformers() {
    for case in cases() {
        for prompt in &case.prompts {
            let got = greedy(&mut case.decoder(), &prompt.ids, prompt.greedy.len());
            assert_eq!(got, prompt.greedy, "{} on {:?}", case.name, prompt.ids);
        }
    }
}

#[test]
fn the_golden_target_gives_the_figures_of_the_block_drafters_notes() {
    let mut decoder = golden::target(1);
    let taps = [LayerId(1), LayerId(3)];
    let got = decoder.forward(&[chain(&P0)], &taps).unwrap();
    let feature = Tensor::cat(&got.taps, 1).unwrap();
    assert_eq!(feature.dims(), [7, 32]);
    let sum: f64 = feature
        .to_dtype(DType::F64)
        .unwrap()
        .sum_all()
        .unwrap()
        .to_scalar()
        .unwrap();
    assert!((sum - 10.011993).abs() < 1e-3, "{sum}");
    assert!((abs_sum(&feature) - 136.146195).abs() < 1e-3);
    let last: Vec<f32> = got.logits.i(6).unwrap().to_vec1().unwrap();
    assert_close(
        "logits",
        &last[..4],
        &[1.2215088, -0.0679234, -0.1245471, -0.5910679],
    );
    let sum: f64 = last.iter().map(|x| f64::from(*x)).sum();
    assert!((sum + 1.115748).abs() < 1e-3, "{sum}");
    let texts: [(&[TokenId], [TokenId; 24]); 3] = [
        (
            &P0,
            [
                0, 0, 0, 0, 0, 0, 27, 0, 27, 0, 27, 38, 27, 38, 38, 27, 14, 0, 27, 0, 27, 0, 15, 15,
            ],
        ),
        (
            &[8, 36, 4, 16, 7],
            [
                29, 26, 26, 26, 26, 26, 36, 14, 14, 14, 15, 36, 14, 0, 26, 0, 15, 36, 14, 0, 27, 0,
                15, 36,
            ],
        ),
        (
            &[37, 11, 5, 35, 16],
            [
                29, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 36, 26, 36, 14, 14, 15, 36, 14, 0,
                0, 14, 0,
            ],
        ),
    ];
    for (prompt, text) in texts {
        assert_eq!(greedy(&mut golden::target(1), prompt, 24), text);
    }
}

/// The same model in candle-transformers: logits of the last position.
enum Oracle {
    Qwen3,
    Qwen3Moe,
    Llama,
}

impl Oracle {
    fn last_logits(
        &self,
        config: Value,
        weights: &BTreeMap<String, Tensor>,
        ids: &[TokenId],
    ) -> Vec<f32> {
        let named: HashMap<String, Tensor> = weights.clone().into_iter().collect();
        let vb = VarBuilder::from_tensors(named, DType::F32, &Device::Cpu);
        let ids = Tensor::new(ids, &Device::Cpu)
            .unwrap()
            .unsqueeze(0)
            .unwrap();
        let out = match self {
            Self::Qwen3 => {
                let config: qwen3::Config = serde_json::from_value(config).unwrap();
                let mut model = qwen3::ModelForCausalLM::new(&config, vb).unwrap();
                model.forward(&ids, 0).unwrap()
            }
            Self::Qwen3Moe => {
                let config: qwen3_moe::Config = serde_json::from_value(config).unwrap();
                let mut model = qwen3_moe::ModelForCausalLM::new(&config, vb).unwrap();
                model.forward(&ids, 0).unwrap()
            }
            Self::Llama => {
                let config: llama::LlamaConfig = serde_json::from_value(config).unwrap();
                let config = config.into_config(false);
                let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu).unwrap();
                let model = llama::Llama::load(vb, &config).unwrap();
                model.forward(&ids, 0, &mut cache).unwrap()
            }
        };
        out.flatten_all().unwrap().to_vec1().unwrap()
    }
}

/// A fixture case with its config in the older spelling and, for Llama, the head width that candle derives.
fn oracle_case(mut case: Case) -> (Oracle, Case) {
    let rope = case
        .config
        .as_object_mut()
        .unwrap()
        .remove("rope_parameters")
        .unwrap();
    case.config["rope_theta"] = rope["rope_theta"].clone();
    if rope["rope_type"] == "llama3" {
        let mut scaling = rope;
        scaling.as_object_mut().unwrap().remove("rope_theta");
        case.config["rope_scaling"] = scaling;
    }
    if case.architecture == "LlamaForCausalLM" {
        case.config["num_attention_heads"] = json!(2);
        case.config["num_key_value_heads"] = json!(1);
        for (name, shape) in &mut case.tensors {
            if name.contains("k_proj") || name.contains("v_proj") {
                *shape = vec![16, 32];
            } else if name.contains("q_proj") || name.contains("o_proj") {
                *shape = vec![32, 32];
            }
        }
        return (Oracle::Llama, case);
    }
    for (key, value) in [
        ("attention_bias", json!(false)),
        ("sliding_window", Value::Null),
        ("max_window_layers", json!(4)),
        ("use_sliding_window", json!(false)),
        ("hidden_act", json!("silu")),
    ] {
        case.config[key] = value;
    }
    match case.architecture.as_str() {
        "Qwen3MoeForCausalLM" => (Oracle::Qwen3Moe, case),
        _ => (Oracle::Qwen3, case),
    }
}

#[test]
fn last_logits_equal_candle_transformers() {
    for case in cases() {
        let (oracle, case) = oracle_case(case);
        for prompt in &case.prompts {
            let mut decoder = case.decoder();
            let got = logits(&mut decoder, &prompt.ids);
            let want = oracle.last_logits(case.config.clone(), &case.tensors(), &prompt.ids);
            let what = format!("{} on {} tokens", case.name, prompt.ids.len());
            assert_close(&what, got.last().unwrap(), &want);
        }
    }
}

#[test]
fn a_checkpoint_directory_gives_the_decoder_of_its_tensors() {
    let case = &cases()[2];
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), case.config_json()).unwrap();
    std::fs::write(
        dir.path().join("generation_config.json"),
        br#"{"eos_token_id": [3, 5], "temperature": 0.6}"#,
    )
    .unwrap();
    // Two shards, as large checkpoints have them.
    let mut shards = [HashMap::new(), HashMap::new()];
    let mut weight_map = BTreeMap::new();
    for (i, (name, tensor)) in case.tensors().into_iter().enumerate() {
        weight_map.insert(name.clone(), format!("model-{}.safetensors", i % 2));
        shards[i % 2].insert(name, tensor);
    }
    for (i, shard) in shards.iter().enumerate() {
        let path = dir.path().join(format!("model-{i}.safetensors"));
        candle_core::safetensors::save(shard, path).unwrap();
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
    let index_path = dir.path().join("model.safetensors.index.json");
    std::fs::write(index_path, index.to_string()).unwrap();
    let mut loaded = Decoder::load(&Source::Dir(dir.path().into()), OPTIONS).unwrap();
    assert_eq!(loaded.stop_tokens(), [3, 5]);
    let ids = &case.prompts[2].ids;
    assert_eq!(logits(&mut loaded, ids), logits(&mut case.decoder(), ids));
}
