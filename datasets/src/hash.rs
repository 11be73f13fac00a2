//! Content hashes: a file is the pinned one or it is refused.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

/// SHA-256 of `bytes` as 64 lower-case hex digits.
pub fn sha256_bytes(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// SHA-256 of a file's content as 64 lower-case hex digits, read in pieces.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub fn sha256_file(path: &Path) -> Result<String> {
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let mut file = std::fs::File::open(path).map_err(io)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0u8; 1 << 16];
    loop {
        match file.read(&mut piece).map_err(io)? {
            0 => return Ok(hex(hasher.finalize().as_slice())),
            n => hasher.update(&piece[..n]),
        }
    }
}

/// A file and the content it must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// Where the file lies.
    pub path: PathBuf,
    /// Wanted SHA-256 in hex, either case.
    pub sha256: String,
}

impl Pinned {
    /// Hashes the file and compares.
    ///
    /// # Errors
    /// [`Error::Hash`] if the content differs, [`Error::Io`] if it cannot be read.
    pub fn check(&self) -> Result<()> {
        let got = sha256_file(&self.path)?;
        if got.eq_ignore_ascii_case(&self.sha256) {
            return Ok(());
        }
        Err(Error::Hash {
            path: self.path.clone(),
            got,
            want: self.sha256.clone(),
        })
    }
}

fn hex(digest: &[u8]) -> String {
    digest
        .iter()
        .fold(String::with_capacity(64), |mut out, byte| {
            write!(out, "{byte:02x}").expect("writing to a String never fails");
            out
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_hash_of_abc_is_the_published_one_from_bytes_and_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(sha256_bytes(b"abc"), ABC);
        assert_eq!(sha256_file(&path).unwrap(), ABC);
        Pinned {
            path,
            sha256: ABC.to_uppercase(),
        }
        .check()
        .unwrap();
    }

    #[test]
    fn another_content_is_refused_with_file_got_and_wanted_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words.txt");
        std::fs::write(&path, "abd").unwrap();
        let error = Pinned {
            path,
            sha256: ABC.into(),
        }
        .check()
        .unwrap_err()
        .to_string();
        for part in ["words.txt", ABC, &sha256_bytes(b"abd")] {
            assert!(error.contains(part), "{error}");
        }
    }
}
