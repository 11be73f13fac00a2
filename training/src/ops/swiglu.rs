//! `silu(gate) * up`.

use super::view::{slice, view};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use kernels::exp;

/// The gated unit of the feed-forward block: `gate * sigmoid(gate) * up`, element by element.
///
/// # Errors
/// If the shapes differ.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, Swiglu)
}

struct Swiglu;

impl CustomOp2 for Swiglu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        if gate_layout.dims() != up_layout.dims() {
            candle_core::bail!(
                "gate {:?} and up {:?} differ",
                gate_layout.shape(),
                up_layout.shape()
            );
        }
        let (gate, up) = (slice(gate, gate_layout)?, slice(up, up_layout)?);
        let mut out = vec![0f32; gate.len()];
        for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
            *out = g / (1.0 + exp(-g)) * u;
        }
        Ok((CpuStorage::F32(out), gate_layout.shape().clone()))
    }

    // d/dg (g s(g) u) = u s (1 + g (1 - s)), with s the sigmoid.
    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        let (gs, us, ds) = (view(gate)?, view(up)?, view(&grad)?);
        let (gs, us, ds) = (gs.slice(), us.slice(), ds.slice());
        let mut grad_gate = vec![0f32; gs.len()];
        let mut grad_up = vec![0f32; gs.len()];
        let outs = grad_gate.iter_mut().zip(grad_up.iter_mut());
        for (((dg, du), (g, u)), d) in outs.zip(gs.iter().zip(us)).zip(ds) {
            let s = 1.0 / (1.0 + exp(-g));
            *dg = d * u * s * (1.0 + g * (1.0 - s));
            *du = d * g * s;
        }
        let grad_gate = Tensor::from_vec(grad_gate, gate.shape(), gate.device())?;
        let grad_up = Tensor::from_vec(grad_up, gate.shape(), gate.device())?;
        Ok((Some(grad_gate), Some(grad_up)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn the_gated_unit_equals_silu_times_up() -> Result<()> {
        assert_same_gradients(
            &[random(&[4, 9], 7)?, random(&[4, 9], 8)?],
            |v| swiglu(&v[0], &v[1]),
            |v| v[0].silu()? * &v[1],
        )
    }
}
