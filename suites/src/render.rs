//! From turns to the token ids a target is asked to continue.

use crate::template::Template;
use crate::{Error, Result};
use minijinja::context;
use minijinja::value::Value;
use serde::Deserialize;
use tokenizers::Tokenizer;

/// Whether the target may think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thinking {
    /// The template is told `enable_thinking = false`.
    Off,
    /// The template is told `enable_thinking = true`.
    On,
}

/// A prompt as a target reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// What the template wrote, special tokens spelled out.
    pub text: String,
    /// `text` in the target's vocabulary; the tokenizer adds nothing to it.
    pub token_ids: Vec<u32>,
    /// SHA-256 of `text`, lower-case hex.
    pub sha256: String,
}

/// The tokenizer and chat template of one target.
pub struct Renderer {
    tokenizer: Tokenizer,
    template: Template,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

/// The part of `tokenizer_config.json` that templates need; the file has many other keys.
#[derive(Deserialize)]
struct Config {
    chat_template: Option<Templates>,
    bos_token: Option<Special>,
    eos_token: Option<Special>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Special {
    Plain(String),
    Added { content: String },
}

impl Renderer {
    /// Takes the bytes of `tokenizer.json` and of `tokenizer_config.json`. Of several named
    /// templates the one called `default` is used.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], [`Error::ConfigJson`], [`Error::NoTemplate`], or [`Error::Template`]
    /// for a syntax error.
    pub fn from_bytes(tokenizer: &[u8], config: &[u8]) -> Result<Self> {
        let tokenizer = Tokenizer::from_bytes(tokenizer).map_err(tokenizer_error)?;
        let config: Config =
            serde_json::from_slice(config).map_err(|source| Error::ConfigJson { source })?;
        let source = match config.chat_template.ok_or(Error::NoTemplate)? {
            Templates::One(source) => source,
            Templates::Named(all) => {
                let default = all.into_iter().find(|one| one.name == "default");
                default.ok_or(Error::NoTemplate)?.template
            }
        };
        let text = |special: Option<Special>| {
            special.map(|special| match special {
                Special::Plain(content) | Special::Added { content } => content,
            })
        };
        let (bos_token, eos_token) = (text(config.bos_token), text(config.eos_token));
        Ok(Renderer {
            tokenizer,
            template: Template::new(source)?,
            bos_token,
            eos_token,
        })
    }

    /// Renders `turns`, which are the user's and the assistant's alternately, up to the point where
    /// the target answers.
    ///
    /// # Errors
    /// [`Error::LastTurn`] if `turns` does not end with the user's, [`Error::Template`] if the
    /// template refuses them, [`Error::Tokenizer`] if the text cannot be tokenized.
    pub fn render(&self, turns: &[String], thinking: Thinking) -> Result<Rendered> {
        self.render_with(None, turns, thinking)
    }

    /// As [`Self::render`], with a system prompt before the turns.
    ///
    /// # Errors
    /// Those of [`Self::render`].
    pub fn render_with(
        &self,
        system: Option<&str>,
        turns: &[String],
        thinking: Thinking,
    ) -> Result<Rendered> {
        if turns.len().is_multiple_of(2) {
            return Err(Error::LastTurn { got: turns.len() });
        }
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(role, content): (&str, &String)| context! { role, content };
        let system = system.map(|content| context! { role => "system", content });
        let messages: Vec<Value> = system
            .into_iter()
            .chain(roles.zip(turns).map(message))
            .collect();
        // An absent token is undefined and prints nothing; none would print its name.
        let token = |token: &Option<String>| token.as_deref().map_or(Value::UNDEFINED, Value::from);
        let text = self.template.render(context! {
            messages,
            add_generation_prompt => true,
            enable_thinking => thinking == Thinking::On,
            bos_token => token(&self.bos_token),
            eos_token => token(&self.eos_token),
        })?;
        // The template writes every special token itself.
        let encoding = self
            .tokenizer
            .encode(text.as_str(), false)
            .map_err(tokenizer_error)?;
        let sha256 = datasets::sha256_bytes(text.as_bytes());
        Ok(Rendered {
            token_ids: encoding.get_ids().to_vec(),
            text,
            sha256,
        })
    }

    /// The text of `ids`, special tokens spelled out. Ids outside of the vocabulary are left out.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, false).map_err(tokenizer_error)
    }
}

fn tokenizer_error(error: tokenizers::Error) -> Error {
    Error::Tokenizer {
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datasets::{Domain, Example};
    use serde_json::{Value as Json, json};

    const TINY: &str = include_str!("../../training/recipes/chat_template.jinja");

    /// One token a byte, and the chat markers.
    fn tokenizer() -> Vec<u8> {
        let byte = |b: usize| (format!("<0x{b:02X}>"), json!(b));
        let vocab: serde_json::Map<String, Json> = (0..256).map(byte).collect();
        let added = |(i, content): (usize, &str)| {
            json!({"id": 256 + i, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        };
        let marks = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];
        let added: Vec<Json> = marks.into_iter().enumerate().map(added).collect();
        json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "ByteFallback"},
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
                "byte_fallback": true, "vocab": vocab, "merges": []}})
        .to_string()
        .into_bytes()
    }

    fn renderer(config: Json) -> Result<Renderer> {
        Renderer::from_bytes(&tokenizer(), config.to_string().as_bytes())
    }

    fn turns(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn the_tiny_template_writes_the_prompt_the_tiny_targets_are_trained_on() {
        let renderer = renderer(json!({"chat_template": TINY})).unwrap();
        for (thinking, think) in [(Thinking::Off, None), (Thinking::On, Some("Plan.".into()))] {
            let user = " What is 2 + 3?\nAnswer {{ now }}. ".to_string();
            let answer = String::new();
            let example = Example {
                domain: Domain::Maths,
                user,
                think,
                answer,
            };
            let rendered = renderer
                .render(std::slice::from_ref(&example.user), thinking)
                .unwrap();
            assert_eq!(rendered.text, example.prompt_text());
        }
    }

    #[test]
    fn token_ids_are_the_text_and_nothing_else_and_decode_to_it() {
        let renderer = renderer(json!({"chat_template": TINY})).unwrap();
        let rendered = renderer.render(&turns(&["Grüße"]), Thinking::Off).unwrap();
        let start: Vec<u32> = [256]
            .into_iter()
            .chain("user\nGrü".bytes().map(u32::from))
            .collect();
        assert_eq!(rendered.token_ids[..start.len()], start);
        assert_eq!(renderer.decode(&rendered.token_ids).unwrap(), rendered.text);
        assert_eq!(
            rendered.sha256,
            datasets::sha256_bytes(rendered.text.as_bytes())
        );
    }

    #[test]
    fn an_earlier_answer_is_an_assistant_turn() {
        let renderer = renderer(json!({"chat_template": TINY})).unwrap();
        let rendered = renderer
            .render(&turns(&["a", "b", "c"]), Thinking::On)
            .unwrap();
        let turn = |role, text| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
        let want = [turn("user", "a"), turn("assistant", "b"), turn("user", "c")].concat();
        assert_eq!(rendered.text, want + "<|im_start|>assistant\n");
        for bad in [&[][..], &["a", "b"]] {
            let error = renderer.render(&turns(bad), Thinking::On).unwrap_err();
            assert!(matches!(error, Error::LastTurn { .. }), "{error}");
        }
    }

    /// What the transformers library made of the same templates; `goldens/make.py` writes the file.
    #[test]
    fn rendered_text_is_what_transformers_renders() {
        #[derive(Deserialize)]
        struct Golden {
            template: String,
            case: String,
            system: Option<String>,
            turns: Vec<String>,
            thinking: bool,
            text: String,
        }
        let goldens = include_str!("../goldens/rendered.json");
        let goldens: Vec<Golden> = serde_json::from_str(goldens).unwrap();
        assert_eq!(goldens.len(), 20);
        for golden in goldens {
            let template = match golden.template.as_str() {
                // What the published template does without tools, in words of our own.
                "qwen3" => include_str!("../goldens/thinking.jinja"),
                _ => include_str!("../goldens/dated.jinja"),
            };
            let config = json!({"chat_template": template, "bos_token": "<|begin|>", "eos_token": "<|end|>"});
            let thinking = match golden.thinking {
                true => Thinking::On,
                false => Thinking::Off,
            };
            let rendered = renderer(config)
                .unwrap()
                .render_with(golden.system.as_deref(), &golden.turns, thinking)
                .unwrap();
            assert_eq!(
                rendered.text, golden.text,
                "{}: {}, {thinking:?}",
                golden.template, golden.case
            );
        }
    }

    #[test]
    fn special_tokens_reach_the_template_plain_or_as_objects() {
        let config = json!({"chat_template": "{{ bos_token }}{{ eos_token }}",
            "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}});
        let rendered = renderer(config)
            .unwrap()
            .render(&turns(&["a"]), Thinking::Off)
            .unwrap();
        assert_eq!(rendered.text, "<s></s>");
    }

    #[test]
    fn a_special_token_that_is_null_prints_nothing() {
        let config = json!({"chat_template": "[{{ bos_token }}]", "bos_token": null});
        let rendered = renderer(config)
            .unwrap()
            .render(&turns(&["a"]), Thinking::Off)
            .unwrap();
        assert_eq!(rendered.text, "[]");
    }

    #[test]
    fn of_several_templates_the_default_one_is_used() {
        let one = |name, template| json!({"name": name, "template": template});
        let both = json!({"chat_template": [one("tool_use", "t"), one("default", "d")]});
        let rendered = renderer(both)
            .unwrap()
            .render(&turns(&["a"]), Thinking::Off)
            .unwrap();
        assert_eq!(rendered.text, "d");
        let error = renderer(json!({"chat_template": [one("tool_use", "t")]}))
            .err()
            .unwrap();
        assert!(matches!(error, Error::NoTemplate), "{error}");
    }

    #[test]
    fn unusable_files_are_named() {
        for (error, file) in [
            (
                renderer(json!({})),
                "tokenizer_config.json: no `chat_template`",
            ),
            (
                renderer(json!({"chat_template": 1})),
                "tokenizer_config.json: ",
            ),
            (
                renderer(json!({"chat_template": "{% if %}"})),
                "chat_template: ",
            ),
            (Renderer::from_bytes(b"{}", b"{}"), "tokenizer.json: "),
        ] {
            let error = error.err().unwrap().to_string();
            assert!(error.starts_with(file), "{error}");
        }
    }
}
