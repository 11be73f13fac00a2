//! The frozen target's states of training texts, kept in a file: a text's states cost a pass of the target once, not in
//! every epoch of every drafter.

use crate::error::{Error, Result};
use crate::lm::CausalLm;
use crate::params::fnv1a;
use candle_core::{DType, Device, Tensor};
use decode::{Feed, Keep, LayerId, Slot, Target as _};
use models::{Decoder, DecoderOptions, Precision, Source};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Texts that go through the target together where states are missing.
const TOGETHER: usize = 4;
/// Bytes before a text's ids and states: how many ids, and a checksum of both.
const HEADER: usize = 16;

/// Where states come from.
pub(crate) enum States {
    /// A pass of the target that is trained with, every time.
    Live,
    /// A file, and the target's decoder for what it lacks.
    Kept(Box<Mutex<Kept>>),
}

/// What is kept of which target.
pub(crate) struct KeptStates<'a> {
    /// The target's folder.
    pub(crate) target: &'a Path,
    /// Where the file goes.
    pub(crate) folder: &'a Path,
    /// Layers whose outputs are kept besides the last one's.
    pub(crate) layers: &'a [usize],
    /// How the target's matrices are kept while it reads.
    pub(crate) precision: Precision,
    /// Longest text, in tokens.
    pub(crate) longest: usize,
}

impl States {
    /// Opens the file of this target and these layers, or begins it.
    ///
    /// # Errors
    /// If the file cannot be read or another run holds it.
    pub(crate) fn kept(of: &KeptStates<'_>) -> Result<Self> {
        Ok(Self::Kept(Box::new(Mutex::new(Kept::open(of)?))))
    }

    /// Has what a file lacks of these texts computed, by all threads of the caller.
    ///
    /// # Errors
    /// If the target fails, or the file cannot be written.
    pub(crate) fn prepare(&self, ids: &[u32], texts: &[Range<usize>]) -> Result<()> {
        match self {
            Self::Live => Ok(()),
            Self::Kept(kept) => held(kept).complete(ids, texts),
        }
    }

    /// Final normed states `[N, H]` of `lm` and the outputs `[N, H]` of the layers in `taps`, in that order, without
    /// gradient: those of [`CausalLm::states`], or what the file has of them in bf16.
    ///
    /// # Errors
    /// As [`CausalLm::states`]; if a layer is not kept, or the file cannot be read or written.
    pub(crate) fn of(
        &self,
        lm: &CausalLm,
        ids: &[u32],
        texts: &[Range<usize>],
        taps: &[usize],
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mut kept = match self {
            Self::Live => return lm.states(ids, texts, taps),
            Self::Kept(kept) => held(kept),
        };
        kept.complete(ids, texts)?;
        let texts: Vec<Tensor> = texts
            .iter()
            .map(|text| kept.read(&ids[text.clone()]))
            .collect::<Result<_>>()?;
        let places = taps.iter().map(|tap| kept.place(*tap));
        let places: Vec<usize> = places.collect::<Result<_>>()?;
        let last = kept.layers.len() - 1;
        // Others may read while these are taken apart.
        drop(kept);
        let layer = |at: usize| -> Result<Tensor> {
            let rows: Vec<Tensor> = texts
                .iter()
                .map(|t| t.get(at))
                .collect::<candle_core::Result<_>>()?;
            Ok(Tensor::cat(&rows, 0)?.to_dtype(DType::F32)?)
        };
        let taps = places.into_iter().map(&layer).collect::<Result<_>>()?;
        let last = layer(last)?;
        Ok((lm.normed(&last)?.detach(), taps))
    }
}

/// A panic while it is held ends the run; what it left half written is not in its list yet.
fn held(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of states: for each text its ids and `[layers, ids, H]` bf16.
pub(crate) struct Kept {
    path: PathBuf,
    file: File,
    /// Where the header of each text stands, by the hash of its ids.
    found: HashMap<u64, u64>,
    end: u64,
    /// The last layer comes last.
    layers: Vec<usize>,
    hidden: usize,
    source: Source,
    options: DecoderOptions,
    /// Loaded when a text is missing.
    decoder: Option<Decoder>,
}

impl Kept {
    fn open(of: &KeptStates<'_>) -> Result<Self> {
        let source = Source::Dir(of.target.to_owned());
        let config = models::DecoderConfig::load(&source)?;
        let last = config.n_layers - 1;
        let mut layers: Vec<usize> = of.layers.to_vec();
        layers.retain(|layer| *layer != last);
        layers.push(last);
        let weights = datasets::sha256_file(&of.target.join("model.safetensors"))?;
        let what = format!("{weights} {layers:?} {:?}", of.precision);
        let name = format!("states-{:016x}.bin", fnv1a(what.as_bytes()));
        fs::create_dir_all(of.folder).map_err(Error::io(of.folder))?;
        let path = of.folder.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(Error::io(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Held { path }),
            Err(TryLockError::Error(source)) => return Err(Error::Io { path, source }),
        }
        let mut kept = Self {
            path,
            file,
            found: HashMap::new(),
            end: 0,
            layers,
            hidden: config.hidden,
            source,
            options: DecoderOptions {
                slots: TOGETHER,
                capacity: of.longest.min(config.max_positions),
                precision: of.precision,
            },
            decoder: None,
        };
        kept.scan()?;
        Ok(kept)
    }

    /// Finds all texts; what a kill cut short is dropped.
    fn scan(&mut self) -> Result<()> {
        let size = self.file.metadata().map_err(Error::io(&self.path))?.len();
        while self.end + HEADER as u64 <= size {
            let (ids, _) = self.header(self.end)?;
            let next = self.end + self.bytes(ids.len()) as u64;
            if ids.is_empty() || next > size {
                break;
            }
            self.found.insert(key(&ids), self.end);
            self.end = next;
        }
        self.file.set_len(self.end).map_err(Error::io(&self.path))
    }

    /// Bytes of a text of `n` ids.
    fn bytes(&self, n: usize) -> usize {
        HEADER + n * 4 + self.layers.len() * n * self.hidden * 2
    }

    /// Ids and checksum of the text at `at`; no ids where the file ends inside them.
    fn header(&mut self, at: u64) -> Result<(Vec<u32>, u64)> {
        let failed = Error::io(&self.path);
        let mut read = || -> std::io::Result<(Vec<u32>, u64)> {
            let mut fixed = [0u8; HEADER];
            self.file.seek(SeekFrom::Start(at))?;
            self.file.read_exact(&mut fixed)?;
            let (count, sum) = fixed.split_at(8);
            let (count, sum) = (number(count), number(sum));
            let left = self.file.metadata()?.len() - at - HEADER as u64;
            if count > left / 4 {
                return Ok((Vec::new(), sum));
            }
            let mut ids = vec![0u8; count as usize * 4];
            self.file.read_exact(&mut ids)?;
            let ids = ids.chunks_exact(4).map(|b| number(b) as u32);
            Ok((ids.collect(), sum))
        };
        read().map_err(failed)
    }

    /// Place of a layer's output among those that are kept.
    fn place(&self, layer: usize) -> Result<usize> {
        let found = self.layers.iter().position(|kept| *kept == layer);
        found.ok_or_else(|| Error::Weights {
            path: self.path.clone(),
            name: format!("output of layer {layer}"),
            problem: "is not kept; name the layer in answers.keep_states".into(),
        })
    }

    /// `[layers, ids, H]` bf16.
    fn read(&mut self, ids: &[u32]) -> Result<Tensor> {
        let at = self.found[&key(ids)];
        let (found, sum) = self.header(at)?;
        let mut bytes = vec![0u8; self.bytes(ids.len()) - HEADER - ids.len() * 4];
        self.file
            .read_exact(&mut bytes)
            .map_err(Error::io(&self.path))?;
        if found != ids || checksum(ids, &bytes) != sum {
            return Err(Error::Weights {
                path: self.path.clone(),
                name: format!("states at byte {at}"),
                problem: "are damaged; delete the file, it is made again".into(),
            });
        }
        let shape = [self.layers.len(), ids.len(), self.hidden];
        Ok(Tensor::from_raw_buffer(
            &bytes,
            DType::BF16,
            &shape,
            &Device::Cpu,
        )?)
    }

    /// Has the target read the texts that the file lacks.
    fn complete(&mut self, ids: &[u32], texts: &[Range<usize>]) -> Result<()> {
        let missing: Vec<&[u32]> = texts
            .iter()
            .map(|text| &ids[text.clone()])
            .filter(|text| !self.found.contains_key(&key(text)))
            .collect();
        for texts in missing.chunks(TOGETHER) {
            self.compute(texts)?;
        }
        Ok(())
    }

    fn compute(&mut self, texts: &[&[u32]]) -> Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => self
                .decoder
                .insert(Decoder::load(&self.source, self.options)?),
        };
        let feed =
            |(slot, text): (usize, &&'_ [u32])| -> (Slot, Vec<u32>) { (Slot(slot), text.to_vec()) };
        let fed: Vec<(Slot, Vec<u32>)> = texts.iter().enumerate().map(feed).collect();
        let feeds: Vec<Feed<'_>> = fed
            .iter()
            .map(|(slot, tokens)| Feed {
                slot: *slot,
                tokens,
                parents: None,
                logits: Keep::Last,
            })
            .collect();
        let layers: Vec<LayerId> = self.layers.iter().copied().map(LayerId).collect();
        let taps = decoder.forward(&feeds, &layers)?.taps;
        for (slot, _) in &fed {
            decoder.keep(*slot, 0, &[])?;
        }
        // [layers, N, H]
        let taps = Tensor::stack(&taps, 0)?.to_dtype(DType::BF16)?;
        let mut start = 0;
        for text in texts {
            let own = taps.narrow(1, start, text.len())?.contiguous()?;
            start += text.len();
            self.append(text, &own)?;
        }
        Ok(())
    }

    fn append(&mut self, ids: &[u32], states: &Tensor) -> Result<()> {
        let mut values = Vec::with_capacity(self.bytes(ids.len()));
        states.write_bytes(&mut values)?;
        let mut bytes = Vec::with_capacity(self.bytes(ids.len()));
        bytes.extend((ids.len() as u64).to_le_bytes());
        bytes.extend(checksum(ids, &values).to_le_bytes());
        bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(values);
        self.file
            .seek(SeekFrom::Start(self.end))
            .and_then(|_| self.file.write_all(&bytes))
            .map_err(Error::io(&self.path))?;
        self.found.insert(key(ids), self.end);
        self.end += bytes.len() as u64;
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn key(ids: &[u32]) -> u64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    fnv1a(&bytes)
}

fn checksum(ids: &[u32], states: &[u8]) -> u64 {
    // Eight bytes at a time: a gigabyte of states is read in every pass.
    let words = states.chunks(8).map(number);
    words.fold(key(ids), |sum, word| {
        (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::relative_difference;
    use crate::testing::{SMALL, small};
    use std::slice;

    /// A small target in a folder, its model, and states kept beside it.
    fn opened(folder: &Path, layers: &[usize]) -> Result<(CausalLm, States)> {
        let lm = CausalLm::load(folder)?;
        let states = States::kept(&KeptStates {
            target: folder,
            folder,
            layers,
            precision: Precision::F32,
            longest: 8,
        })?;
        Ok((lm, states))
    }

    #[test]
    fn kept_states_are_the_targets_rounded_to_bf16_whoever_reads_them() -> Result<()> {
        for family in SMALL {
            let folder = tempfile::tempdir().unwrap();
            CausalLm::new(&small(family), 5)?.save(folder.path(), 2, 0)?;
            let ids = [1u32, 5, 2, 7, 7, 0, 3, 9, 4];
            let texts = [0..4, 4..9];
            for _ in 0..2 {
                let (lm, states) = opened(folder.path(), &[0])?;
                let (hidden, taps) = states.of(&lm, &ids, &texts, &[1, 0])?;
                let (want, want_taps) = lm.states(&ids, &texts, &[1, 0])?;
                // bf16 keeps eight bits.
                assert!(relative_difference(&hidden, &want)? < 8e-3, "{family:?}");
                for (got, want) in taps.iter().zip(&want_taps) {
                    assert!(relative_difference(got, want)? < 8e-3, "{family:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_text_is_read_by_the_target_once() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        CausalLm::new(&small(SMALL[0]), 5)?.save(folder.path(), 2, 0)?;
        let ids = [1u32, 5, 2, 7, 7, 0, 3];
        let (lm, states) = opened(folder.path(), &[])?;
        let first = states
            .of(&lm, &ids, slice::from_ref(&(0..4)), &[1])?
            .0
            .to_vec2::<f32>()?;
        let States::Kept(kept) = &states else {
            panic!("they are kept");
        };
        let size = kept.lock().unwrap().end;
        kept.lock().unwrap().decoder = None;
        let again = states
            .of(&lm, &ids, slice::from_ref(&(0..4)), &[1])?
            .0
            .to_vec2::<f32>()?;
        assert_eq!(first, again);
        assert!(kept.lock().unwrap().decoder.is_none());
        states.of(&lm, &ids, &[0..4, 4..7], &[1])?;
        assert!(kept.lock().unwrap().end > size);
        let unknown = states
            .of(&lm, &ids, slice::from_ref(&(0..4)), &[0])
            .unwrap_err();
        assert!(unknown.to_string().contains("answers.keep_states"));
        Ok(())
    }

    #[test]
    fn a_cut_text_is_dropped_a_damaged_one_refused_and_a_second_writer_too() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        CausalLm::new(&small(SMALL[0]), 5)?.save(folder.path(), 2, 0)?;
        let ids = [1u32, 5, 2, 7, 7, 0, 3];
        let (path, first) = {
            let (lm, states) = opened(folder.path(), &[])?;
            states.of(&lm, &ids, &[0..4, 4..7], &[])?;
            let held = opened(folder.path(), &[]).err().unwrap();
            assert!(matches!(held, Error::Held { .. }), "{held}");
            let States::Kept(kept) = &states else {
                panic!("they are kept");
            };
            let kept = kept.lock().unwrap();
            (kept.path.clone(), kept.bytes(4))
        };
        let mut bytes = fs::read(&path).unwrap();
        bytes.pop();
        bytes[first - 1] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let (lm, states) = opened(folder.path(), &[])?;
        states.of(&lm, &ids, slice::from_ref(&(4..7)), &[])?;
        let damaged = states
            .of(&lm, &ids, slice::from_ref(&(0..4)), &[])
            .unwrap_err();
        assert!(damaged.to_string().contains("delete the file"), "{damaged}");
        Ok(())
    }
}
