//! Files that appear whole or not at all.

use crate::error::{Error, Result};
use crate::params::Params;
use candle_core::{DType, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Writes with ordinary permissions beside the file, then renames, so that a kill leaves the old file or the new one.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    make_parent(path)?;
    let part = part_of(path);
    fs::write(&part, bytes).map_err(Error::io(&part))?;
    fs::rename(&part, path).map_err(Error::io(path))
}

/// Writes a JSON value, indented, with a line end.
pub(crate) fn write_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).map_err(Error::json(path))?;
    text.push('\n');
    write_atomically(path, text.as_bytes())
}

/// Trained tensors in bf16, as checkpoints are published.
pub(crate) fn save_weights(path: &Path, params: &Params) -> Result<()> {
    save_drafter(path, &params.snapshot(DType::BF16)?)
}

/// Tensors as they are, in a file that says as published ones do that they are PyTorch's.
pub(crate) fn save_drafter(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    save_tensors(path, tensors, format)
}

/// The same for tensors, with string metadata in the header.
pub(crate) fn save_tensors(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    // The library's own writer leaves a file that only its owner may read.
    let bytes =
        safetensors::serialize(tensors, Some(metadata)).map_err(Error::safetensors(path))?;
    write_atomically(path, &bytes)
}

fn make_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(Error::io(parent)),
        None => Ok(()),
    }
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_weight_file_has_the_permissions_of_any_new_file() -> Result<()> {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let (weights, plain) = (folder.path().join("weights"), folder.path().join("plain"));
        save_tensors(&weights, &BTreeMap::new(), HashMap::new())?;
        fs::write(&plain, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&weights), mode(&plain));
        Ok(())
    }
}
