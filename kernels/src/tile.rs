//! Dot products of a few rows with a few rows, held in registers.
#![allow(unsafe_code, reason = "reads rows through pointers")]
#![allow(
    clippy::needless_range_loop,
    reason = "one index runs over operands and sums alike"
)]

use crate::simd::Simd;

/// Dot products of `A` rows at `x` with `4 * B` rows at `w`, all of length `k`.
///
/// Every product has one vector of partial sums that runs over the length in steps of the vector width, a last step
/// padded with zeros, and the same horizontal sum at the end. The bits of a product therefore depend on its two rows
/// alone and not on A, B or the place in the tile.
///
/// # Safety
/// `k` values must be readable at every pointer.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd, const A: usize, const B: usize>(
    simd: S,
    x: [*const f32; A],
    w: [[*const f32; 4]; B],
    k: usize,
) -> [[[f32; 4]; B]; A] {
    let mut sums = [[[simd.splat(0.0); 4]; B]; A];
    let whole = k - k % S::WIDTH;
    let mut at = 0;
    while at < whole {
        let mut right = [[simd.splat(0.0); 4]; B];
        for b in 0..B {
            for c in 0..4 {
                // SAFETY: at + WIDTH <= whole <= k.
                right[b][c] = unsafe { simd.load(w[b][c].add(at)) };
            }
        }
        for a in 0..A {
            // SAFETY: as above.
            let left = unsafe { simd.load(x[a].add(at)) };
            for b in 0..B {
                for c in 0..4 {
                    sums[a][b][c] = simd.mul_add(left, right[b][c], sums[a][b][c]);
                }
            }
        }
        at += S::WIDTH;
    }
    if whole < k {
        let mut right = [[simd.splat(0.0); 4]; B];
        for b in 0..B {
            for c in 0..4 {
                // SAFETY: whole + (k - whole) = k.
                right[b][c] = unsafe { simd.load_first(w[b][c].add(whole), k - whole) };
            }
        }
        for a in 0..A {
            // SAFETY: as above.
            let left = unsafe { simd.load_first(x[a].add(whole), k - whole) };
            for b in 0..B {
                for c in 0..4 {
                    sums[a][b][c] = simd.mul_add(left, right[b][c], sums[a][b][c]);
                }
            }
        }
    }
    let mut out = [[[0.0; 4]; B]; A];
    for a in 0..A {
        for b in 0..B {
            out[a][b] = simd.sum_each(sums[a][b]);
        }
    }
    out
}
