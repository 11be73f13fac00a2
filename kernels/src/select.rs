//! The best entries of each row.

use candle_core::{Result, Tensor, bail};

use crate::input::{dense_f32, dims2};
use crate::reference;

const ARGMAX: &str = "argmax_rows";
const TOPK: &str = "topk_rows";

/// Column of the largest value of each row: `x` `[N, V]` f32 -> u32 `[N]`; the lowest column wins a tie.
///
/// # Errors
/// If `x` is not f32 with two dimensions, V is zero, or a value is NaN.
pub fn argmax_rows(x: &Tensor) -> Result<Tensor> {
    let (n, _) = check(ARGMAX, x, 1)?;
    let x = dense_f32(ARGMAX, "x", x)?;
    reference::topk_rows(&x, 1)?.0.reshape(n)
}

/// The `k` largest values of each row, best first: `x` `[N, V]` f32 -> (columns u32 `[N, k]`, values f32 `[N, k]`).
///
/// Equal values come lowest column first.
///
/// # Errors
/// If `x` is not f32 with two dimensions, `k` exceeds V, or a value is NaN.
pub fn topk_rows(x: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    check(TOPK, x, k)?;
    let x = dense_f32(TOPK, "x", x)?;
    reference::topk_rows(&x, k)
}

pub(crate) fn check(op: &str, x: &Tensor, k: usize) -> Result<(usize, usize)> {
    let (n, v) = dims2(op, "x", x)?;
    if k > v {
        bail!("{op}: the best {k} of rows with only {v} values are asked for");
    }
    Ok((n, v))
}

/// The error for a NaN, which has no place in an order.
pub(crate) fn not_a_number(op: &str, row: usize, column: usize) -> candle_core::Error {
    candle_core::Error::Msg(format!(
        "{op}: the value at row {row}, column {column} is NaN"
    ))
    .bt()
}
