//! `draftbench export gguf`: drafters as llama.cpp takes them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value, write};
use candle_core::{DType, Device, Tensor};
use serde_json::json;

use crate::desk::{Desk, edit_json, fine, text};

/// Of `tiny-qwen3` and its drafters.
const VOCAB: usize = 2048;
const HIDDEN: usize = 192;
const LAYERS: u32 = 6;
/// Our names of a drafter's tensors outside of layers, then GGUF's.
const OUTER: [(&str, &str); 7] = [
    ("fc.weight", "fc.weight"),
    ("hidden_norm.weight", "enc.output_norm.weight"),
    ("norm.weight", "output_norm.weight"),
    ("markov_head.markov_w1.weight", "markov_w1.weight"),
    ("markov_head.markov_w2.weight", "markov_w2.weight"),
    ("confidence_head.proj.weight", "conf_proj.weight"),
    ("confidence_head.proj.bias", "conf_proj.bias"),
];
/// The same within a layer.
const INNER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

impl Desk {
    /// A file with the sizes and the tokenizer of a target, whose tensors nobody asks for.
    fn target_gguf(&self, name: &str, hidden: usize) {
        let text = |text: &str| Value::String(text.into());
        let tokens = (0..VOCAB).map(|i| Value::String(format!("t{i}")));
        let metadata = [
            ("general.architecture", text("gemma")),
            ("gemma.embedding_length", Value::U32(hidden as u32)),
            ("gemma.block_count", Value::U32(LAYERS)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.tokens", Value::Array(tokens.collect())),
            ("tokenizer.ggml.mask_token_id", Value::U32(7)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
            ("tokenizers", text("no key of a tokenizer")),
        ];
        let metadata: Vec<_> = metadata.iter().map(|(k, v)| (*k, v)).collect();
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &metadata, &[]).unwrap();
        fs::write(self.path(name), bytes.into_inner()).unwrap();
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// GGUF's names of the tensors of a drafter of ours.
fn renamed(ours: &str) -> String {
    if let Some((_, theirs)) = OUTER.iter().find(|(name, _)| *name == ours) {
        return (*theirs).to_owned();
    }
    let (layer, rest) = ours
        .strip_prefix("layers.")
        .unwrap()
        .split_once('.')
        .unwrap();
    let stem = rest.strip_suffix(".weight").unwrap();
    let (_, theirs) = INNER.iter().find(|(name, _)| *name == stem).unwrap();
    format!("blk.{layer}.{theirs}.weight")
}

fn checkpoint(dir: &Path) -> BTreeMap<String, Tensor> {
    let tensors = candle_core::safetensors::load(dir.join("model.safetensors"), &Device::Cpu);
    tensors.unwrap().into_iter().collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    let values = tensor.to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// A file whose tensors candle knows all types of.
struct Read {
    content: Content,
    bytes: Cursor<Vec<u8>>,
}

impl Read {
    fn open(path: &Path) -> Self {
        let mut bytes = Cursor::new(fs::read(path).unwrap());
        let content = Content::read(&mut bytes).unwrap();
        Self { content, bytes }
    }

    fn value(&self, key: &str) -> String {
        format!("{:?}", self.content.metadata[key])
    }

    fn tensor(&mut self, name: &str) -> Tensor {
        let read = self.content.tensor(&mut self.bytes, name, &Device::Cpu);
        read.unwrap().dequantize(&Device::Cpu).unwrap()
    }

    fn dtype(&self, name: &str) -> String {
        format!("{:?}", self.content.tensor_infos[name].ggml_dtype)
    }
}

#[test]
fn a_dspark_drafter_is_the_same_numbers_under_llama_cpps_names() {
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3-dspark", "drafter");
    desk.target_gguf("target.gguf", HIDDEN);
    let export = "export gguf models/drafter --target target.gguf";
    let told = fine(&desk, &format!("{export} --to plain.gguf"));
    assert!(
        told.contains("--spec-type draft-dspark --spec-draft-n-max 7"),
        "{told}"
    );
    assert!(told.contains("note: calibration.json"), "{told}");
    fine(&desk, &format!("{export} --to wide.gguf --type f32"));
    let ours = checkpoint(&model);
    for (file, matrices) in [("plain.gguf", "BF16"), ("wide.gguf", "F32")] {
        let mut read = Read::open(&desk.path(file));
        assert_eq!(read.content.tensor_infos.len(), ours.len());
        for (name, want) in &ours {
            let name = renamed(name);
            let got = read.tensor(&name);
            assert_eq!(got.dims(), want.dims(), "{name}");
            assert_eq!(bits(&got), bits(want), "{name}");
            let is_matrix = want.rank() == 2 && want.dims()[0] > 1;
            let dtype = if is_matrix { matrices } else { "F32" };
            assert_eq!(read.dtype(&name), dtype, "{name}");
        }
    }
}

#[test]
fn keys_are_those_that_llama_cpp_reads() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3-dspark", "drafter");
    desk.target_gguf("target.gguf", HIDDEN);
    let export = "export gguf models/drafter --target target.gguf --to out.gguf";
    fine(&desk, export);
    let read = Read::open(&desk.path("out.gguf"));
    for (key, want) in [
        ("general.architecture", "String(\"dflash\")"),
        ("general.file_type", "U32(32)"),
        ("dflash.block_size", "U32(7)"),
        // Layers 1, 3 and 4, counted from 0.
        ("dflash.target_layers", "Array([I32(2), I32(4), I32(5)])"),
        ("dflash.attention.causal", "Bool(false)"),
        ("dflash.sample_from_anchor", "Bool(true)"),
        ("dflash.has_confidence_head", "Bool(true)"),
        ("dflash.embedding_length", "U32(192)"),
        ("dflash.feed_forward_length", "U32(640)"),
        ("dflash.block_count", "U32(2)"),
        ("dflash.context_length", "U32(1024)"),
        ("dflash.attention.head_count", "U32(6)"),
        ("dflash.attention.head_count_kv", "U32(2)"),
        ("dflash.attention.key_length", "U32(32)"),
        ("dflash.attention.value_length", "U32(32)"),
        ("dflash.rope.dimension_count", "U32(32)"),
        ("dflash.rope.freq_base", "F32(10000.0)"),
        ("dflash.attention.layer_norm_rms_epsilon", "F32(1e-6)"),
        ("dflash.vocab_size", "U32(2048)"),
        // The drafter's, not the target's.
        ("tokenizer.ggml.mask_token_id", "U32(5)"),
        ("tokenizer.ggml.eos_token_id", "U32(2)"),
        ("tokenizer.ggml.pre", "String(\"smollm\")"),
    ] {
        assert_eq!(read.value(key), want, "{key}");
    }
    let tokens = read.content.metadata["tokenizer.ggml.tokens"].to_vec();
    assert_eq!(tokens.unwrap().len(), VOCAB);
    assert!(!read.content.metadata.contains_key("tokenizers"));
    assert!(!read.content.metadata.contains_key("gemma.block_count"));
}

#[test]
fn a_shifted_dflash_drafter_has_a_markov_head_of_zeros_and_one_in_place_none() {
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3-dflash", "drafter");
    desk.target_gguf("target.gguf", HIDDEN);
    let export = "export gguf models/drafter --target target.gguf --to";
    let told = fine(&desk, &format!("{export} shifted.gguf"));
    assert!(told.contains("draft-dspark --spec-draft-n-max 7"), "{told}");
    assert!(told.contains("note: its first draft token is"), "{told}");
    let mut read = Read::open(&desk.path("shifted.gguf"));
    let ours = checkpoint(&model);
    assert_eq!(read.content.tensor_infos.len(), ours.len() + 2);
    for name in ["markov_w1.weight", "markov_w2.weight"] {
        let table = read.tensor(name);
        assert_eq!(table.dims(), [VOCAB, 1]);
        assert!(bits(&table).iter().all(|bits| *bits == 0));
    }
    assert_eq!(read.value("dflash.has_confidence_head"), "Bool(false)");

    let in_place = json!({"mask_token_id": 5, "target_layer_ids": [1, 3, 4]});
    edit_json(&model.join("config.json"), "dflash_config", in_place);
    let told = fine(&desk, &format!("{export} in-place.gguf"));
    assert!(told.contains("draft-dflash --spec-draft-n-max 6"), "{told}");
    let read = Read::open(&desk.path("in-place.gguf"));
    assert_eq!(read.content.tensor_infos.len(), ours.len());
    let keys = &read.content.metadata;
    assert!(!keys.contains_key("dflash.sample_from_anchor"));
}

#[test]
fn scaled_rotary_angles_and_confidences_without_the_markov_embedding_fit_too() {
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3-dspark", "drafter");
    desk.target_gguf("target.gguf", HIDDEN);
    let config = model.join("config.json");
    edit_json(&config, "confidence_head_with_markov", false);
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    edit_json(&config, "rope_scaling", scaling);
    let mut tensors = checkpoint(&model);
    let weight = &tensors["confidence_head.proj.weight"];
    let weight = weight.narrow(1, 0, HIDDEN).unwrap().contiguous().unwrap();
    tensors.insert("confidence_head.proj.weight".into(), weight.clone());
    let all: std::collections::HashMap<_, _> = tensors.into_iter().collect();
    candle_core::safetensors::save(&all, model.join("model.safetensors")).unwrap();
    let export = "export gguf models/drafter --target target.gguf --to out.gguf";
    fine(&desk, export);
    let mut read = Read::open(&desk.path("out.gguf"));
    let stored = bits(&read.tensor("conf_proj.weight"));
    assert_eq!(stored[..HIDDEN], bits(&weight));
    assert_eq!(stored[HIDDEN..], [0; 32]);
    let divisors = read.tensor("rope_freqs.weight").to_vec1::<f32>().unwrap();
    assert_eq!(divisors.len(), 16);
    // High frequencies stay, low ones are divided by the factor, as in `models::RopeConfig`.
    assert_eq!((divisors[0], divisors[15]), (1.0, 8.0));
    assert!(divisors.windows(2).all(|w| w[0] <= w[1]), "{divisors:?}");
}

#[test]
fn a_reduced_vocabulary_has_a_head_of_its_own_and_the_targets_ids() {
    const ROWS: usize = 8;
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3-dspark", "drafter");
    desk.target_gguf("target.gguf", HIDDEN);
    edit_json(&model.join("config.json"), "draft_vocab_size", ROWS);
    let mut tensors = checkpoint(&model);
    let head = tests::hash_fill(ROWS * HIDDEN, 3, 0.5, 0.0);
    let head = Tensor::from_vec(head, (ROWS, HIDDEN), &Device::Cpu).unwrap();
    let w2 = &tensors["markov_head.markov_w2.weight"];
    let w2 = w2.narrow(0, 0, ROWS).unwrap().contiguous().unwrap();
    let ids = [0i64, 1, 5, 6, 100, 101, 102, 2047];
    let save = |ids: &[i64], tensors: &BTreeMap<String, Tensor>| {
        let offsets: Vec<i64> = (0..).zip(ids).map(|(row, id): (i64, _)| id - row).collect();
        let mut all: std::collections::HashMap<_, _> = tensors.clone().into_iter().collect();
        let offsets = Tensor::new(offsets, &Device::Cpu).unwrap();
        all.insert("d2t".to_owned(), offsets);
        candle_core::safetensors::save(&all, model.join("model.safetensors")).unwrap();
    };
    tensors.insert("lm_head.weight".into(), head.clone());
    tensors.insert("markov_head.markov_w2.weight".into(), w2.clone());
    save(&ids, &tensors);
    let export = "export gguf models/drafter --target target.gguf --type f32 --to out.gguf";
    fine(&desk, export);

    // candle knows no whole numbers: the last tensor before the Markov head is found by hand.
    let bytes = fs::read(desk.path("out.gguf")).unwrap();
    let found = |name: &str| {
        let key = [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
        bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len()
    };
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let at = found("d2t");
    // One dimension, its size, type 27, the offset.
    assert_eq!(bytes[at..at + 4], [1, 0, 0, 0]);
    assert_eq!(number(at + 4), ROWS as u64);
    assert_eq!(bytes[at + 12..at + 16], [27, 0, 0, 0]);
    // The data begin behind the description of the last tensor, at a multiple of 32.
    let data = (found("conf_proj.bias") + 4 + 8 + 4 + 8).next_multiple_of(32);
    let start = data + number(at + 16) as usize;
    let stored: Vec<i64> = (0..ROWS).map(|i| number(start + 8 * i) as i64).collect();
    assert_eq!(stored, ids);
    for (name, want) in [("output.weight", &head), ("markov_w2.weight", &w2)] {
        let at = found(name);
        let width = want.dims()[1] as u64;
        assert_eq!((number(at + 4), number(at + 12)), (width, ROWS as u64));
        let start = data + number(at + 24) as usize;
        let stored = bytes[start..].chunks(4).take(want.elem_count());
        let stored: Vec<u32> = stored
            .map(|four| u32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert_eq!(stored, bits(want), "{name}");
    }

    fs::remove_file(desk.path("out.gguf")).unwrap();
    save(&[0, 1, 2, 3, 4, 5, 6, 2048], &tensors);
    let outside = "tensor \"d2t\" leads to token 2048, vocab_size is 2048";
    desk.refuses_in_a_line(&words(export), &[outside]);
    save(&[0, 1, 2, 3, 4, 5, 6, 6], &tensors);
    desk.refuses_in_a_line(&words(export), &["leads to one token from two rows"]);
    edit_json(&model.join("config.json"), "draft_vocab_size", VOCAB + 1);
    let size = "draft_vocab_size 2049 must lie between 1 and vocab_size 2048";
    desk.refuses_in_a_line(&words(export), &[size]);
}

#[test]
fn what_llama_cpp_cannot_run_is_refused_with_the_reason() {
    let desk = Desk::new();
    desk.target_gguf("target.gguf", HIDDEN);
    let refuses = |model: &str, texts: &[&str]| {
        let args = format!("export gguf models/{model} --target target.gguf --to out.gguf");
        desk.refuses_in_a_line(&words(&args), texts);
    };
    for (model, title) in [("domino", "Domino"), ("dcoco", "DCOCO")] {
        desk.copy_model(&format!("tiny-qwen3-{model}"), model);
        let head = format!("llama.cpp has no head of {title}");
        refuses(model, &[&format!("models/{model}/config.json: {head}")]);
    }
    desk.copy_model("tiny-qwen3-eagle3", "eagle3");
    refuses("eagle3", &["supported: DFlashDraftModel, Qwen3DSparkModel"]);
    desk.copy_model("tiny-llama-dflash", "other");
    refuses(
        "other",
        &[
            "hidden_size is 128, target target.gguf has 192; use the drafter that was trained for it",
        ],
    );
    let model = desk.copy_model("tiny-qwen3-dspark", "dspark");
    edit_json(&model.join("config.json"), "markov_head_type", "rnn");
    refuses("dspark", &["llama.cpp has vanilla alone"]);
    edit_json(&model.join("config.json"), "markov_head_type", "vanilla");
    edit_json(
        &model.join("config.json"),
        "target_layer_ids",
        json!([1, 3, 5]),
    );
    refuses("dspark", &["names 5, the target's last layer"]);
    edit_json(&model.join("config.json"), "twist", 1);
    refuses("dspark", &["unknown keys: twist"]);
}

#[test]
fn paths_that_cannot_be_are_named_with_the_remedy() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3-dflash", "drafter");
    desk.copy_model("tiny-qwen3", "target");
    desk.target_gguf("target.gguf", HIDDEN);
    fs::write(desk.path("there.gguf"), "mine").unwrap();
    fs::write(desk.path("bad.gguf"), "GGUF").unwrap();
    let refuses = |args: &str, texts: &[&str]| {
        desk.refuses_in_a_line(&words(&format!("export gguf {args}")), texts);
    };
    refuses(
        "models/drafter --target target.gguf --to there.gguf",
        &["--to there.gguf: is there already; remove it or name another file"],
    );
    assert_eq!(fs::read(desk.path("there.gguf")).unwrap(), b"mine");
    refuses(
        "models/drafter --target models/target --to out.gguf",
        &["--target models/target: is a folder; name the GGUF file that llama.cpp is to run"],
    );
    refuses(
        "models/drafter --target bad.gguf --to out.gguf",
        &["--target bad.gguf", "is not a whole GGUF file"],
    );
    refuses(
        "models/drafter --target none.gguf --to out.gguf",
        &["--target none.gguf", "cannot read none.gguf"],
    );
    refuses(
        "models/none --target target.gguf --to out.gguf",
        &["models/none: is not a folder; name a drafter's checkpoint"],
    );
    refuses(
        "models/drafter --target target.gguf --to no/such/out.gguf",
        &["--to no/such/out.gguf: cannot be written"],
    );
    let args = "export gguf models/drafter --target target.gguf --to out.gguf --type q4_0";
    let output = desk.run(&words(args));
    assert_eq!(output.status.code(), Some(2));
    let err = text(&output.stderr);
    assert!(
        err.contains("possible values: f32, bf16, f16, q8_0"),
        "{err}"
    );
}
