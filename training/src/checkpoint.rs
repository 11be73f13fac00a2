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
/// [`Error::ForeignCheckpoint`] if another recipe wrote it, [`Error::Weights`] if it does not fit.
pub(crate) fn load(
    path: &Path,
    params: &Params,
    fingerprint: &str,
) -> Result<Option<(AdamW, RunState)>> {
    if !path.exists() {
        return Ok(None);
    }
    let damaged = |problem: String| Error::Weights {
        path: path.to_owned(),
        name: String::new(),
        problem,
    };
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let (_, header) =
        safetensors::SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
    let state = header.metadata().as_ref().and_then(|m| m.get(STATE_KEY));
    let state = state.ok_or_else(|| damaged("file holds no run state".to_owned()))?;
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
