//! A GGUF file, shown as a checkpoint in Hugging Face layout.
//!
//! Sources: the GGUF specification (ggml repository) for the file, llama.cpp's `gguf-py/gguf/tensor_mapping.py` for the
//! names and `convert_hf_to_gguf.py` for the order of rows.

mod config;
mod target;
mod tokenizer;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};
use candle_core::{Device, Tensor};
use decode::TokenId;
use serde_json::{Map, Value as Json, json};

use crate::error::{LoadError, Result};
use crate::fields::Fields;

use config::Architecture;
pub use target::GgufTarget;
pub use write::{GgufType, GgufWriter};

/// Types of tensors that are read.
const DTYPES: [(GgmlDType, &str); 6] = [
    (GgmlDType::F32, "F32"),
    (GgmlDType::F16, "F16"),
    (GgmlDType::BF16, "BF16"),
    (GgmlDType::Q8_0, "Q8_0"),
    (GgmlDType::Q4_0, "Q4_0"),
    (GgmlDType::Q4_1, "Q4_1"),
];
/// The same, as errors list them.
pub(crate) const DTYPE_NAMES: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1";
const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
/// Divisors of the rotary frequencies, as Llama 3.1 has them; the numbers they were computed from are in no key.
const SCALED_ROPE: &str = "rope_freqs.weight";

/// Names outside of layers: GGUF's, then Hugging Face's.
const OUTER: [(&str, &str); 3] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];
/// Names behind `blk.N.` and behind `model.layers.N.`.
const INNER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// An opened GGUF file of architecture `llama` or `qwen3`; a clone shares what was read.
///
/// It has the files config.json, generation_config.json, tokenizer.json and tokenizer_config.json, made of its metadata,
/// and tensors under Hugging Face names. Nothing of the tensors' data is kept in memory.
#[derive(Clone)]
pub struct Gguf(Arc<Inner>);

struct Inner {
    path: PathBuf,
    files: Vec<(&'static str, Vec<u8>)>,
    /// By Hugging Face name.
    tensors: BTreeMap<String, Held>,
    data_start: u64,
}

/// One tensor of the file.
struct Held {
    /// Its name in the file.
    name: String,
    info: TensorInfo,
    rows: RowOrder,
}

/// Tokens that have a part of their own.
struct Special {
    /// Begins a text.
    bos: Option<TokenId>,
    /// Ends a text.
    eos: Option<TokenId>,
    /// Every token that ends an answer: the end of a text, and that of a turn or a message where the file names another.
    stop: Vec<TokenId>,
}

impl Special {
    fn read(head: &mut Fields) -> Result<Self> {
        let mut token = |name| head.optional(&format!("tokenizer.ggml.{name}_token_id"));
        let (bos, eos) = (token("bos")?, token("eos")?);
        let mut stop = Vec::new();
        for token in [eos, token("eot")?, token("eom")?].into_iter().flatten() {
            if !stop.contains(&token) {
                stop.push(token);
            }
        }
        Ok(Self { bos, eos, stop })
    }
}

/// How rows of a query or key matrix lie within a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowOrder {
    /// As Hugging Face has them: first halves of all rotated pairs, then second halves.
    Halves,
    /// As llama.cpp rotates them: the two rows of a pair side by side, in so many heads.
    Pairs { n_heads: usize },
}

impl Gguf {
    /// Reads the metadata and the list of tensors.
    ///
    /// # Errors
    /// [`LoadError::Read`] if there is no such file, [`LoadError::BrokenGguf`] if it is cut short or no GGUF,
    /// [`LoadError::GgufDtype`] for a tensor of a type that is not read, and the errors of keys for an architecture, a
    /// forward pass or a tokenizer that is not known here.
    pub fn open(path: &Path) -> Result<Self> {
        let label = path.display().to_string();
        let unreadable = |source| LoadError::Read {
            file: label.clone(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        let n_bytes = file.metadata().map_err(unreadable)?.len();
        let content = Content::read(&mut BufReader::new(file))
            .map_err(|e| broken(&label, first_line(&e.to_string())))?;
        check_tensors(&label, &content, n_bytes)?;
        let data_start = content.tensor_data_offset;
        let metadata: BTreeMap<String, Value> = content.metadata.into_iter().collect();
        let infos: BTreeMap<String, TensorInfo> = content.tensor_infos.into_iter().collect();

        let mut head = Fields::of(label.clone(), "", keys_below(&metadata, ""));
        let architecture = Architecture::read(&mut head)?;
        let prefix = format!("{}.", architecture.id);
        let mut own = Fields::of(label.clone(), &prefix, keys_below(&metadata, &prefix));
        let shape = config::Shape::read(&mut own, architecture)?;
        if infos.contains_key(SCALED_ROPE) {
            return Err(LoadError::Unsupported {
                file: label,
                key: SCALED_ROPE.into(),
                got: "a table of scaled rotary angles".into(),
                supported: "none; use the model's safetensors checkpoint".into(),
            });
        }
        let Some(embedding) = infos.get(EMBEDDING) else {
            return Err(LoadError::MissingTensor {
                file: label,
                tensor: EMBEDDING.into(),
            });
        };
        let vocab = embedding.shape.dims()[0];
        shape.check_layers(&own, infos.keys().map(String::as_str))?;
        let tied = !infos.contains_key(HEAD);
        let special = Special::read(&mut head)?;
        let mut files = shape.files(&special, vocab, tied);
        files.extend(tokenizer::files(&mut head, &special, vocab)?);

        let files = files.into_iter().map(|(n, v)| (n, v.to_string().into()));
        let tensors = infos.into_iter().map(|(name, info)| {
            let rows = shape.row_order(&name);
            (renamed(&name), Held { name, info, rows })
        });
        Ok(Self(Arc::new(Inner {
            path: path.to_owned(),
            files: files.collect(),
            tensors: tensors.collect(),
            data_start,
        })))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Size of all tensors once they are f32.
    pub fn f32_bytes(&self) -> u64 {
        let sizes = self.0.tensors.values().map(|t| t.info.shape.elem_count());
        sizes.map(|n| n as u64 * 4).sum()
    }

    /// The files that it is shown as, besides its tensors.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.0.files.iter().map(|(name, text)| (*name, &text[..]))
    }

    pub(crate) fn label(&self) -> String {
        self.0.path.display().to_string()
    }

    /// Hugging Face names and shapes of all tensors.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let tensors = self.0.tensors.iter();
        tensors.map(|(name, held)| (name.as_str(), held.info.shape.dims()))
    }

    /// A tensor by its Hugging Face name, as f32, rows in Hugging Face's order.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        let label = self.label();
        let Some(held) = self.0.tensors.get(name) else {
            return Err(LoadError::MissingTensor {
                file: label,
                tensor: name.to_owned(),
            });
        };
        let mut file = File::open(&self.0.path).map_err(|source| LoadError::Read {
            file: label.clone(),
            source,
        })?;
        let read = held.info.read(&mut file, self.0.data_start, &Device::Cpu);
        let tensor = read.and_then(|q| q.dequantize(&Device::Cpu)).map_err(|e| {
            let why = format!("tensor {:?}: {}", held.name, first_line(&e.to_string()));
            broken(&label, why)
        })?;
        held.rows.restored(tensor)
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Gguf").field(&self.0.path).finish()
    }
}

impl RowOrder {
    /// `[heads * D, H]` with rows of this order to the same with rows of order `Halves`.
    fn restored(self, tensor: Tensor) -> Result<Tensor> {
        let Self::Pairs { n_heads } = self else {
            return Ok(tensor);
        };
        let (rows, columns) = tensor.dims2()?;
        let n_pairs = rows / n_heads / 2;
        // [heads, D / 2, 2, H] -> [heads, 2, D / 2, H]
        let pairs = tensor.reshape((n_heads, n_pairs, 2, columns))?;
        let halves = pairs.transpose(1, 2)?.contiguous()?;
        Ok(halves.reshape((rows, columns))?)
    }
}

/// Holds every tensor to the supported types and to the end of the file.
fn check_tensors(file: &str, content: &Content, n_bytes: u64) -> Result<()> {
    let infos: BTreeMap<_, _> = content.tensor_infos.iter().collect();
    for (name, info) in infos {
        let dtype = info.ggml_dtype;
        if !DTYPES.iter().any(|(known, _)| *known == dtype) {
            return Err(LoadError::GgufDtype {
                file: file.to_owned(),
                tensor: name.clone(),
                got: format!("{dtype:?}"),
            });
        }
        let dims = info.shape.dims();
        let lies = |why: &str| {
            let start = info.offset;
            let why =
                format!("tensor {name:?} of shape {dims:?} at byte {start} of the data {why}");
            broken(file, why)
        };
        let block = dtype.block_size();
        let whole_blocks = |width: &usize| *width > 0 && width.is_multiple_of(block);
        if !dims.last().is_some_and(whole_blocks) {
            return Err(lies(&format!("has rows that are no multiple of {block}")));
        }
        let n_elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64));
        let n_blocks = n_elements.map(|n| n / block as u64);
        let end = n_blocks
            .and_then(|n| n.checked_mul(dtype.type_size() as u64))
            .and_then(|n| n.checked_add(info.offset))
            .and_then(|n| n.checked_add(content.tensor_data_offset));
        if end.is_none_or(|end| end > n_bytes) {
            return Err(lies(&format!("ends behind the file's {n_bytes} bytes")));
        }
    }
    Ok(())
}

/// The metadata below a prefix, which its keys lose.
fn keys_below(metadata: &BTreeMap<String, Value>, prefix: &str) -> Map<String, Json> {
    let below = metadata
        .iter()
        .filter_map(|(k, v)| Some((k.strip_prefix(prefix)?, v)));
    below.map(|(k, v)| (k.to_owned(), json_of(v))).collect()
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        // Widened, not rounded to fewer digits: reading it as f32 gives the same number back.
        Value::F32(v) => json!(f64::from(*v)),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(all) => all.iter().map(json_of).collect(),
    }
}

/// A tensor's Hugging Face name; one that is not known keeps its own, so that loading refuses it by that.
fn renamed(name: &str) -> String {
    let found = |table: &[(&str, &'static str)], name: &str| {
        let (stem, kind) = name.rsplit_once('.')?;
        let row = table.iter().find(|(own, _)| *own == stem)?;
        Some(format!("{}.{kind}", row.1))
    };
    let inner = name.strip_prefix("blk.").and_then(|rest| {
        let (layer, name) = rest.split_once('.')?;
        Some(format!("model.layers.{layer}.{}", found(&INNER, name)?))
    });
    inner
        .or_else(|| found(&OUTER, name))
        .unwrap_or_else(|| name.to_owned())
}

fn broken(file: &str, why: impl Into<String>) -> LoadError {
    LoadError::BrokenGguf {
        file: file.to_owned(),
        why: why.into(),
    }
}

/// Without the backtrace that candle appends where RUST_BACKTRACE is set.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_those_of_hugging_face() {
        for (own, theirs) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "model.norm.weight"),
            (
                "blk.11.attn_q.weight",
                "model.layers.11.self_attn.q_proj.weight",
            ),
            ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
            (
                "blk.0.ffn_norm.weight",
                "model.layers.0.post_attention_layernorm.weight",
            ),
            ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_exps.weight"),
            ("rope_freqs.weight", "rope_freqs.weight"),
        ] {
            assert_eq!(renamed(own), theirs);
        }
    }

    #[test]
    fn pairs_of_rows_become_halves() {
        // Two heads of four rows.
        let rows = [0f32, 2., 1., 3., 4., 6., 5., 7.];
        let tensor = Tensor::new(&rows, &Device::Cpu).unwrap();
        let tensor = tensor.reshape((8, 1)).unwrap();
        let order = RowOrder::Pairs { n_heads: 2 };
        let restored = order.restored(tensor).unwrap();
        let restored = restored.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(restored, [0., 1., 2., 3., 4., 5., 6., 7.]);
    }

    #[test]
    fn the_list_of_types_in_errors_is_the_one_checked() {
        let names = DTYPES.map(|(_, name)| name);
        assert_eq!(names.join(", "), DTYPE_NAMES);
    }
}
