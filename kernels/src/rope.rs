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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Result, Tensor};

    use super::rope;
    use crate::reference;
    use crate::testing::{
        ROUNDING, assert_refused, assert_within, bits, on_every_device, random, values,
    };

    #[test]
    fn the_op_agrees_with_the_reference() {
        on_every_device(|dev| {
            for (heads, d) in [(1, 2), (3, 10), (2, 64), (4, 36)] {
                let x = random(&[5, heads, d], 1, dev)?;
                let (cos, sin) = (random(&[9, d / 2], 2, dev)?, random(&[9, d / 2], 3, dev)?);
                let positions = [0, 8, 3, 3, 7];
                let want = reference::rope(&x, &cos, &sin, &positions)?;
                // Two products and a sum, each value below two, and the rounding of the reference.
                assert_within(&rope(&x, &cos, &sin, &positions)?, &want, |_| {
                    2.0 * 4.0 * ROUNDING
                })?;
            }
            Ok(())
        });
    }

    #[test]
    fn the_first_half_of_a_head_is_paired_with_the_second() {
        on_every_device(|dev| {
            let x = Tensor::new(&[[[1f32, 2., 3., 4.]]], dev)?;
            // Position 1 turns the first pair by a right angle and the second not at all.
            let (cos, sin) = (
                Tensor::new(&[[9f32, 9.], [0., 1.]], dev)?,
                Tensor::new(&[[9f32, 9.], [1., 0.]], dev)?,
            );
            assert_eq!(values(&rope(&x, &cos, &sin, &[1])?)?, [-3., 2., 1., 4.]);
            Ok(())
        });
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_batch_and_any_view() {
        on_every_device(|dev| {
            let x = random(&[33, 3, 20], 4, dev)?;
            let (cos, sin) = (
                random(&[50, 10], 5, dev)?,
                random(&[60, 10], 6, dev)?.narrow(0, 10, 50)?,
            );
            let positions: Vec<u32> = (0..33).map(|row| row * 7 % 50).collect();
            let together = bits(&rope(&x, &cos, &sin, &positions)?)?;
            let alone: Result<Vec<Vec<u32>>> = (0..33)
                .map(|row| {
                    bits(&rope(
                        &x.narrow(0, row, 1)?,
                        &cos,
                        &sin.copy()?,
                        &positions[row..=row],
                    )?)
                })
                .collect();
            assert_eq!(together, alone?.concat());
            Ok(())
        });
    }

    #[test]
    fn no_rows_give_no_rows() {
        on_every_device(|dev| {
            let angles = Tensor::zeros((3, 2), DType::F32, dev)?;
            let x = Tensor::zeros((0, 5, 4), DType::F32, dev)?;
            assert_eq!(rope(&x, &angles, &angles, &[])?.dims(), [0, 5, 4]);
            Ok(())
        });
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused_by_name() {
        on_every_device(|dev| {
            let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
            let (x, angles) = (make(&[2, 3, 4])?, make(&[6, 2])?);
            assert_refused(
                rope(&x, &angles, &angles, &[0, 6]),
                "rope: position 6 is outside the table of 6",
            );
            assert_refused(
                rope(&x, &angles, &angles, &[0]),
                "rope: 1 positions for 2 rows",
            );
            assert_refused(
                rope(&x, &angles, &make(&[5, 2])?, &[0, 1]),
                "rope: sin has shape [5, 2]",
            );
            assert_refused(
                rope(&x, &make(&[6, 3])?, &make(&[6, 3])?, &[0, 1]),
                "rope: cos has 3 columns",
            );
            assert_refused(
                rope(&make(&[2, 3, 5])?, &angles, &angles, &[0, 1]),
                "half of the head dimension 5",
            );
            assert_refused(
                rope(&make(&[2, 4])?, &angles, &angles, &[0, 1]),
                "rope: x has shape [2, 4]",
            );
            Ok(())
        });
    }
}
