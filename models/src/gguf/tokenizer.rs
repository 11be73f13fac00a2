//! tokenizer.json and tokenizer_config.json out of GGUF metadata, for byte-level BPE.
//!
//! Keys of tokenizer.json as the `tokenizers` library writes them; the regular expressions are those of the published
//! tokenizer.json files that llama.cpp's names of pre-tokenizers stand for.

use decode::TokenId;
use serde_json::{Map, Value as Json, json};

use super::Special;
use crate::error::Result;
use crate::fields::Fields;

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";
/// What models ship with in `tokenizer.ggml.token_type`.
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What stands before the merges in a tokenizer.
struct Pre {
    /// `tokenizer.ggml.pre`.
    id: &'static str,
    split: Split,
    normalizer: Option<&'static str>,
    /// Whether a word that is a token is that token, whatever the merges come to.
    ignore_merges: bool,
}

/// How text is cut into words.
enum Split {
    /// Digits one by one, then GPT-2's words.
    Digits,
    /// By a regular expression alone.
    Regex(&'static str),
}

const PRES: [Pre; 3] = [
    Pre {
        id: "smollm",
        split: Split::Digits,
        normalizer: None,
        ignore_merges: false,
    },
    Pre {
        id: "qwen2",
        split: Split::Regex(QWEN2),
        normalizer: Some("NFC"),
        ignore_merges: false,
    },
    Pre {
        id: "llama-bpe",
        split: Split::Regex(LLAMA3),
        normalizer: None,
        ignore_merges: true,
    },
];

impl Pre {
    fn read(head: &mut Fields) -> Result<&'static Self> {
        const KEY: &str = "tokenizer.ggml.pre";
        let id: String = head.required(KEY)?;
        PRES.iter().find(|pre| pre.id == id).ok_or_else(|| {
            let known: Vec<&str> = PRES.iter().map(|pre| pre.id).collect();
            head.unsupported(KEY, &json!(id), &known.join(", "))
        })
    }

    fn pre_tokenizer(&self) -> Json {
        let (first, use_regex) = match self.split {
            Split::Digits => (json!({"type": "Digits", "individual_digits": true}), true),
            Split::Regex(regex) => {
                let pattern = json!({"Regex": regex});
                let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
                (split, false)
            }
        };
        json!({"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]})
    }
}

/// tokenizer.json and tokenizer_config.json; `vocab` is the number of rows of the embedding.
pub(super) fn files(
    head: &mut Fields,
    special: &Special,
    vocab: usize,
) -> Result<Vec<(&'static str, Json)>> {
    const MODEL: &str = "tokenizer.ggml.model";
    let model: String = head.required(MODEL)?;
    if model != "gpt2" {
        return Err(head.unsupported(MODEL, &json!(model), "gpt2, which is byte-level BPE"));
    }
    let pre = Pre::read(head)?;
    let tokens: Vec<String> = head.required(TOKENS)?;
    if tokens.len() > vocab {
        let why = format!(
            "lists {} tokens, the embedding has {vocab} rows",
            tokens.len()
        );
        return Err(head.bad_value(TOKENS, why));
    }
    let types = (head.optional(TYPES)?).unwrap_or_else(|| vec![0; tokens.len()]);
    if types.len() != tokens.len() {
        let why = format!("lists {} types of {} tokens", types.len(), tokens.len());
        return Err(head.bad_value(TYPES, why));
    }
    let merges = merges(head)?;
    let template: Option<String> = head.optional("tokenizer.chat_template")?;
    let text = |token: Option<TokenId>| match token {
        None => Ok(None),
        Some(id) => (tokens.get(id as usize)).map(Some).ok_or_else(|| {
            let why = format!("{id} is named as a special one, there are {}", tokens.len());
            head.bad_value(TOKENS, why)
        }),
    };
    let (bos_token, eos_token) = (text(special.bos)?, text(special.eos)?);
    let config = json!({"bos_token": bos_token, "eos_token": eos_token, "chat_template": template});
    Ok(vec![
        ("tokenizer.json", tokenizer(pre, &tokens, &types, merges)),
        ("tokenizer_config.json", config),
    ])
}

fn tokenizer(pre: &Pre, tokens: &[String], types: &[u32], merges: Vec<[String; 2]>) -> Json {
    // Rows that only fill the embedding up are no tokens.
    let used = || (0..).zip(tokens).zip(types).filter(|(_, t)| **t != UNUSED);
    let vocab: Map<String, Json> = used().map(|((id, t), _)| (t.clone(), json!(id))).collect();
    let added = used().filter(|(_, kind)| matches!(**kind, CONTROL | USER_DEFINED));
    let added = added.map(|((id, content), kind): ((u32, _), _)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": *kind == CONTROL})
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Json>(),
        "normalizer": pre.normalizer.map(|kind| json!({"type": kind})),
        "pre_tokenizer": pre.pre_tokenizer(),
        // Chat templates write the first token themselves.
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignore_merges, "vocab": vocab, "merges": merges},
    })
}

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn merges(head: &mut Fields) -> Result<Vec<[String; 2]>> {
    let merges: Vec<String> = head.required(MERGES)?;
    let pairs = merges.iter().map(|merge| {
        let (left, right) = merge.split_once(' ')?;
        Some([left.to_owned(), right.to_owned()])
    });
    let pairs: Option<Vec<[String; 2]>> = pairs.collect();
    pairs.ok_or_else(|| {
        let why = "an entry is not two tokens with a space between".into();
        head.bad_value(MERGES, why)
    })
}
