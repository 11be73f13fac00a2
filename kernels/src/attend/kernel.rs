//! The fast path of attention: scores in register tiles, then one exponential each, then the weighted mean.
#![allow(unsafe_code, reason = "reads cache rows through pointers")]
#![allow(
    clippy::needless_range_loop,
    reason = "one index runs over operands and sums alike"
)]

use super::{Attend, Visible};
use crate::simd::{Kernel, Simd};
use crate::tile::dots;

/// Some of the `N * Hkv` groups: the query heads of one row that share a key/value head.
pub(super) struct Groups<'a> {
    pub(super) op: &'a Attend,
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    /// Index of the first group.
    pub(super) first: usize,
    /// The results of these groups.
    pub(super) out: &'a mut [f32],
}

impl Kernel for Groups<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let heads = self.op.heads;
        let (len, columns) = (heads.group_len(), heads.kv * heads.d);
        let mut weights = Vec::new();
        let mut totals = vec![0.0; heads.query / heads.kv];
        for (i, out) in self.out.chunks_exact_mut(len).enumerate() {
            let group = self.first + i;
            let seen = &self.op.visible[group / heads.kv];
            let column = group % heads.kv * heads.d;
            let rows = |values| CacheRows {
                seen,
                columns,
                d: heads.d,
                values,
            };

            weights.clear();
            weights.resize(totals.len() * seen.len(), 0.0);
            let q = &self.q[group * len..][..len];
            score(simd, q, rows(&self.k[column..]), &mut weights);
            for (head, total) in weights.chunks_exact_mut(seen.len()).zip(&mut totals) {
                *total = exponentials(head, self.op.scale);
            }
            let mix = Mix {
                weights: &weights,
                totals: &totals,
                v: rows(&self.v[column..]),
            };
            mix.run(simd, out);
        }
    }
}

/// The `d` columns of one key/value head in the visible rows; `values` starts at the first of these columns.
#[derive(Clone, Copy)]
struct CacheRows<'a> {
    seen: &'a Visible,
    columns: usize,
    d: usize,
    values: &'a [f32],
}

impl CacheRows<'_> {
    fn row(&self, place: usize) -> &[f32] {
        &self.values[self.seen.row(place) * self.columns..][..self.d]
    }
}

/// Writes `q . k` for each head of `q` and each visible row, head by head.
#[inline(always)]
fn score<S: Simd>(simd: S, q: &[f32], k: CacheRows<'_>, scores: &mut [f32]) {
    let n_heads = q.len() / k.d;
    let mut head = 0;
    while head < n_heads {
        let (q, scores) = (&q[head * k.d..], &mut scores[head * k.seen.len()..]);
        head += match n_heads - head {
            1 => score_heads::<S, 1>(simd, q, k, scores),
            2 => score_heads::<S, 2>(simd, q, k, scores),
            3 if S::TILE_ROWS >= 3 => score_heads::<S, 3>(simd, q, k, scores),
            4.. if S::TILE_ROWS >= 4 => score_heads::<S, 4>(simd, q, k, scores),
            _ => score_heads::<S, 2>(simd, q, k, scores),
        };
    }
}

/// The first `A` heads; returns A.
#[inline(always)]
fn score_heads<S: Simd, const A: usize>(
    simd: S,
    q: &[f32],
    k: CacheRows<'_>,
    scores: &mut [f32],
) -> usize {
    let (n, d) = (k.seen.len(), k.d);
    let q: [*const f32; A] = std::array::from_fn(|head| q[head * d..][..d].as_ptr());
    for first in (0..n).step_by(4) {
        // Past the end the last row stands in, and its products are dropped.
        let rows = std::array::from_fn(|c| k.row((first + c).min(n - 1)).as_ptr());
        // SAFETY: every pointer was made from a slice of `d` values.
        let products = unsafe { dots(simd, q, [rows], d) };
        let count = (n - first).min(4);
        for (head, [products]) in products.iter().enumerate() {
            scores[head * n + first..][..count].copy_from_slice(&products[..count]);
        }
    }
    A
}

/// Turns scores into weights that are not yet divided by their sum, and returns that sum.
fn exponentials(scores: &mut [f32], scale: f32) -> f32 {
    let mut max = f32::NEG_INFINITY;
    for score in scores.iter_mut() {
        *score *= scale;
        max = max.max(*score);
    }
    let mut total = 0.0;
    for score in scores {
        *score = (*score - max).exp();
        total += *score;
    }
    total
}

/// The weighted mean of the visible rows of `v`, for each head.
struct Mix<'a> {
    /// Head by head, one for each visible row.
    weights: &'a [f32],
    /// The sum of each head's weights.
    totals: &'a [f32],
    v: CacheRows<'a>,
}

impl Mix<'_> {
    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, out: &mut [f32]) {
        let n_heads = self.totals.len();
        assert!(
            out.len() == n_heads * self.v.d,
            "the result has d columns for each head"
        );
        let mut head = 0;
        while head < n_heads {
            // SAFETY: the heads named are among the `n_heads` that `out` has room for.
            head += unsafe {
                match n_heads - head {
                    1 => self.heads::<S, 1>(simd, head, out.as_mut_ptr()),
                    4.. if S::TILE_ROWS >= 4 => self.heads::<S, 4>(simd, head, out.as_mut_ptr()),
                    _ => self.heads::<S, 2>(simd, head, out.as_mut_ptr()),
                }
            };
        }
    }

    /// `A` heads from `head` on; returns A.
    ///
    /// # Safety
    /// `out` must have room for `d` values of each head up to `head + A`.
    #[inline(always)]
    unsafe fn heads<S: Simd, const A: usize>(&self, simd: S, head: usize, out: *mut f32) -> usize {
        let d = self.v.d;
        let mut at = 0;
        while at < d {
            let left = d - at;
            // SAFETY: `columns` writes at most the columns that are left.
            unsafe {
                let to = out.add(head * d + at);
                at += match left / S::WIDTH {
                    0 => self.columns::<S, A, 1>(simd, (head, at), left, to),
                    1 => self.columns::<S, A, 1>(simd, (head, at), S::WIDTH, to),
                    2 | 3 => self.columns::<S, A, 2>(simd, (head, at), 2 * S::WIDTH, to),
                    _ => self.columns::<S, A, 4>(simd, (head, at), 4 * S::WIDTH, to),
                };
            }
        }
        A
    }

    /// `count` columns from `at.1` on for `A` heads from `at.0` on, in C vectors a head; returns `count`, which is
    /// either C whole vectors or part of one.
    ///
    /// # Safety
    /// The columns must be within `d`, and `to` must have room for them in A rows that are `d` apart.
    #[inline(always)]
    unsafe fn columns<S: Simd, const A: usize, const C: usize>(
        &self,
        simd: S,
        (head, column): (usize, usize),
        count: usize,
        to: *mut f32,
    ) -> usize {
        let n = self.v.seen.len();
        let mut sums = [[simd.splat(0.0); C]; A];
        for place in 0..n {
            let row = &self.v.row(place)[column..];
            let mut values = [simd.splat(0.0); C];
            for c in 0..C {
                // SAFETY: the row has `count` values from here on.
                values[c] = unsafe {
                    match count < S::WIDTH {
                        true => simd.load_first(row.as_ptr(), count),
                        false => simd.load(row.as_ptr().add(c * S::WIDTH)),
                    }
                };
            }
            for a in 0..A {
                let weight = simd.splat(self.weights[(head + a) * n + place]);
                for c in 0..C {
                    sums[a][c] = simd.mul_add(weight, values[c], sums[a][c]);
                }
            }
        }
        for a in 0..A {
            let total = simd.splat(self.totals[head + a]);
            for c in 0..C {
                let mean = simd.div(sums[a][c], total);
                // SAFETY: the caller vouches for the room.
                unsafe {
                    let to = to.add(a * self.v.d + c * S::WIDTH);
                    match count < S::WIDTH {
                        true => simd.store_first(to, count, mean),
                        false => simd.store(to, mean),
                    }
                }
            }
        }
        count
    }
}
