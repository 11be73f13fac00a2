//! What a drafter's GGUF file has to know of its target's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};

use super::{broken, first_line, keys_below};
use crate::error::{LoadError, Result};
use crate::fields::Fields;

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Sizes and tokenizer of a GGUF file of any architecture, which need not be one that is run here.
#[derive(Clone, Debug)]
pub struct GgufTarget {
    /// How errors name the file.
    pub file: String,
    /// Hidden size H.
    pub hidden: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Vocabulary size V: tokens that are listed, among them those that only fill the embedding.
    pub vocab: usize,
    /// Every key of its tokenizer, in byte-wise order.
    pub tokenizer: Vec<(String, Value)>,
}

impl GgufTarget {
    /// Reads the metadata.
    ///
    /// # Errors
    /// [`LoadError::Read`] if there is no such file, [`LoadError::BrokenGguf`] if it is cut short or no GGUF, and the
    /// errors of keys that are missing or of another type.
    pub fn open(path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let opened = File::open(path).map_err(|source| LoadError::Read {
            file: file.clone(),
            source,
        })?;
        let content = Content::read(&mut BufReader::new(opened))
            .map_err(|e| broken(&file, first_line(&e.to_string())))?;
        let metadata: BTreeMap<String, Value> = content.metadata.into_iter().collect();
        let (tokenizer, metadata): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (metadata.into_iter()).partition(|(key, _)| key.starts_with("tokenizer."));
        let tokens = tokenizer.get(TOKENS).and_then(|list| list.to_vec().ok());
        let vocab = tokens.map(Vec::len).ok_or_else(|| LoadError::MissingKey {
            file: file.clone(),
            key: TOKENS.into(),
        })?;
        let mut sizes = Fields::of(file.clone(), "", keys_below(&metadata, ""));
        let architecture: String = sizes.required("general.architecture")?;
        let hidden = sizes.size(&format!("{architecture}.embedding_length"))?;
        let n_layers = sizes.size(&format!("{architecture}.block_count"))?;
        Ok(Self {
            file,
            hidden,
            n_layers,
            vocab,
            tokenizer: tokenizer.into_iter().collect(),
        })
    }
}
