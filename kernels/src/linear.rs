//! Product of activation rows with a weight matrix as checkpoints store it.

use candle_core::{Result, Tensor, bail};

use crate::input::{dense_f32, dims2};
use crate::reference;

const OP: &str = "linear";

/// `x` times the transpose of `w`: `x` `[N, K]` f32, `w` `[O, K]` f32 (row-major, as in checkpoints) -> `[N, O]` f32.
///
/// Each output element is summed in the same order whatever N, O and the number of threads are.
///
/// # Errors
/// If an input is not f32 with two dimensions, or the two K differ.
pub fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let (x, w) = (dense_f32(OP, "x", x)?, dense_f32(OP, "w", w)?);
    reference::linear(&x, &w)
}

/// Sizes of one product: rows, inner length, output columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearShape {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) o: usize,
}

pub(crate) fn shape(x: &Tensor, w: &Tensor) -> Result<LinearShape> {
    let (n, k) = dims2(OP, "x", x)?;
    let (o, w_k) = dims2(OP, "w", w)?;
    if k != w_k {
        bail!("{OP}: x is [{n}, {k}] but w is [{o}, {w_k}]: the second dimensions must be equal");
    }
    Ok(LinearShape { n, k, o })
}
