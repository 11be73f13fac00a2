//! Root-mean-square normalisation of the last dimension.

use candle_core::{Result, Tensor, bail};

use crate::input::dense_f32;
use crate::reference;

const OP: &str = "rms_norm";

/// `x / sqrt(mean(x^2) + eps) * w` over the last dimension: `x` `[.., H]` f32, `w` `[H]` f32 -> the shape of `x`.
///
/// # Errors
/// If an input is not f32, or `w` is not one vector as long as the last dimension of `x`.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32) -> Result<Tensor> {
    let (x, w) = (dense_f32(OP, "x", x)?, dense_f32(OP, "w", w)?);
    reference::rms_norm(&x, &w, eps)
}

/// The length of a row.
pub(crate) fn row_len(x: &Tensor, w: &Tensor) -> Result<usize> {
    let Some(&hidden) = x.dims().last() else {
        bail!("{OP}: x is a scalar, must have a last dimension to normalise");
    };
    if w.dims() != [hidden] {
        bail!(
            "{OP}: w has shape {:?}, must be [{hidden}] for x of shape {:?}",
            w.dims(),
            x.dims()
        );
    }
    Ok(hidden)
}
