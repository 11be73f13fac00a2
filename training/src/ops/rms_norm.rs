//! Root-mean-square norm with a weight.

use super::rows::dot;
use super::view::{slice, view};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

/// Divides each row by its root mean square and multiplies by `weight`.
///
/// `x`: `[.., H]` contiguous, `weight`: `[H]`. Returns the shape of `x`.
///
/// # Errors
/// If the last dimension of `x` is not the length of `weight`.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    x.apply_op2(weight, RmsNorm { eps: eps as f32 })
}

struct RmsNorm {
    eps: f32,
}

impl RmsNorm {
    fn scale(&self, row: &[f32]) -> f32 {
        1.0 / (dot(row, row) / row.len() as f32 + self.eps).sqrt()
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, x_layout)?, slice(weight, weight_layout)?);
        let width = weight.len();
        if x_layout.dims().last() != Some(&width) {
            candle_core::bail!(
                "rows of {:?} do not fit a norm weight of {width}",
                x_layout.shape()
            );
        }
        let mut out = vec![0f32; x.len()];
        for (row, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let scale = self.scale(row);
            for ((out, x), w) in out.iter_mut().zip(row).zip(weight) {
                *out = x * scale * w;
            }
        }
        Ok((CpuStorage::F32(out), x_layout.shape().clone()))
    }

    // With s = 1/rms: dx = s (g w) - x s^3/H sum(g w x), dw = sum over rows of g x s.
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        let (xs, ws, gs) = (view(x)?, view(weight)?, view(&grad)?);
        let (xs, ws, gs) = (xs.slice(), ws.slice(), gs.slice());
        let width = ws.len();
        let mut grad_x = vec![0f32; xs.len()];
        let mut grad_w = vec![0f32; width];
        let mut weighted = vec![0f32; width];
        let rows = xs.chunks_exact(width).zip(gs.chunks_exact(width));
        for ((row, g), out) in rows.zip(grad_x.chunks_exact_mut(width)) {
            let scale = self.scale(row);
            for ((dst, g), w) in weighted.iter_mut().zip(g).zip(ws) {
                *dst = g * w;
            }
            let along = dot(&weighted, row) * scale * scale * scale / width as f32;
            for ((out, gw), x) in out.iter_mut().zip(&weighted).zip(row) {
                *out = gw * scale - x * along;
            }
            for ((dst, g), x) in grad_w.iter_mut().zip(g).zip(row) {
                *dst += g * x * scale;
            }
        }
        let grad_x = Tensor::from_vec(grad_x, x.shape(), x.device())?;
        let grad_w = Tensor::from_vec(grad_w, width, x.device())?;
        Ok((Some(grad_x), Some(grad_w)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;
    use candle_core::D;

    #[test]
    fn the_norm_equals_its_formula() -> Result<()> {
        assert_same_gradients(
            &[random(&[6, 20], 3)?, random(&[20], 4)?],
            |v| rms_norm(&v[0], &v[1], 1e-6),
            |v| {
                let mean = v[0].sqr()?.mean_keepdim(D::Minus1)?;
                let scale = (mean + 1e-6)?.sqrt()?.recip()?;
                v[0].broadcast_mul(&scale)?.broadcast_mul(&v[1])
            },
        )
    }
}
