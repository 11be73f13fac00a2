//! Named f32 tensors out of safetensors and GGUF files.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, Metadata};
use serde::{Deserialize, Serialize};

use crate::error::{LoadError, Result};
use crate::fields::Fields;
use crate::gguf::Gguf;
use crate::random;
use crate::source::Source;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The wrapper module that some checkpoints keep in their names.
const PREFIX: &str = "model.";
/// Length of the header's length in a safetensors file.
const HEADER_LEN_BYTES: u64 = 8;
/// No real header comes near this; a larger one is a damaged file.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// The tensors of a checkpoint that have not been taken yet.
///
/// Names may carry the prefix `model.` or not; asking for either form finds both. BF16, F16 and what a GGUF file holds
/// become F32. Of [`Source::Random`] every tensor is there that is asked for, in the shape that is asked for, but none is
/// listed.
#[derive(Debug)]
pub struct Weights {
    /// What errors name when no file can be named.
    place: String,
    source: Option<Source>,
    entries: BTreeMap<String, Entry>,
    matrices: Precision,
}

/// How the elements of weight matrices are kept in memory. Norms are f32 always, and so are activations and sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// As they are computed with.
    #[default]
    F32,
    /// Rounded to bf16, to nearest and ties to even, and so are the rows that a matrix is multiplied with; sums stay
    /// f32. Half the bytes a step has to read.
    Bf16,
}

impl Precision {
    /// Its name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

#[derive(Debug)]
enum Entry {
    File(FileEntry),
    Gguf(Gguf, Vec<usize>),
    Held(Tensor),
}

#[derive(Debug)]
struct FileEntry {
    file: String,
    dtype: Dtype,
    shape: Vec<usize>,
    start: u64,
    len: usize,
}

impl Entry {
    fn shape(&self) -> &[usize] {
        match self {
            Self::File(entry) => &entry.shape,
            Self::Gguf(_, shape) => shape,
            Self::Held(tensor) => tensor.dims(),
        }
    }
}

impl Weights {
    /// Reads the headers of model.safetensors, or of the files that model.safetensors.index.json lists. Of a GGUF file
    /// they are read already.
    ///
    /// # Errors
    /// If there are neither, a file is unreadable or cut short, or a file lacks a tensor that the index puts there.
    pub fn open(source: &Source) -> Result<Self> {
        let mut entries = BTreeMap::new();
        let place;
        if let Source::Random(_) = source {
            place = source.place();
        } else if let Source::Gguf(gguf) = source {
            place = source.place();
            let entry = |(name, shape): (&str, &[usize])| {
                (name.to_owned(), Entry::Gguf(gguf.clone(), shape.to_vec()))
            };
            entries.extend(gguf.shapes().map(entry));
        } else if source.exists(SINGLE) {
            place = source.label(SINGLE);
            read_header(source, SINGLE, &mut entries)?;
        } else if source.exists(INDEX) {
            place = source.label(INDEX);
            let mut fields = Fields::parse(&place, &source.read(INDEX)?)?;
            let map: BTreeMap<String, String> = fields.required("weight_map")?;
            for file in map.values().collect::<BTreeSet<_>>() {
                read_header(source, file, &mut entries)?;
            }
            for (tensor, file) in map {
                match entries.get(&tensor) {
                    Some(Entry::File(entry)) if entry.file == file => {}
                    _ => {
                        return Err(LoadError::MissingTensor {
                            file: source.label(&file),
                            tensor,
                        });
                    }
                }
            }
        } else {
            return Err(LoadError::NoWeights {
                place: source.place(),
            });
        }
        Ok(Self {
            place,
            source: Some(source.clone()),
            entries,
            matrices: Precision::F32,
        })
    }

    /// Tensors that are in memory already; `place` is what errors name.
    pub fn from_tensors(
        place: impl Into<String>,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Self {
        Self {
            place: place.into(),
            source: None,
            entries: tensors
                .into_iter()
                .map(|(name, tensor)| (name, Entry::Held(tensor)))
                .collect(),
            matrices: Precision::F32,
        }
    }

    /// What errors name when no single file can be named.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether tensors are made up, so that none is there until it is taken.
    pub fn is_random(&self) -> bool {
        matches!(self.source, Some(Source::Random(_)))
    }

    /// From now on [`Self::take_matrix`] hands matrices over in this precision.
    #[must_use]
    pub fn kept_as(self, matrices: Precision) -> Self {
        Self { matrices, ..self }
    }

    /// Whether the tensor is there and not taken yet.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Shape of a tensor that is not taken yet.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(self.entries.get(&self.find(name)?)?.shape())
    }

    /// Names, as stored, and shapes of all tensors that are not taken yet, in byte-wise order of the names.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let entries = self.entries.iter();
        entries.map(|(name, entry)| (name.as_str(), entry.shape()))
    }

    /// Hands a tensor over as contiguous f32; a second call for the same name does not find it.
    ///
    /// # Errors
    /// If it is missing, has another shape or a type other than BF16, F16 and F32, or cannot be read.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        if self.is_random() {
            return random::tensor(name, shape);
        }
        let (name, entry) = self.remove(name, shape)?;
        let tensor = match entry {
            Entry::Held(tensor) => tensor,
            Entry::File(entry) => self.read(name, &entry)?,
            Entry::Gguf(gguf, _) => gguf.tensor(&name)?,
        };
        Ok(tensor.to_dtype(DType::F32)?.contiguous()?)
    }

    /// Hands a weight matrix over, contiguous and in the precision that matrices are kept in.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Tensor> {
        let matrix = self.take(name, &shape)?;
        Ok(matrix.to_dtype(self.matrices.dtype())?)
    }

    /// Hands a list of whole numbers over, stored as I64, I32 or U32, or as bytes or truth values (0 and 1). Made up, they
    /// are 0.
    ///
    /// # Errors
    /// If it is missing, has not `len` entries in one dimension or another type, or cannot be read.
    pub fn take_integers(&mut self, name: &str, len: usize) -> Result<Vec<i64>> {
        if self.is_random() {
            return Ok(vec![0; len]);
        }
        let (name, entry) = self.remove(name, &[len])?;
        let list = match entry {
            Entry::Held(tensor) => tensor.to_dtype(DType::I64)?.to_vec1()?,
            Entry::File(entry) => self.read_integers(name, &entry)?,
            Entry::Gguf(gguf, _) => {
                return Err(LoadError::IntegerDtype {
                    file: gguf.label(),
                    tensor: name,
                    got: "numbers with a fraction".into(),
                });
            }
        };
        Ok(list)
    }

    /// Drops a tensor that a checkpoint may hold although the model has no use for it, such as a tied head.
    pub fn ignore(&mut self, name: &str) {
        if let Some(found) = self.find(name) {
            self.entries.remove(&found);
        }
    }

    /// Ends the loading. Rotary tables (`rotary_emb.*`), which are computed here, may be left over.
    ///
    /// # Errors
    /// [`LoadError::UnexpectedTensors`] if other tensors were not taken.
    pub fn finish(self) -> Result<()> {
        let mut left = self
            .entries
            .iter()
            .filter(|(name, _)| !name.contains("rotary_emb."))
            .peekable();
        let Some((_, first)) = left.peek() else {
            return Ok(());
        };
        let file = self.label(first);
        let names: Vec<&str> = left.map(|(name, _)| name.as_str()).collect();
        let mut tensors = names[..names.len().min(8)].join(", ");
        if names.len() > 8 {
            tensors.push_str(&format!(" and {} more", names.len() - 8));
        }
        Err(LoadError::UnexpectedTensors { file, tensors })
    }

    fn find(&self, name: &str) -> Option<String> {
        let other = match name.strip_prefix(PREFIX) {
            Some(bare) => bare.to_owned(),
            None => format!("{PREFIX}{name}"),
        };
        [name.to_owned(), other]
            .into_iter()
            .find(|name| self.entries.contains_key(name))
    }

    /// The entry of a name, which is then taken.
    fn remove(&mut self, name: &str, shape: &[usize]) -> Result<(String, Entry)> {
        let found = self
            .find(name)
            .and_then(|found| self.entries.remove_entry(&found));
        let Some((name, entry)) = found else {
            return Err(LoadError::MissingTensor {
                file: self.place.clone(),
                tensor: name.to_owned(),
            });
        };
        let got = entry.shape();
        if got != shape {
            return Err(LoadError::Shape {
                file: self.label(&entry),
                got: got.to_vec(),
                tensor: name,
                want: shape.to_vec(),
            });
        }
        Ok((name, entry))
    }

    fn source(&self) -> &Source {
        self.source
            .as_ref()
            .expect("file entries are only made by `open`, which keeps the source")
    }

    fn read_integers(&self, name: String, entry: &FileEntry) -> Result<Vec<i64>> {
        let source = self.source();
        let bytes = source.read_range(&entry.file, entry.start, entry.len)?;
        let list = match entry.dtype {
            Dtype::I64 => whole(&bytes, i64::from_le_bytes),
            Dtype::I32 => whole(&bytes, |b| i64::from(i32::from_le_bytes(b))),
            Dtype::U32 => whole(&bytes, |b| i64::from(u32::from_le_bytes(b))),
            Dtype::U8 | Dtype::BOOL => bytes.iter().map(|b| i64::from(*b)).collect(),
            other => {
                return Err(LoadError::IntegerDtype {
                    file: source.label(&entry.file),
                    tensor: name,
                    got: format!("{other:?}"),
                });
            }
        };
        Ok(list)
    }

    fn read(&self, name: String, entry: &FileEntry) -> Result<Tensor> {
        let source = self.source();
        let dtype = match entry.dtype {
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            other => {
                return Err(LoadError::Dtype {
                    file: source.label(&entry.file),
                    tensor: name,
                    got: format!("{other:?}"),
                });
            }
        };
        let bytes = source.read_range(&entry.file, entry.start, entry.len)?;
        let tensor = Tensor::from_raw_buffer(&bytes, dtype, &entry.shape, &Device::Cpu)?;
        Ok(tensor)
    }

    fn label(&self, entry: &Entry) -> String {
        match (entry, &self.source) {
            (Entry::File(entry), Some(source)) => source.label(&entry.file),
            _ => self.place.clone(),
        }
    }
}

fn whole<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> i64) -> Vec<i64> {
    let (numbers, _) = bytes.as_chunks();
    numbers.iter().map(|n| number(*n)).collect()
}

fn read_header(source: &Source, file: &str, entries: &mut BTreeMap<String, Entry>) -> Result<()> {
    let broken = |why: String| LoadError::BrokenWeights {
        file: source.label(file),
        why,
    };
    let total = source.len_bytes(file)?;
    if total < HEADER_LEN_BYTES {
        return Err(broken(format!("{total} bytes hold no header")));
    }
    let mut length = [0; HEADER_LEN_BYTES as usize];
    length.copy_from_slice(&source.read_range(file, 0, HEADER_LEN_BYTES as usize)?);
    let header_len = u64::from_le_bytes(length);
    if header_len > MAX_HEADER_BYTES || HEADER_LEN_BYTES + header_len > total {
        return Err(broken(format!(
            "its header wants {header_len} bytes, the file has {total}"
        )));
    }
    let header = source.read_range(file, HEADER_LEN_BYTES, header_len as usize)?;
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|e| broken(format!("its header does not parse: {e}")))?;
    let data_start = HEADER_LEN_BYTES + header_len;
    let data_len = total - data_start;
    if metadata.data_len() as u64 != data_len {
        return Err(broken(format!(
            "its header describes {} bytes of data, the file has {data_len}",
            metadata.data_len()
        )));
    }
    let infos: BTreeMap<String, _> = metadata.tensors().into_iter().collect();
    for (name, info) in infos {
        let (start, end) = info.data_offsets;
        let wanted = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize() / 8, |bytes, dim| {
                bytes.checked_mul(*dim)
            });
        let len = end.checked_sub(start);
        if end as u64 > data_len || len.is_none() || len != wanted {
            return Err(broken(format!(
                "tensor {name:?} of shape {:?} lies at bytes {start}..{end}",
                info.shape
            )));
        }
        let entry = Entry::File(FileEntry {
            file: file.to_owned(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            start: data_start + start as u64,
            len: end - start,
        });
        if entries.insert(name.clone(), entry).is_some() {
            return Err(broken(format!("tensor {name:?} is in an earlier file too")));
        }
    }
    Ok(())
}
