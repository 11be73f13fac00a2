//! Product of activation rows with a weight matrix as checkpoints store it.
#![allow(
    unsafe_code,
    reason = "tiles write columns of rows that several threads share"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "one index runs over operands and sums alike"
)]

#[cfg(test)]
mod tests;

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, dims2, slice_f32};
use crate::parallel::{self, MutPtr};
use crate::simd::{Isa, Kernel, Simd};
use crate::tile::dots;

const OP: &str = "linear";
/// Columns are handed out in multiples of the widest tile.
const COLUMN_GRAIN: usize = 8;
/// Weights that stay in the second-level cache while the row groups pass over them.
const BLOCK_BYTES: usize = 128 * 1024;

/// `x` times the transpose of `w`: `x` `[N, K]` f32, `w` `[O, K]` f32 (row-major, as in checkpoints) -> `[N, O]` f32.
///
/// Each output element is summed in the same order whatever N, O and the number of threads are.
///
/// # Errors
/// If an input is not f32 with two dimensions, or the two K differ.
pub fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let shape = shape(x, w)?;
    let (x, w) = (dense_f32(OP, "x", x)?, dense_f32(OP, "w", w)?);
    x.apply_op2(
        &w,
        Linear {
            isa: Isa::detect(),
            shape,
        },
    )
}

/// Sizes of one product: rows, inner length, output columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearShape {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) o: usize,
}

pub(crate) fn shape(x: &Tensor, w: &Tensor) -> Result<LinearShape> {
    let (n, k) = dims2(OP, "x", x)?;
    let (o, w_k) = dims2(OP, "w", w)?;
    if k != w_k {
        bail!("{OP}: x is [{n}, {k}] but w is [{o}, {w_k}]: the second dimensions must be equal");
    }
    Ok(LinearShape { n, k, o })
}

struct Linear {
    isa: Isa,
    shape: LinearShape,
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &Layout,
        w: &CpuStorage,
        w_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (slice_f32(OP, x, x_at)?, slice_f32(OP, w, w_at)?);
        let out = product(self.isa, self.shape, x, w);
        Ok((
            CpuStorage::F32(out),
            Shape::from((self.shape.n, self.shape.o)),
        ))
    }
}

fn product(isa: Isa, shape: LinearShape, x: &[f32], w: &[f32]) -> Vec<f32> {
    let LinearShape { n, k, o } = shape;
    assert!(
        x.len() == n * k && w.len() == o * k,
        "the slices are as long as the checked shapes say"
    );
    let mut out: Vec<f32> = Vec::with_capacity(n * o);
    let to = MutPtr(out.as_mut_ptr());
    // About 50 GFLOP/s, and never faster than 20 GB/s of weights.
    let cost_ns = (2 * n * k * o / 50).max(4 * k * o / 20);
    parallel::for_ranges(o, COLUMN_GRAIN, cost_ns, |columns| {
        isa.run(Columns {
            shape,
            x,
            w,
            out: to,
            columns,
        });
    });
    // SAFETY: the ranges cover every column, and each of them was written in all n rows.
    unsafe { out.set_len(n * o) };
    out
}

/// All rows of some output columns.
struct Columns<'a> {
    shape: LinearShape,
    x: &'a [f32],
    w: &'a [f32],
    out: MutPtr<f32>,
    columns: Range<usize>,
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let LinearShape { n, k, .. } = self.shape;
        // Row groups of nearly equal size.
        let n_groups = n.div_ceil(S::TILE_ROWS);
        let block = (BLOCK_BYTES / (4 * k.max(1))).next_multiple_of(COLUMN_GRAIN);
        let mut start = self.columns.start;
        while start < self.columns.end {
            let end = (start + block).min(self.columns.end);
            let mut row = 0;
            for group in 0..n_groups {
                let rows = (n - row).div_ceil(n_groups - group);
                // SAFETY: row + rows <= n, end <= o.
                unsafe {
                    match rows {
                        1 => self.group::<S, 1, 2>(simd, row, start..end),
                        2 if S::TILE_ROWS >= 2 => self.group::<S, 2, 2>(simd, row, start..end),
                        3 if S::TILE_ROWS >= 3 => self.group::<S, 3, 1>(simd, row, start..end),
                        4 if S::TILE_ROWS >= 4 => self.group::<S, 4, 1>(simd, row, start..end),
                        5 if S::TILE_ROWS >= 5 => self.group::<S, 5, 1>(simd, row, start..end),
                        6 if S::TILE_ROWS >= 6 => self.group::<S, 6, 1>(simd, row, start..end),
                        _ => unreachable!("a group has at most TILE_ROWS rows"),
                    }
                }
                row += rows;
            }
            start = end;
        }
    }
}

impl Columns<'_> {
    /// `A` rows from `row` on, in tiles of `4 * B` columns, then of four, then one by one.
    ///
    /// # Safety
    /// The rows and columns must be within the shape.
    #[inline(always)]
    unsafe fn group<S: Simd, const A: usize, const B: usize>(
        &self,
        simd: S,
        row: usize,
        columns: Range<usize>,
    ) {
        let mut column = columns.start;
        // SAFETY: all pointers stay in the rows and columns that the caller vouches for.
        unsafe {
            while column + 4 * B <= columns.end {
                self.tile::<S, A, B>(simd, row, column);
                column += 4 * B;
            }
            while column + 4 <= columns.end {
                self.tile::<S, A, 1>(simd, row, column);
                column += 4;
            }
            while column < columns.end {
                let x: [*const f32; A] = self.x_rows(row);
                let w = self.w.as_ptr().add(column * self.shape.k);
                let sums = dots(simd, x, [[w; 4]], self.shape.k);
                for a in 0..A {
                    self.out
                        .0
                        .add((row + a) * self.shape.o + column)
                        .write(sums[a][0][0]);
                }
                column += 1;
            }
        }
    }

    /// # Safety
    /// Rows `row..row + A` and columns `column..column + 4 * B` must be within the shape.
    #[inline(always)]
    unsafe fn tile<S: Simd, const A: usize, const B: usize>(
        &self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let LinearShape { k, o, .. } = self.shape;
        // SAFETY: the caller vouches for the rows and columns; `product` checked the slices against the shape.
        unsafe {
            let first = self.w.as_ptr().add(column * k);
            let mut w = [[first; 4]; B];
            for b in 0..B {
                for c in 0..4 {
                    w[b][c] = first.add((4 * b + c) * k);
                }
            }
            let sums = dots(simd, self.x_rows::<A>(row), w, k);
            for a in 0..A {
                for b in 0..B {
                    let to = self.out.at((row + a) * o + column + 4 * b);
                    to.cast::<[f32; 4]>().write(sums[a][b]);
                }
            }
        }
    }

    /// # Safety
    /// Rows `row..row + A` must be within the shape.
    #[inline(always)]
    unsafe fn x_rows<const A: usize>(&self, row: usize) -> [*const f32; A] {
        let mut rows = [self.x.as_ptr(); A];
        for (a, at) in rows.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the row.
            *at = unsafe { self.x.as_ptr().add((row + a) * self.shape.k) };
        }
        rows
    }
}
