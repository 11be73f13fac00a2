//! Checkpoints: everything a killed run needs to go on as if nothing had happened.

use crate::data::Cursor;
use crate::error::{Error, Result};
use crate::files::save_tensors;
use crate::optim::AdamW;
use crate::params::Params;
use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// Where a run stands, apart from weights and moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunState {
    /// Which recipe wrote it.
    pub(crate) fingerprint: String,
    /// Optimiser steps done.
    pub(crate) step: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
    /// Seconds of training over all parts of the run.
    pub(crate) seconds: f64,
    /// Next training text.
    pub(crate) cursor: Cursor,
}

const STATE_KEY: &str = "run";

/// Writes weights, moments and state into one file, atomically.
pub(crate) fn save(
    path: &Path,
    params: &Params,
    optimizer: &AdamW,
    state: &RunState,
) -> Result<()> {
    let mut tensors = params.snapshot(DType::F32)?;
    for (name, moments) in &optimizer.moments {
        for (moment, values) in ["first.", "second."].iter().zip(moments) {
            let tensor = Tensor::new(values.as_slice(), &Device::Cpu)?;
            tensors.insert(format!("{moment}{name}"), tensor);
        }
    }
    let state = serde_json::to_string(state).map_err(Error::json(path))?;
    save_tensors(
        path,
        &tensors,
        HashMap::from([(STATE_KEY.to_owned(), state)]),
    )
}

/// Reads a checkpoint back; `None` if there is none.
///
/// # Errors
/// [`Error::ForeignCheckpoint`] if another recipe wrote it, [`Error::NoRunState`] or [`Error::Safetensors`] if it is no
/// checkpoint, [`Error::Weights`] if it does not fit.
pub(crate) fn load(
    path: &Path,
    params: &Params,
    fingerprint: &str,
) -> Result<Option<(AdamW, RunState)>> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let (_, header) =
        safetensors::SafeTensors::read_metadata(&bytes).map_err(Error::safetensors(path))?;
    let state = header.metadata().as_ref().and_then(|m| m.get(STATE_KEY));
    let state = state.ok_or_else(|| Error::NoRunState {
        path: path.to_owned(),
    })?;
    let state: RunState = serde_json::from_str(state).map_err(Error::json(path))?;
    if state.fingerprint != fingerprint {
        return Err(Error::ForeignCheckpoint {
            path: path.to_owned(),
        });
    }
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?;
    params.fill(&tensors, path, "")?;
    let mut optimizer = AdamW {
        step: state.step,
        ..AdamW::default()
    };
    for (name, _) in params.iter() {
        let moment = |kind: &str| -> Result<Option<Vec<f32>>> {
            match tensors.get(&format!("{kind}{name}")) {
                Some(tensor) => Ok(Some(tensor.to_vec1()?)),
                None => Ok(None),
            }
        };
        if let (Some(first), Some(second)) = (moment("first.")?, moment("second.")?) {
            optimizer.moments.insert(name.to_owned(), [first, second]);
        }
    }
    Ok(Some((optimizer, state)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_file_that_is_no_checkpoint_is_an_error_that_names_it() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.safetensors");
        let refuse = || {
            let found = load(&path, &Params::default(), "");
            found.map(|_| ()).unwrap_err().to_string()
        };
        std::fs::write(&path, "cut").unwrap();
        let cut = refuse();
        let tensor = Tensor::new(&[1f32], &Device::Cpu)?;
        save_tensors(
            &path,
            &BTreeMap::from([("norm.weight".to_owned(), tensor)]),
            HashMap::new(),
        )?;
        let stateless = refuse();
        assert!(stateless.contains("holds no run state"), "{stateless}");
        for message in [cut, stateless] {
            assert!(message.contains("checkpoint.safetensors"), "{message}");
            assert!(!message.contains("tensor \"\""), "{message}");
        }
        Ok(())
    }
}
