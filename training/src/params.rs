//! Named trainable tensors.

use crate::error::{Error, Result};
use candle_core::{DType, Device, Tensor, Var, safetensors};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::path::Path;

/// How a new tensor is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Init {
    /// Ones: norm weights.
    One,
    /// Normal with this standard deviation.
    Normal(f64),
}

/// The trained tensors of a network under their checkpoint names, f32 on the CPU.
#[derive(Default)]
pub(crate) struct Params {
    vars: BTreeMap<String, Var>,
}

impl Params {
    /// Adds a tensor whose values depend on `seed` and its name alone.
    ///
    /// # Errors
    /// If the tensor cannot be made.
    pub(crate) fn add(
        &mut self,
        name: &str,
        dims: &[usize],
        init: Init,
        seed: u64,
    ) -> Result<Tensor> {
        let count = dims.iter().product();
        let values = match init {
            Init::One => vec![1f32; count],
            Init::Normal(std) => normals(count, std, name, seed),
        };
        self.insert(name, &Tensor::from_vec(values, dims, &Device::Cpu)?)
    }

    /// Adds a tensor with given values, converted to f32.
    ///
    /// # Errors
    /// If the tensor cannot be copied.
    pub(crate) fn insert(&mut self, name: &str, values: &Tensor) -> Result<Tensor> {
        let var = Var::from_tensor(&values.to_dtype(DType::F32)?.contiguous()?)?;
        let tensor = var.as_tensor().clone();
        self.vars.insert(name.to_owned(), var);
        Ok(tensor)
    }

    /// All tensors in name order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.vars.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// The tensor of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Var> {
        self.vars.get(name)
    }

    /// How many values are trained.
    pub(crate) fn count(&self) -> usize {
        self.vars.values().map(|v| v.elem_count()).sum()
    }

    /// Overwrites every tensor from a safetensors file.
    ///
    /// # Errors
    /// [`Error::Weights`] if one is missing or has another shape.
    pub(crate) fn load(&self, path: &Path) -> Result<()> {
        self.fill(&safetensors::load(path, &Device::Cpu)?, path, "")
    }

    /// Overwrites every tensor `name` from `source[prefix + name]`; `path` is for error messages.
    pub(crate) fn fill(
        &self,
        source: &std::collections::HashMap<String, Tensor>,
        path: &Path,
        prefix: &str,
    ) -> Result<()> {
        for (name, var) in &self.vars {
            let problem = |problem: String| Error::Weights {
                path: path.to_owned(),
                name: format!("{prefix}{name}"),
                problem,
            };
            let tensor = source
                .get(&format!("{prefix}{name}"))
                .ok_or_else(|| problem("is missing".to_owned()))?;
            if tensor.dims() != var.dims() {
                let (got, want) = (tensor.dims(), var.dims());
                return Err(problem(format!("is {got:?}, the config wants {want:?}")));
            }
            var.set(&tensor.to_dtype(DType::F32)?)?;
        }
        Ok(())
    }

    /// Every tensor in `dtype`, by name.
    ///
    /// # Errors
    /// If a conversion fails.
    pub(crate) fn snapshot(&self, dtype: DType) -> Result<BTreeMap<String, Tensor>> {
        self.vars
            .iter()
            .map(|(name, var)| Ok((name.clone(), var.as_tensor().detach().to_dtype(dtype)?)))
            .collect()
    }
}

/// Box-Muller draws from a stream that belongs to the name.
fn normals(count: usize, std: f64, name: &str, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ fnv1a(name.as_bytes()));
    (0..count)
        .map(|_| {
            let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
            (std * radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()) as f32
        })
        .collect()
}

/// FNV-1a, 64 bit: a stable hash for seeds and recipe fingerprints.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
