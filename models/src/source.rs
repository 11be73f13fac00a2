//! Where a model's files come from.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use crate::error::{LoadError, Result};
use crate::gguf::Gguf;

/// A set of files that make up one model.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory on disk.
    Dir(PathBuf),
    /// Files inside the binary.
    Embedded {
        /// How errors name the set, such as the target's id.
        name: &'static str,
        /// File names without directory, and contents.
        files: Vec<(&'static str, &'static [u8])>,
    },
    /// A GGUF file.
    Gguf(Gguf),
    /// The files of another set, but for weights, which nobody trained: of the shapes that are asked for, and the same
    /// each time.
    Random(Box<Source>),
}

impl Source {
    /// How errors name the whole set.
    pub fn place(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Embedded { name, .. } => format!("embedded {name}"),
            Self::Gguf(gguf) => gguf.label(),
            Self::Random(files) => format!("random weights for {}", files.place()),
        }
    }

    /// How errors name one file of the set.
    pub fn label(&self, file: &str) -> String {
        match self {
            Self::Dir(dir) => dir.join(file).display().to_string(),
            Self::Embedded { name, .. } => format!("embedded {name}/{file}"),
            Self::Gguf(gguf) => format!("{} as {file}", gguf.label()),
            Self::Random(files) => files.label(file),
        }
    }

    /// Whether the set has this file.
    pub fn exists(&self, file: &str) -> bool {
        match self {
            Self::Dir(dir) => dir.join(file).is_file(),
            Self::Random(files) => files.exists(file),
            Self::Embedded { .. } | Self::Gguf(_) => self.in_memory(file).is_some(),
        }
    }

    /// The whole file.
    ///
    /// # Errors
    /// [`LoadError::Read`] if it is absent or unreadable.
    pub fn read(&self, file: &str) -> Result<Vec<u8>> {
        match self {
            Self::Dir(dir) => std::fs::read(dir.join(file)).map_err(|e| self.unreadable(file, e)),
            Self::Random(files) => files.read(file),
            Self::Embedded { .. } | Self::Gguf(_) => Ok(self.held(file)?.to_vec()),
        }
    }

    /// Length of the file in bytes.
    pub(crate) fn len_bytes(&self, file: &str) -> Result<u64> {
        match self {
            Self::Dir(dir) => std::fs::metadata(dir.join(file))
                .map(|meta| meta.len())
                .map_err(|e| self.unreadable(file, e)),
            Self::Random(files) => files.len_bytes(file),
            Self::Embedded { .. } | Self::Gguf(_) => Ok(self.held(file)?.len() as u64),
        }
    }

    /// `len` bytes from `start` on, so that a weight file larger than memory can be read tensor by tensor.
    pub(crate) fn read_range(&self, file: &str, start: u64, len: usize) -> Result<Vec<u8>> {
        let too_short = || {
            let end = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            self.unreadable(file, end)
        };
        match self {
            Self::Dir(dir) => {
                let mut bytes = vec![0; len];
                let mut reader =
                    File::open(dir.join(file)).map_err(|e| self.unreadable(file, e))?;
                reader
                    .seek(SeekFrom::Start(start))
                    .and_then(|_| reader.read_exact(&mut bytes))
                    .map_err(|e| self.unreadable(file, e))?;
                Ok(bytes)
            }
            Self::Random(files) => files.read_range(file, start, len),
            Self::Embedded { .. } | Self::Gguf(_) => {
                let start = usize::try_from(start).ok().ok_or_else(too_short)?;
                let end = start.checked_add(len).ok_or_else(too_short)?;
                let bytes = self.held(file)?.get(start..end);
                Ok(bytes.ok_or_else(too_short)?.to_vec())
            }
        }
    }

    fn held(&self, file: &str) -> Result<&[u8]> {
        self.in_memory(file)
            .ok_or_else(|| self.unreadable(file, std::io::ErrorKind::NotFound.into()))
    }

    fn in_memory(&self, file: &str) -> Option<&[u8]> {
        match self {
            Self::Dir(_) | Self::Random(_) => None,
            Self::Embedded { files, .. } => {
                let found = files.iter().find(|(name, _)| *name == file);
                found.map(|(_, bytes)| *bytes)
            }
            Self::Gguf(gguf) => {
                let mut files = gguf.files();
                files.find_map(|(name, bytes)| (name == file).then_some(bytes))
            }
        }
    }

    fn unreadable(&self, file: &str, source: std::io::Error) -> LoadError {
        LoadError::Read {
            file: self.label(file),
            source,
        }
    }
}
