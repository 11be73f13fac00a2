//! The gated activation of the feed-forward block.

use candle_core::{Result, Tensor, bail};

use crate::input::dense_f32;
use crate::reference;

const OP: &str = "swiglu";

/// `silu(gate) * up`, elementwise, with `silu(g) = g / (1 + exp(-g))`; f32, both of one shape.
///
/// # Errors
/// If an input is not f32 or the shapes differ.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let (gate, up) = (dense_f32(OP, "gate", gate)?, dense_f32(OP, "up", up)?);
    reference::swiglu(&gate, &up)
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
