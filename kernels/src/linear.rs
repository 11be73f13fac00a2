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

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
use half::bf16;

use crate::input::{dense_f32, dims2, slice, slice_f32};
use crate::parallel::{self, MutPtr};
use crate::simd::{Isa, Kernel, Simd};
use crate::tile::{Operand, dots};

const OP: &str = "linear";
/// Columns are handed out in multiples of every tile width.
const COLUMN_GRAIN: usize = 24;
/// From this many rows on, copying them to cache lines costs less than it saves (measured).
const COPIED_FROM: usize = 5;
/// Weights that stay in the second-level cache while the row groups pass over them.
const BLOCK_BYTES: usize = 128 * 1024;

/// `x` times the transpose of `w`: `x` `[N, K]` f32, `w` `[O, K]` f32 or bf16 (row-major, as in checkpoints) ->
/// `[N, O]` f32.
///
/// Weights of bf16 are widened as they are read, so the result has the bits of f32 weights of the same values. Each
/// output element is summed in the same order whatever N, O and the number of threads are.
///
/// # Errors
/// If an input has another type or not two dimensions, or the two K differ.
pub fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let shape = shape(x, w)?;
    apply(Isa::detect(), x, w, &[shape.o])?.reshape((shape.n, shape.o))
}

/// As [`linear()`], with the columns of the result cut into tensors of `widths`, each of them contiguous: several
/// products with the same `x` at the price of one, their weights being stacked in `w`.
///
/// # Errors
/// As [`linear()`], and if the widths do not add up to O.
pub fn linear_split(x: &Tensor, w: &Tensor, widths: &[usize]) -> Result<Vec<Tensor>> {
    let LinearShape { n, o, .. } = shape(x, w)?;
    if widths.iter().sum::<usize>() != o {
        bail!("{OP}: widths {widths:?} do not add up to the {o} rows of w");
    }
    let all = apply(Isa::detect(), x, w, widths)?;
    let mut start = 0;
    let cut = widths.iter().map(|width| {
        let part = all.narrow(0, start, n * width)?.reshape((n, *width));
        start += n * width;
        part
    });
    cut.collect()
}

/// The parts one behind the other, in one dimension.
fn apply(isa: Isa, x: &Tensor, w: &Tensor, widths: &[usize]) -> Result<Tensor> {
    let shape = shape(x, w)?;
    let x = dense_f32(OP, "x", x)?;
    let w = match w.dtype() {
        DType::BF16 | DType::F32 => w.contiguous()?,
        other => bail!("{OP}: w is {other:?}, must be f32 or bf16: convert it with to_dtype"),
    };
    let op = Linear {
        isa,
        shape,
        widths: widths.to_vec(),
    };
    x.apply_op2(&w, op)
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
    /// Add up to the columns.
    widths: Vec<usize>,
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
        let x = slice_f32(OP, x, x_at)?;
        let out = match w {
            CpuStorage::BF16(_) => self.product::<bf16>(x, slice(OP, w, w_at)?),
            _ => self.product::<f32>(x, slice(OP, w, w_at)?),
        };
        let len = out.len();
        Ok((CpuStorage::F32(out), Shape::from(len)))
    }
}

impl Linear {
    fn product<T: Operand>(&self, x: &[f32], w: &[T]) -> Vec<f32> {
        let LinearShape { n, k, o } = self.shape;
        assert!(
            x.len() == n * k && w.len() == o * k && self.widths.iter().sum::<usize>() == o,
            "the slices are as long as the checked shapes say"
        );
        let mut out: Vec<f32> = Vec::with_capacity(n * o);
        let to = MutPtr(out.as_mut_ptr());
        // About 100 GFLOP/s, and never faster than 40 GB/s of weights.
        let cost_ns = (2 * n * k * o / 100).max(size_of::<T>() * k * o / 40);
        let mut lines = Vec::new();
        let x = match n {
            ..COPIED_FROM => x,
            _ => in_cache_lines(x, &mut lines),
        };
        let all = Product {
            isa: self.isa,
            shape: self.shape,
            widths: &self.widths,
            x,
            w,
            out: to,
        };
        // SAFETY: the ranges lie within the o columns and do not overlap.
        parallel::for_ranges(o, COLUMN_GRAIN, cost_ns, |columns| unsafe {
            all.columns(columns)
        });
        // SAFETY: the ranges cover every column, and each of them was written in all n rows.
        unsafe { out.set_len(n * o) };
        out
    }
}

/// 64 bytes that start on a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// The values of `x` copied to the start of a cache line, so that the loads of a tile do not straddle two.
fn in_cache_lines<'a>(x: &[f32], lines: &'a mut Vec<Line>) -> &'a [f32] {
    lines.reserve_exact(x.len().div_ceil(16));
    let to = lines.as_mut_ptr().cast::<f32>();
    // SAFETY: the lines have room for the values, which are written before they are borrowed.
    unsafe {
        std::ptr::copy_nonoverlapping(x.as_ptr(), to, x.len());
        std::slice::from_raw_parts(to, x.len())
    }
}

#[derive(Clone, Copy)]
struct Product<'a, T> {
    isa: Isa,
    shape: LinearShape,
    widths: &'a [usize],
    x: &'a [f32],
    w: &'a [T],
    out: MutPtr<f32>,
}

impl<T: Operand> Product<'_, T> {
    /// All rows of some columns.
    ///
    /// # Safety
    /// The columns must be within the shape, and no other thread may write them.
    unsafe fn columns(&self, columns: Range<usize>) {
        let mut first = 0;
        for &width in self.widths {
            let part = columns.start.max(first)..columns.end.min(first + width);
            if !part.is_empty() {
                // SAFETY: some of the columns.
                unsafe { self.columns_of(Part { first, width }, part) };
            }
            first += width;
        }
    }

    /// # Safety
    /// As [`Self::columns`]; they must also be within the part.
    unsafe fn columns_of(&self, part: Part, columns: Range<usize>) {
        let LinearShape { n, k, .. } = self.shape;
        let n_groups = n.div_ceil(self.isa.tile_rows());
        let block = (BLOCK_BYTES / (size_of::<T>() * k.max(1)) + 1).next_multiple_of(COLUMN_GRAIN);
        let mut start = columns.start;
        while start < columns.end {
            let end = (start + block).min(columns.end);
            let mut row = 0;
            for group in 0..n_groups {
                // Groups of nearly equal size.
                let rows = (n - row).div_ceil(n_groups - group);
                let group = Group {
                    all: *self,
                    part,
                    row,
                    columns: start..end,
                };
                // SAFETY: row + rows <= n, and the columns are within the part.
                unsafe { group.run(rows) };
                row += rows;
            }
            start = end;
        }
    }
}

/// Columns that lie in one tensor of the result.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    width: usize,
}

/// Some rows of some columns; both must be within the shape, the columns within the part.
struct Group<'a, T> {
    all: Product<'a, T>,
    part: Part,
    row: usize,
    columns: Range<usize>,
}

impl<T: Operand> Group<'_, T> {
    /// # Safety
    /// `n_rows` rows and the columns must be within the shape, and no other thread may write them.
    unsafe fn run(self, n_rows: usize) {
        // Few rows take many columns at once so that enough sums are under way; 24 sums are the most that fit the
        // registers.
        let isa = self.all.isa;
        match n_rows {
            1 => isa.run(Tiles::<T, 1, 8>(self)),
            2 => isa.run(Tiles::<T, 2, 8>(self)),
            3 => isa.run(Tiles::<T, 3, 4>(self)),
            4 => isa.run(Tiles::<T, 4, 4>(self)),
            5 => isa.run(Tiles::<T, 5, 4>(self)),
            6 => isa.run(Tiles::<T, 6, 4>(self)),
            7 => isa.run(Tiles::<T, 7, 3>(self)),
            8 => isa.run(Tiles::<T, 8, 3>(self)),
            _ => unreachable!("no tile has more than eight rows"),
        }
    }
}

/// `A` rows in tiles of `C` columns, then one column at a time.
struct Tiles<'a, T, const A: usize, const C: usize>(Group<'a, T>);

impl<T: Operand, const A: usize, const C: usize> Kernel for Tiles<'_, T, A, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        assert!(A <= S::TILE_ROWS, "the groups are no larger than the tiles");
        let Range { start, end } = self.0.columns;
        let mut column = start;
        // SAFETY: `Group::run` vouches for the rows and columns.
        unsafe {
            while column + C <= end {
                self.tile::<S, C>(simd, column);
                column += C;
            }
            while column < end {
                self.tile::<S, 1>(simd, column);
                column += 1;
            }
        }
    }
}

impl<T: Operand, const A: usize, const C: usize> Tiles<'_, T, A, C> {
    /// `W` columns from `column` on.
    ///
    /// # Safety
    /// The columns must be within those of the group.
    #[inline(always)]
    unsafe fn tile<S: Simd, const W: usize>(&self, simd: S, column: usize) {
        let Group { all, part, row, .. } = &self.0;
        let LinearShape { n, k, .. } = all.shape;
        // SAFETY: `Group::run` vouches for the rows and columns; `product` checked the slices against the shape. Before a
        // part lie n rows of all columns before it.
        unsafe {
            let mut x = [all.x.as_ptr(); A];
            for a in 0..A {
                x[a] = x[a].add((row + a) * k);
            }
            let mut w = [all.w.as_ptr(); W];
            for c in 0..W {
                w[c] = w[c].add((column + c) * k);
            }
            // The next tile's columns lie behind this one's.
            let sums = dots(simd, x, w, k, W * k);
            let to = n * part.first + column - part.first;
            for a in 0..A {
                all.out
                    .at(to + (row + a) * part.width)
                    .cast::<[f32; W]>()
                    .write(sums[a]);
            }
        }
    }
}
