//! `x W^T` whose weight gradient comes out in the weight's own layout.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

/// Multiplies rows by a weight stored as checkpoints store it.
///
/// `x`: `[N, I]`, `weight`: `[O, I]`, both contiguous f32. Returns `[N, O]`. A detached side gets no gradient and
/// costs none.
///
/// # Errors
/// If the shapes do not fit.
pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.apply_op2(weight, Linear)
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (n_rows, inner) = x_layout.shape().dims2()?;
        let (outer, weight_inner) = weight_layout.shape().dims2()?;
        if inner != weight_inner {
            candle_core::bail!("rows are {inner} wide, the weight takes {weight_inner}");
        }
        let transposed = weight_layout.transpose(0, 1)?;
        let out = x.matmul(weight, (1, n_rows, outer, inner), x_layout, &transposed)?;
        Ok((out, Shape::from((n_rows, outer))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        // A frozen side costs nothing.
        let grad_x = match x.track_op() {
            true => Some(grad.matmul(weight)?),
            false => None,
        };
        let grad_weight = match weight.track_op() {
            true => Some(grad.t()?.matmul(x)?),
            false => None,
        };
        Ok((grad_x, grad_weight))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn a_linear_layer_equals_a_transposed_matmul() -> Result<()> {
        assert_same_gradients(
            &[random(&[5, 7], 1)?, random(&[3, 7], 2)?],
            |v| linear(&v[0], &v[1]),
            |v| v[0].matmul(&v[1].t()?),
        )
    }
}
