//! Dot products of a few rows with a few rows, held in registers.
#![allow(unsafe_code, reason = "reads rows through pointers")]
#![allow(
    clippy::needless_range_loop,
    reason = "one index runs over operands and sums alike"
)]

use half::bf16;

use crate::simd::Simd;

/// A type that rows are stored in; arithmetic is f32.
pub(crate) trait Operand: Copy + Send + Sync {
    /// # Safety
    /// `S::WIDTH` values must be readable at `from`.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::Vector;
    /// The first `count < S::WIDTH` values, zero in the other lanes.
    ///
    /// # Safety
    /// `count` values must be readable at `from`.
    unsafe fn load_first<S: Simd>(simd: S, from: *const Self, count: usize) -> S::Vector;
}

impl Operand for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const f32) -> S::Vector {
        // SAFETY: the caller vouches for the values.
        unsafe { simd.load(from) }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, from: *const f32, count: usize) -> S::Vector {
        // SAFETY: the caller vouches for the values.
        unsafe { simd.load_first(from, count) }
    }
}

impl Operand for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const bf16) -> S::Vector {
        // SAFETY: the caller vouches for the values.
        unsafe { simd.load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, from: *const bf16, count: usize) -> S::Vector {
        let mut values = [bf16::ZERO; MOST_LANES];
        // SAFETY: the caller vouches for `count` values, fewer than the array has.
        unsafe {
            std::ptr::copy_nonoverlapping(from, values.as_mut_ptr(), count);
            simd.load_bf16(values.as_ptr())
        }
    }
}

/// Lanes of the widest vectors.
const MOST_LANES: usize = 16;

/// Dot products of the rows at `x` with the rows at `w`, all of length `k`.
///
/// The rows at `w` are expected to come from memory: while one is read, what lies `ahead` values behind is asked for,
/// unless that is 0. Every product has one vector of partial sums that runs over the length in steps of the vector width, a last step
/// padded with zeros, and the same horizontal sum at the end. The bits of a product therefore depend on its two rows
/// alone and not on A, C or the place in the tile.
///
/// # Safety
/// `k` values must be readable at every pointer.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd, T: Operand, const A: usize, const C: usize>(
    simd: S,
    x: [*const f32; A],
    w: [*const T; C],
    k: usize,
    ahead: usize,
) -> [[f32; C]; A] {
    let mut sums = [[simd.splat(0.0); C]; A];
    let whole = k - k % S::WIDTH;
    let mut at = 0;
    while at < whole {
        let mut right = [simd.splat(0.0); C];
        for c in 0..C {
            // SAFETY: at + WIDTH <= whole <= k.
            right[c] = unsafe { T::load(simd, w[c].add(at)) };
            if ahead > 0 {
                simd.fetch(w[c].wrapping_add(at + ahead).cast());
            }
        }
        for a in 0..A {
            // SAFETY: as above.
            let left = unsafe { simd.load(x[a].add(at)) };
            for c in 0..C {
                sums[a][c] = simd.mul_add(left, right[c], sums[a][c]);
            }
        }
        at += S::WIDTH;
    }
    if whole < k {
        let mut right = [simd.splat(0.0); C];
        for c in 0..C {
            // SAFETY: whole + (k - whole) = k.
            right[c] = unsafe { T::load_first(simd, w[c].add(whole), k - whole) };
        }
        for a in 0..A {
            // SAFETY: as above.
            let left = unsafe { simd.load_first(x[a].add(whole), k - whole) };
            for c in 0..C {
                sums[a][c] = simd.mul_add(left, right[c], sums[a][c]);
            }
        }
    }
    let mut out = [[0.0; C]; A];
    let last = A * C - 1;
    for first in (0..A * C).step_by(4) {
        // Four at a time; the last one stands in past the end.
        let mut four = [sums[0][0]; 4];
        for i in 0..4 {
            let place = (first + i).min(last);
            four[i] = sums[place / C][place % C];
        }
        let totals = simd.sum_each(four);
        for i in 0..(A * C - first).min(4) {
            out[(first + i) / C][(first + i) % C] = totals[i];
        }
    }
    out
}
