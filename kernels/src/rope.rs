//! Rotary position embedding with half-split pairs.

use candle_core::{Result, Tensor, bail};

use crate::input::{dense_f32, dims2, dims3};
use crate::reference;

const OP: &str = "rope";

/// Rotates the pair (i, i + D/2) of every head of row n by the angle of position `positions[n]`.
///
/// `x`: `[N, heads, D]` f32; `cos`, `sin`: `[max_pos, D/2]` f32; one position per row. Returns the shape of `x`.
/// This is the pairing that checkpoints in the Llama and Qwen layout expect ("rotate half").
///
/// # Errors
/// If an input is not f32, the shapes do not fit each other, D is odd, or a position is `max_pos` or more.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, positions: &[u32]) -> Result<Tensor> {
    let (x, cos, sin) = (
        dense_f32(OP, "x", x)?,
        dense_f32(OP, "cos", cos)?,
        dense_f32(OP, "sin", sin)?,
    );
    reference::rope(&x, &cos, &sin, positions)
}

/// Checks everything and returns (heads, D).
pub(crate) fn shape(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    positions: &[u32],
) -> Result<(usize, usize)> {
    let (n, heads, d) = dims3(OP, "x", x)?;
    let (max_pos, half) = dims2(OP, "cos", cos)?;
    if half * 2 != d {
        bail!("{OP}: cos has {half} columns, must have half of the head dimension {d} of x");
    }
    if sin.dims() != cos.dims() {
        bail!(
            "{OP}: sin has shape {:?}, must have that of cos, {:?}",
            sin.dims(),
            cos.dims()
        );
    }
    if positions.len() != n {
        bail!("{OP}: {} positions for {n} rows of x", positions.len());
    }
    if let Some(position) = positions
        .iter()
        .find(|&&position| position as usize >= max_pos)
    {
        bail!("{OP}: position {position} is outside the table of {max_pos} positions");
    }
    Ok((heads, d))
}
