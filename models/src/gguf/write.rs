//! Writing a GGUF file.
//!
//! Source: the GGUF specification (ggml repository), version 3; codes of tensor types from its `ggml_type`. candle's own
//! writer has no type for whole numbers, which a reduced vocabulary needs.

use std::io::{self, Write};

use candle_core::quantized::gguf_file::{Value, ValueType};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, DType, Tensor};

use crate::error::{LoadError, Result};

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
/// Where no key says otherwise, every tensor starts at a multiple of this.
const ALIGNMENT: usize = 32;
/// `GGML_TYPE_I64`.
const I64: u32 = 27;
/// Numbers that share one scale in Q8_0.
const Q8_0_BLOCK: usize = 32;
/// The largest number that f16 holds.
const F16_MAX: f32 = 65504.0;

/// How weight matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// 4 bytes a number.
    F32,
    /// 2 bytes, rounded to nearest.
    F16,
    /// 2 bytes, rounded to nearest.
    Bf16,
    /// 34 bytes for 32 numbers of a row: one f16 scale and bytes.
    Q8_0,
}

impl GgufType {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// `general.file_type`: what most tensors are stored as.
    pub fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    fn ggml(self) -> GgmlDType {
        match self {
            Self::F32 => GgmlDType::F32,
            Self::F16 => GgmlDType::F16,
            Self::Bf16 => GgmlDType::BF16,
            Self::Q8_0 => GgmlDType::Q8_0,
        }
    }

    /// `ggml_type`.
    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }
}

/// A GGUF file that is put together in memory.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Stored>,
}

#[derive(Debug)]
struct Stored {
    name: String,
    /// Outermost first, as tensors have them; the file lists them the other way round.
    dims: Vec<usize>,
    code: u32,
    bytes: Vec<u8>,
}

impl GgufWriter {
    /// Adds a key; a file has no key twice, which is the caller's matter.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        self.metadata.push((key.into(), value));
    }

    /// Adds a tensor. One with a single row stays f32, as llama.cpp wants vectors, and so does a matrix whose rows are no
    /// multiple of a block of Q8_0, if that is asked for.
    ///
    /// # Errors
    /// [`LoadError::GgufRange`] if a number does not fit into f16, and if a tensor operation fails.
    pub fn push(&mut self, name: &str, tensor: &Tensor, asked: GgufType) -> Result<()> {
        // A copy: `quantize` reads a view's whole storage.
        let tensor = tensor.to_dtype(DType::F32)?.force_contiguous()?;
        let width = tensor.dim(D::Minus1)?;
        let is_vector = tensor.elem_count() == width;
        let stored = match asked {
            _ if is_vector => GgufType::F32,
            GgufType::Q8_0 if !width.is_multiple_of(Q8_0_BLOCK) => GgufType::F32,
            asked => asked,
        };
        if matches!(stored, GgufType::F16 | GgufType::Q8_0) {
            let most = tensor.abs()?.max_all()?.to_scalar::<f32>()?;
            if most > F16_MAX {
                return Err(LoadError::GgufRange {
                    tensor: name.to_owned(),
                    got: most,
                    asked: asked.name(),
                });
            }
        }
        self.tensors.push(Stored {
            name: name.to_owned(),
            dims: tensor.dims().to_vec(),
            code: stored.code(),
            bytes: QTensor::quantize(&tensor, stored.ggml())?
                .data()?
                .into_owned(),
        });
        Ok(())
    }

    /// Adds a list of whole numbers.
    pub fn push_integers(&mut self, name: &str, list: &[i64]) {
        self.tensors.push(Stored {
            name: name.to_owned(),
            dims: vec![list.len()],
            code: I64,
            bytes: list.iter().flat_map(|n| n.to_le_bytes()).collect(),
        });
    }

    /// Tensors so far.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let head = self.head();
        out.write_all(&head)?;
        pad(out, head.len())?;
        for tensor in &self.tensors {
            out.write_all(&tensor.bytes)?;
            pad(out, tensor.bytes.len())?;
        }
        Ok(())
    }

    /// All before the tensors' data.
    fn head(&self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        put_u32(&mut head, VERSION);
        put_len(&mut head, self.tensors.len());
        put_len(&mut head, self.metadata.len());
        for (key, value) in &self.metadata {
            put_text(&mut head, key);
            put_u32(&mut head, value_code(value.value_type()));
            put_value(&mut head, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_text(&mut head, &tensor.name);
            put_u32(&mut head, tensor.dims.len() as u32);
            for dim in tensor.dims.iter().rev() {
                put_len(&mut head, *dim);
            }
            put_u32(&mut head, tensor.code);
            put_len(&mut head, offset);
            offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
        }
        head
    }
}

fn pad(out: &mut impl Write, written: usize) -> io::Result<()> {
    let zeros = [0; ALIGNMENT];
    out.write_all(&zeros[..written.next_multiple_of(ALIGNMENT) - written])
}

fn put_u32(to: &mut Vec<u8>, number: u32) {
    to.extend(number.to_le_bytes());
}

fn put_len(to: &mut Vec<u8>, len: usize) {
    to.extend((len as u64).to_le_bytes());
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    put_len(to, text.len());
    to.extend(text.as_bytes());
}

/// `gguf_metadata_value_type`.
fn value_code(kind: ValueType) -> u32 {
    match kind {
        ValueType::U8 => 0,
        ValueType::I8 => 1,
        ValueType::U16 => 2,
        ValueType::I16 => 3,
        ValueType::U32 => 4,
        ValueType::I32 => 5,
        ValueType::F32 => 6,
        ValueType::Bool => 7,
        ValueType::String => 8,
        ValueType::Array => 9,
        ValueType::U64 => 10,
        ValueType::I64 => 11,
        ValueType::F64 => 12,
    }
}

fn put_value(to: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => to.push(*v),
        Value::I8(v) => to.extend(v.to_le_bytes()),
        Value::U16(v) => to.extend(v.to_le_bytes()),
        Value::I16(v) => to.extend(v.to_le_bytes()),
        Value::U32(v) => put_u32(to, *v),
        Value::I32(v) => to.extend(v.to_le_bytes()),
        Value::U64(v) => to.extend(v.to_le_bytes()),
        Value::I64(v) => to.extend(v.to_le_bytes()),
        Value::F32(v) => to.extend(v.to_le_bytes()),
        Value::F64(v) => to.extend(v.to_le_bytes()),
        Value::Bool(v) => to.push(u8::from(*v)),
        Value::String(v) => put_text(to, v),
        Value::Array(all) => {
            // All are of one type; an empty list has none and takes that of bytes.
            let kind = all.first().map_or(ValueType::U8, Value::value_type);
            put_u32(to, value_code(kind));
            put_len(to, all.len());
            for value in all {
                put_value(to, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use candle_core::Device;
    use candle_core::quantized::gguf_file::Content;

    use super::*;

    fn content(writer: &GgufWriter) -> (Content, Vec<u8>) {
        let mut bytes = Vec::new();
        writer.write(&mut bytes).unwrap();
        let content = Content::read(&mut Cursor::new(&bytes)).unwrap();
        (content, bytes)
    }

    #[test]
    fn every_kind_of_value_is_read_back() {
        let values = [
            Value::U8(1),
            Value::I8(-2),
            Value::U16(3),
            Value::I16(-4),
            Value::U32(5),
            Value::I32(-6),
            Value::U64(7),
            Value::I64(-8),
            Value::F32(0.5),
            Value::F64(-0.25),
            Value::Bool(true),
            Value::String("ä b".into()),
            Value::Array(vec![
                Value::String("x".into()),
                Value::String(String::new()),
            ]),
            Value::Array(Vec::new()),
        ];
        let mut writer = GgufWriter::default();
        for (i, value) in values.iter().enumerate() {
            writer.set(format!("key.{i}"), value.clone());
        }
        let (content, _) = content(&writer);
        assert_eq!(content.metadata.len(), values.len());
        for (i, value) in values.iter().enumerate() {
            let got = &content.metadata[&format!("key.{i}")];
            assert_eq!(format!("{got:?}"), format!("{value:?}"));
        }
    }

    #[test]
    fn tensors_keep_their_bits_as_far_as_their_type_holds_them() {
        let values: Vec<f32> = (0..6 * 64).map(|i| (i as f32 - 100.0) / 64.0).collect();
        let matrix = Tensor::from_vec(values, (6, 64), &Device::Cpu).unwrap();
        let vector = matrix.get(1).unwrap();
        for asked in [GgufType::F32, GgufType::F16, GgufType::Bf16, GgufType::Q8_0] {
            let mut writer = GgufWriter::default();
            writer.push("vector", &vector, asked).unwrap();
            writer.push("matrix", &matrix, asked).unwrap();
            let narrow = matrix.narrow(1, 3, 5).unwrap();
            writer.push("narrow", &narrow, GgufType::Q8_0).unwrap();
            assert_eq!(writer.n_tensors(), 3);
            let (content, bytes) = content(&writer);
            let read = |name: &str| {
                let mut file = Cursor::new(&bytes);
                let read = content.tensor(&mut file, name, &Device::Cpu).unwrap();
                (read.dtype(), read.dequantize(&Device::Cpu).unwrap())
            };
            let equal = |got: &Tensor, want: &Tensor| {
                let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(got.dims(), want.dims());
                assert_eq!(flat(got), flat(want));
            };
            for (name, want) in [("vector", &vector), ("narrow", &narrow)] {
                let (dtype, got) = read(name);
                assert_eq!(dtype, GgmlDType::F32);
                equal(&got, want);
            }
            let (dtype, got) = read("matrix");
            assert_eq!(dtype, asked.ggml());
            let rounded = QTensor::quantize(&matrix, asked.ggml()).unwrap();
            equal(&got, &rounded.dequantize(&Device::Cpu).unwrap());
        }
    }

    #[test]
    fn whole_numbers_lie_where_the_header_says() {
        let mut writer = GgufWriter::default();
        writer.push_integers("d2t", &[3, -1, i64::MAX]);
        let mut bytes = Vec::new();
        writer.write(&mut bytes).unwrap();
        // Magic, version, two counts; then the name, one dimension of 3, the type and an offset of 0.
        let mut head = b"GGUF\x03\0\0\0".to_vec();
        head.extend([1u64, 0, 3].map(u64::to_le_bytes).concat());
        head.extend(b"d2t\x01\0\0\0");
        head.extend(3u64.to_le_bytes());
        head.extend([27, 0, 0, 0]);
        head.extend(0u64.to_le_bytes());
        assert_eq!(bytes[..head.len()], head);
        let data = head.len().next_multiple_of(32);
        let numbers = [3, -1, i64::MAX].map(i64::to_le_bytes).concat();
        assert_eq!(bytes[data..data + 24], numbers);
        assert_eq!(bytes.len(), data + 32);
    }

    #[test]
    fn what_f16_cannot_hold_is_refused_by_name() {
        let large = Tensor::full(70_000f32, (2, 32), &Device::Cpu).unwrap();
        let mut writer = GgufWriter::default();
        writer.push("fc.weight", &large, GgufType::Bf16).unwrap();
        let err = writer.push("fc.weight", &large, GgufType::F16).unwrap_err();
        assert_eq!(
            err.to_string(),
            "tensor \"fc.weight\" holds 70000, which does not fit into f16; store it as f32 or bf16"
        );
    }
}
