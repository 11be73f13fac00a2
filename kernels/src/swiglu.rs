//! The gated activation of the feed-forward block.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, slice_f32};
use crate::parallel;

const OP: &str = "swiglu";

/// `silu(gate) * up`, elementwise, with `silu(g) = g / (1 + exp(-g))`; f32, both of one shape.
///
/// # Errors
/// If an input is not f32 or the shapes differ.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    check(gate, up)?;
    let (gate, up) = (dense_f32(OP, "gate", gate)?, dense_f32(OP, "up", up)?);
    gate.apply_op2(&up, SwiGlu)
}

pub(crate) fn check(gate: &Tensor, up: &Tensor) -> Result<()> {
    if gate.dims() != up.dims() {
        bail!(
            "{OP}: gate has shape {:?}, up has {:?}: they must be equal",
            gate.dims(),
            up.dims()
        );
    }
    Ok(())
}

/// Values that one thread takes at a time.
const PIECE: usize = 1024;

struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_at: &Layout,
        up: &CpuStorage,
        up_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (slice_f32(OP, gate, gate_at)?, slice_f32(OP, up, up_at)?);
        let mut out = gate.to_vec();
        // The exponential takes about four nanoseconds.
        parallel::for_chunks(&mut out, PIECE, 4 * gate.len(), |first, piece| {
            let up = &up[first * PIECE..];
            for (value, up) in piece.iter_mut().zip(up) {
                *value = *value / (1.0 + (-*value).exp()) * up;
            }
        });
        Ok((CpuStorage::F32(out), gate_at.shape().clone()))
    }
}
