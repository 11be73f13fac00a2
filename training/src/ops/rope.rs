//! Rotary position embedding, half-split form.

use super::view::{slice, view};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use std::sync::Arc;

/// Cosines and sines for every position a model can see.
#[derive(Debug)]
pub(crate) struct RopeTable {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Angles `position * theta^(-2 i / head_dim)` for positions `0..n_positions`.
    pub(crate) fn new(head_dim: usize, n_positions: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let mut cos = Vec::with_capacity(n_positions * half);
        let mut sin = Vec::with_capacity(n_positions * half);
        for position in 0..n_positions {
            for i in 0..half {
                let angle = position as f64 * theta.powf(-2.0 * i as f64 / head_dim as f64);
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
        Self { half, cos, sin }
    }

    fn at(&self, position: u32) -> (&[f32], &[f32]) {
        let start = position as usize * self.half;
        let span = start..start + self.half;
        (&self.cos[span.clone()], &self.sin[span])
    }
}

/// Rotates every head of every row by the row's position.
///
/// `x`: `[N, heads * head_dim]` contiguous; `positions`: one a row, below the table's length. Returns the shape of `x`.
///
/// # Errors
/// If rows and positions differ in number or a position is outside the table.
pub(crate) fn rope(x: &Tensor, table: &Arc<RopeTable>, positions: &Arc<[u32]>) -> Result<Tensor> {
    x.apply_op1(Rope {
        table: table.clone(),
        positions: positions.clone(),
    })
}

struct Rope {
    table: Arc<RopeTable>,
    positions: Arc<[u32]>,
}

/// Which way to turn: the gradient turns back.
#[derive(Clone, Copy)]
enum Turn {
    Forth,
    Back,
}

impl Rope {
    fn turn(&self, x: &[f32], turn: Turn) -> Result<Vec<f32>> {
        let (half, n_rows) = (self.table.half, self.positions.len());
        let limit = self.table.cos.len() / half;
        if n_rows == 0 || !x.len().is_multiple_of(n_rows * 2 * half) {
            candle_core::bail!("{} values are no whole heads of {n_rows} rows", x.len());
        }
        if let Some(far) = self.positions.iter().find(|&&p| p as usize >= limit) {
            candle_core::bail!("position {far} is outside the {limit} of the rope table");
        }
        let width = x.len() / n_rows;
        let mut out = vec![0f32; x.len()];
        let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
        for ((row, out), &position) in rows.zip(self.positions.iter()) {
            let (cos, sin) = self.table.at(position);
            for (head, out) in row
                .chunks_exact(2 * half)
                .zip(out.chunks_exact_mut(2 * half))
            {
                let (x1, x2) = head.split_at(half);
                let (y1, y2) = out.split_at_mut(half);
                for i in 0..half {
                    let s = match turn {
                        Turn::Forth => sin[i],
                        Turn::Back => -sin[i],
                    };
                    y1[i] = x1[i] * cos[i] - x2[i] * s;
                    y2[i] = x2[i] * cos[i] + x1[i] * s;
                }
            }
        }
        Ok(out)
    }
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = self.turn(slice(x, layout)?, Turn::Forth)?;
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grad = grad.contiguous()?;
        let back = self.turn(view(&grad)?.slice(), Turn::Back)?;
        Ok(Some(Tensor::from_vec(back, x.shape(), x.device())?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;
    use candle_core::{D, Device};

    /// The rotation from plain tensor operations.
    fn slow(x: &Tensor, positions: &[u32], head_dim: usize) -> Result<Tensor> {
        let (n_rows, width) = x.dims2()?;
        let half = head_dim / 2;
        let inverse: Vec<f32> = (0..half)
            .map(|i| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32))
            .collect();
        let positions: Vec<f32> = positions.iter().map(|&p| p as f32).collect();
        let angles = Tensor::new(positions, &Device::Cpu)?
            .reshape((n_rows, 1, 1))?
            .broadcast_mul(&Tensor::new(inverse, &Device::Cpu)?.reshape((1, 1, half))?)?;
        let x = x.reshape((n_rows, width / head_dim, head_dim))?;
        let (x1, x2) = (
            x.narrow(D::Minus1, 0, half)?,
            x.narrow(D::Minus1, half, half)?,
        );
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
        let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
        Tensor::cat(&[y1, y2], D::Minus1)?.reshape((n_rows, width))
    }

    #[test]
    fn rope_turns_the_halves_of_each_head() -> Result<()> {
        let table = Arc::new(RopeTable::new(8, 50, 10_000.0));
        let positions: Arc<[u32]> = Arc::from([0u32, 1, 2, 49, 3]);
        assert_same_gradients(
            &[random(&[5, 24], 5)?],
            |v| rope(&v[0], &table, &positions),
            |v| slow(&v[0], &positions, 8),
        )
    }

    #[test]
    fn a_position_outside_the_table_is_an_error() -> Result<()> {
        let table = Arc::new(RopeTable::new(8, 4, 10_000.0));
        assert!(rope(&random(&[1, 8], 6)?, &table, &Arc::from([4u32])).is_err());
        Ok(())
    }
}
