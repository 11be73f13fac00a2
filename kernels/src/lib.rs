//! Tensor operations of the forward pass: a readable reference and a fast path for each.
//!
//! Every op takes f32 tensors (weights of a product may be bf16) and goes through candle's custom ops, so that a CUDA twin can stand beside the CPU
//! one; on a device without a twin candle reports an error that names the op. The CPU paths promise more than candle's
//! own: **a row of the result has the same bits whatever the other rows of the call, the number of rows and the number
//! of threads are**. A verify pass over 16 rows thus yields exactly the logits of 16 single steps. Different
//! instruction sets may round differently.
//!
//! None of the ops has a backward pass; asking for one is candle's `BackwardNotSupported` error, not a silent zero.

mod add;
mod attend;
mod exp;
mod input;
mod linear;
mod log_sum_exp;
mod machine;
mod pairs;
mod parallel;
mod pool;
pub mod reference;
mod rms_norm;
mod rope;
mod rows;
mod select;
mod simd;
mod swiglu;
#[cfg(test)]
mod testing;
mod tile;

pub use add::add;
pub use attend::{Visible, attend};
pub use exp::exp;
pub use linear::{linear, linear_split};
pub use log_sum_exp::log_sum_exp_rows;
pub use machine::{Limits, limits};
pub use pairs::{PairNet, PairWeights, pair_scores};
pub use rms_norm::rms_norm;
pub use rope::rope;
pub use rows::{move_rows, write_rows};
pub use select::{argmax_rows, topk_rows};
pub use swiglu::swiglu;
