//! Differentiable operations with a hand-written backward pass.
//!
//! candle's own fused norm, softmax and rope return no gradient (and say nothing), and its composed
//! versions cost twice the time. Each file here holds one operation and, in its tests, a slow twin from
//! plain tensor operations that forward and gradient are compared with.

mod attention;
mod cross_entropy;
mod imitation;
mod linear;
mod log_probs;
mod rms_norm;
mod rope;
mod rows;
mod soft_cross_entropy;
mod swiglu;
mod view;

pub(crate) use attention::{
    AttentionShape, KeySpan, OwnKeys, Segment, attention, attention_with_own,
};
pub(crate) use cross_entropy::cross_entropy;
pub(crate) use imitation::{Parts, imitation};
pub(crate) use linear::linear;
pub(crate) use log_probs::log_probs_at;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::{RopeTable, rope};
pub(crate) use soft_cross_entropy::{Laws, soft_cross_entropy};
pub(crate) use swiglu::swiglu;

#[cfg(test)]
pub(crate) mod testing;
