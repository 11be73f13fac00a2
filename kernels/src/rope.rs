//! Rotary position embedding with half-split pairs.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, dims2, dims3, slice_f32};

const OP: &str = "rope";

/// Rotates the pair (i, i + D/2) of every head of row n by the angle of position `positions[n]`.
///
/// `x`: `[N, heads, D]` f32; `cos`, `sin`: `[max_pos, D/2]` f32; one position per row. Returns the shape of `x`.
/// This is the pairing that checkpoints in the Llama and Qwen layout expect ("rotate half").
///
/// # Errors
/// If an input is not f32, the shapes do not fit each other, D is odd, or a position is `max_pos` or more.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, positions: &[u32]) -> Result<Tensor> {
    let (heads, d) = shape(x, cos, sin, positions)?;
    let (x, cos, sin) = (
        dense_f32(OP, "x", x)?,
        dense_f32(OP, "cos", cos)?,
        dense_f32(OP, "sin", sin)?,
    );
    let positions = positions.to_vec();
    x.apply_op3(
        &cos,
        &sin,
        Rope {
            positions,
            heads,
            d,
        },
    )
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

struct Rope {
    positions: Vec<u32>,
    heads: usize,
    d: usize,
}

impl CustomOp3 for Rope {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &Layout,
        cos: &CpuStorage,
        cos_at: &Layout,
        sin: &CpuStorage,
        sin_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = slice_f32(OP, x, x_at)?;
        let (cos, sin) = (slice_f32(OP, cos, cos_at)?, slice_f32(OP, sin, sin_at)?);
        let half = self.d / 2;
        let mut out = x.to_vec();
        if half > 0 && self.heads > 0 {
            for (row, &position) in out
                .chunks_exact_mut(self.heads * self.d)
                .zip(&self.positions)
            {
                let angles = position as usize * half..(position as usize + 1) * half;
                rotate(row, &cos[angles.clone()], &sin[angles]);
            }
        }
        Ok((CpuStorage::F32(out), x_at.shape().clone()))
    }
}

/// Rotates every head of one row; the angles belong to the pairs of a head.
fn rotate(row: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in row.chunks_exact_mut(2 * cos.len()) {
        let (first, second) = head.split_at_mut(cos.len());
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}
