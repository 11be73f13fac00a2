//! Byte-level BPE tokenizers for the tiny targets: training, applying, and the files beside them.

use crate::error::{Error, Result};
use crate::files::{write_atomically, write_json};
use std::path::{Path, PathBuf};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

/// Ends a text; pads.
pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";
/// Opens a turn.
pub(crate) const TURN_START: &str = "<|im_start|>";
/// Closes a turn; what a target stops at.
pub(crate) const TURN_END: &str = "<|im_end|>";
/// Stands in a block for a token that is to be drafted.
pub(crate) const MASK: &str = "<|mask|>";

const SPECIALS: [&str; 6] = [
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    "<think>",
    "</think>",
    MASK,
];

/// Words with the sign before them, digits one by one, runs of signs, line ends, and blanks before a word.
const WORDS: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A tokenizer and where it came from.
pub(crate) struct TextCodec {
    tokenizer: Tokenizer,
    path: PathBuf,
}

impl TextCodec {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if it cannot be read.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let tokenizer = Tokenizer::from_file(path).map_err(|e| tokenizer_error(path, &e))?;
        Ok(Self {
            tokenizer,
            path: path.to_owned(),
        })
    }

    /// Learns merges from `texts` (which hold no special tokens) until there are `vocab_size` tokens, specials
    /// included.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the texts give fewer tokens than that.
    pub(crate) fn train(
        texts: impl Iterator<Item = String> + Send,
        vocab_size: usize,
    ) -> Result<Self> {
        let path = PathBuf::from("(new)");
        let fail = |e: &dyn std::fmt::Display| Error::Tokenizer {
            path: path.clone(),
            message: e.to_string(),
        };
        let words = Split::new(
            SplitPattern::Regex(WORDS.to_owned()),
            SplitDelimiterBehavior::Isolated,
            false,
        )
        .map_err(|e| fail(&e))?;
        let bytes = ByteLevel::new(false, false, false);
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer
            .with_pre_tokenizer(Some(Sequence::new(vec![
                PreTokenizerWrapper::Split(words),
                PreTokenizerWrapper::ByteLevel(bytes),
            ])))
            .with_decoder(Some(bytes));
        let specials = SPECIALS
            .iter()
            .map(|s| AddedToken::from(*s, !s.contains("think")))
            .collect();
        let mut trainer: TrainerWrapper = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(specials)
            .build()
            .into();
        tokenizer.train(&mut trainer, texts).map_err(|e| fail(&e))?;
        let got = tokenizer.get_vocab_size(true);
        if got != vocab_size {
            return Err(fail(&format!(
                "the texts give {got} tokens for a vocabulary of {vocab_size}"
            )));
        }
        Ok(Self { tokenizer, path })
    }

    /// Ids of a text; the names of special tokens become one id each.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the library refuses the text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_with_offsets(text)?.0)
    }

    /// Ids and the byte each starts at.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(crate) fn encode_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|e| tokenizer_error(&self.path, &e))?;
        let starts = encoding.get_offsets().iter().map(|o| o.0).collect();
        Ok((encoding.get_ids().to_vec(), starts))
    }

    /// Text of ids, special tokens spelled out.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the library refuses an id.
    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer
            .decode(ids, false)
            .map_err(|e| tokenizer_error(&self.path, &e))
    }

    /// Id of a special token.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary has no such token.
    pub(crate) fn special(&self, name: &str) -> Result<u32> {
        self.tokenizer
            .token_to_id(name)
            .ok_or_else(|| tokenizer_error(&self.path, &format!("has no token {name:?}")))
    }

    /// How many ids there are.
    pub(crate) fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Writes `tokenizer.json`, `tokenizer_config.json` (with the chat template) and `generation_config.json`.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written.
    pub(crate) fn save(&self, folder: &Path, chat_template: &str) -> Result<()> {
        let text = self
            .tokenizer
            .to_string(true)
            .map_err(|e| tokenizer_error(&self.path, &e))?;
        write_atomically(&folder.join("tokenizer.json"), text.as_bytes())?;
        let config = serde_json::json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": false,
            "bos_token": null,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": false,
            "chat_template": chat_template,
        });
        write_json(&folder.join("tokenizer_config.json"), &config)?;
        let generation = serde_json::json!({
            "eos_token_id": [self.special(TURN_END)?, self.special(END_OF_TEXT)?],
            "pad_token_id": self.special(END_OF_TEXT)?,
            "do_sample": false,
        });
        write_json(&folder.join("generation_config.json"), &generation)
    }
}

fn tokenizer_error(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Tokenizer {
        path: path.to_owned(),
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough different words for a few merges.
    fn words() -> impl Iterator<Item = String> + Send {
        (0..400).map(|i| format!("user\nthe {}th value of x_{i} is {} now\n", i * 7, i * i))
    }

    #[test]
    fn special_names_are_one_id_and_digits_stand_alone() -> Result<()> {
        let codec = TextCodec::train(words(), 275)?;
        assert_eq!(codec.vocab_size(), 275);
        for name in SPECIALS {
            assert_eq!(codec.encode(name)?, [codec.special(name)?], "{name}");
        }
        let (digits, starts) = codec.encode_with_offsets("4096")?;
        assert_eq!((digits.len(), starts), (4, vec![0, 1, 2, 3]));
        Ok(())
    }

    #[test]
    fn text_survives_a_round_trip_through_a_saved_tokenizer() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        TextCodec::train(words(), 275)?.save(folder.path(), "template")?;
        let codec = TextCodec::load(&folder.path().join("tokenizer.json"))?;
        let text = "<|im_start|>user\n  d\u{e9}j\u{e0}\tvu, 12.5 %\n\n<think>\n\n</think>\n\n\u{1f600}<|im_end|>\n";
        assert_eq!(codec.decode(&codec.encode(text)?)?, text);
        Ok(())
    }

    #[test]
    fn too_little_text_for_the_vocabulary_is_an_error() {
        let error = TextCodec::train(std::iter::once("one".to_owned()), 5000);
        let message = error.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message.contains("5000"), "{message}");
    }
}
