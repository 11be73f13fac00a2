//! Differentiable operations with a hand-written backward pass.
//!
//! candle's own fused norm, softmax and rope return no gradient (and say nothing), and its composed
//! versions cost twice the time. Each file here holds one operation and, in its tests, a slow twin from
//! plain tensor operations that forward and gradient are compared with.

mod attention;
mod cross_entropy;
mod exp;
mod linear;
mod rms_norm;
mod rope;
mod swiglu;
mod view;

pub use attention::{AttentionShape, KeySpan, Segment, attention};
pub use cross_entropy::cross_entropy;
pub use linear::linear;
pub use rms_norm::rms_norm;
pub use rope::{RopeTable, rope};
pub use swiglu::swiglu;

#[cfg(test)]
pub(crate) mod testing;
