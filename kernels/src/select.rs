//! The best entries of each row.

#[cfg(test)]
mod tests;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, dims2, slice_f32};
use crate::parallel;
use crate::simd::{Isa, Kernel, Simd};

const ARGMAX: &str = "argmax_rows";
const TOPK: &str = "topk_rows";

/// Column of the largest value of each row: `x` `[N, V]` f32 -> u32 `[N]`; the lowest column wins a tie.
///
/// # Errors
/// If `x` is not f32 with two dimensions, V is zero, or a value is NaN.
pub fn argmax_rows(x: &Tensor) -> Result<Tensor> {
    check(ARGMAX, x, 1)?;
    let x = dense_f32(ARGMAX, "x", x)?;
    x.apply_op1(Best {
        isa: Isa::detect(),
        name: ARGMAX,
        k: 1,
    })?
    .flatten_all()
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
    let ids = x.apply_op1(Best {
        isa: Isa::detect(),
        name: TOPK,
        k,
    })?;
    let values = x.gather(&ids, 1)?;
    Ok((ids, values))
}

pub(crate) fn check(op: &str, x: &Tensor, k: usize) -> Result<(usize, usize)> {
    let (n, v) = dims2(op, "x", x)?;
    if k > v {
        bail!("{op}: the best {k} of rows with only {v} values are asked for");
    }
    if v >= NAN_FOUND as usize {
        bail!("{op}: {v} columns do not fit u32");
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

/// Stands in the result for a row with a NaN, until the error is raised.
const NAN_FOUND: u32 = u32::MAX;
/// Up to here the best so far are kept sorted while the row is read; beyond, the whole row is sorted.
const MOST_KEPT: usize = 64;
/// Values that are compared with the worst of the best at once.
const BLOCK: usize = 64;

/// Columns of the `k` largest values of each row.
struct Best {
    isa: Isa,
    name: &'static str,
    k: usize,
}

impl CustomOp1 for Best {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, x: &CpuStorage, x_at: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice_f32(self.name, x, x_at)?;
        let (n, v) = x_at.shape().dims2()?;
        let mut ids = vec![0u32; n * self.k];
        if self.k > 0 {
            // Reads about five values a nanosecond.
            parallel::for_chunks(&mut ids, self.k, x.len() / 5, |first, ids| {
                for (row, ids) in x[first * v..]
                    .chunks_exact(v)
                    .zip(ids.chunks_exact_mut(self.k))
                {
                    let found = match self.k {
                        ..=MOST_KEPT => self.isa.run(Scan { row, ids }),
                        _ => sort_all(row, ids),
                    };
                    if found.is_none() {
                        ids[0] = NAN_FOUND;
                    }
                }
            });
            if let Some(row) = ids.chunks_exact(self.k).position(|ids| ids[0] == NAN_FOUND) {
                let column = x[row * v..].iter().position(|value| value.is_nan());
                return Err(not_a_number(
                    self.name,
                    row,
                    column.expect("the scan saw a NaN in this row"),
                ));
            }
        }
        Ok((CpuStorage::U32(ids), Shape::from((n, self.k))))
    }
}

/// One pass over a row that keeps the best sorted. `None` if there is a NaN.
struct Scan<'a> {
    row: &'a [f32],
    ids: &'a mut [u32],
}

impl Kernel for Scan<'_> {
    type Output = Option<()>;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Option<()> {
        let k = self.ids.len();
        let mut kept = Kept {
            values: [f32::NEG_INFINITY; MOST_KEPT],
            ids: self.ids,
            len: 0,
        };
        let (first, rest) = self.row.split_at(k);
        for (column, &value) in first.iter().enumerate() {
            kept.offer(value, column)?;
        }
        for (block_idx, block) in rest.chunks(BLOCK).enumerate() {
            let worst = kept.values[k - 1];
            let mut better_or_nan = false;
            for &value in block {
                better_or_nan |= value > worst || value.is_nan();
            }
            if better_or_nan {
                for (i, &value) in block.iter().enumerate() {
                    if value > kept.values[k - 1] || value.is_nan() {
                        kept.offer(value, k + block_idx * BLOCK + i)?;
                    }
                }
            }
        }
        Some(())
    }
}

/// The best values so far, best first, and their columns.
struct Kept<'a> {
    values: [f32; MOST_KEPT],
    ids: &'a mut [u32],
    len: usize,
}

impl Kept<'_> {
    /// Takes in a value from a column behind all earlier ones; `None` if it is NaN.
    fn offer(&mut self, value: f32, column: usize) -> Option<()> {
        if value.is_nan() {
            return None;
        }
        // Behind its equals, whose columns are lower.
        let place = self.values[..self.len]
            .iter()
            .rposition(|&kept| kept >= value)
            .map_or(0, |place| place + 1);
        if place == self.ids.len() {
            return Some(());
        }
        self.len = (self.len + 1).min(self.ids.len());
        self.values.copy_within(place..self.len - 1, place + 1);
        self.ids.copy_within(place..self.len - 1, place + 1);
        self.values[place] = value;
        self.ids[place] = column as u32;
        Some(())
    }
}

/// `None` if there is a NaN.
fn sort_all(row: &[f32], ids: &mut [u32]) -> Option<()> {
    if row.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    // `+ 0.0` makes equals of the two zeros, which total_cmp tells apart.
    let better = |a: &u32, b: &u32| {
        let (a_value, b_value) = (row[*a as usize] + 0.0, row[*b as usize] + 0.0);
        b_value.total_cmp(&a_value).then(a.cmp(b))
    };
    if ids.len() < order.len() {
        order.select_nth_unstable_by(ids.len(), better);
        order.truncate(ids.len());
    }
    order.sort_unstable_by(better);
    ids.copy_from_slice(&order);
    Some(())
}
