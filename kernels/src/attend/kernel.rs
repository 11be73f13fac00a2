//! The fast path of attention: scores in register tiles, then one exponential each, then the weighted mean.
//!
//! Rows of one sequence mostly see the same prefix, so a few of them pass over it together, each query
//! head with sums of its own; the rest of what a row sees it passes over alone. Neither changes the order in which a
//! query head sums, and a sum that is put down in between is taken up again unrounded.
#![allow(unsafe_code, reason = "reads and writes rows through pointers")]
#![allow(
    clippy::needless_range_loop,
    reason = "one index runs over operands and sums alike"
)]

use std::ops::Range;

use super::{Attend, Visible};
use crate::exp::exp;
use crate::parallel::MutPtr;
use crate::simd::{Kernel, Simd};
use crate::tile::dots;

/// The most rows that pass over their common prefix together.
const RUN_ROWS: usize = 8;
/// The most where longer runs would leave threads without work.
const SHORT_RUN_ROWS: usize = 4;
/// Units that each thread should find.
const UNITS_PER_THREAD: usize = 2;

/// Splits the rows into runs of neighbours that start at the same cache row, for `kv` key/value heads.
pub(super) fn runs(visible: &[Visible], kv: usize, threads: usize) -> Vec<Range<usize>> {
    let long = runs_of(visible, RUN_ROWS);
    match long.len() * kv < UNITS_PER_THREAD * threads {
        true => runs_of(visible, SHORT_RUN_ROWS),
        false => long,
    }
}

fn runs_of(visible: &[Visible], most: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (row, seen) in visible.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if visible[run.start].start == seen.start && run.len() < most => run.end += 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

/// Some units of work: a unit is a run of rows with the query heads that share one key/value head. Units are counted
/// run by run within a key/value head, so that its columns of the cache stay near.
pub(super) struct Units<'a> {
    pub(super) op: &'a Attend,
    pub(super) runs: &'a [Range<usize>],
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) units: Range<usize>,
    /// The whole result, zero so far where these units write.
    pub(super) out: MutPtr<f32>,
}

impl Kernel for Units<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let heads = self.op.heads;
        let (group, d) = (heads.query / heads.kv, heads.d);
        let (mut queries, mut weights) = (Vec::new(), Vec::new());
        for unit in self.units {
            let (kv, run) = (unit / self.runs.len(), &self.runs[unit % self.runs.len()]);
            let columns = heads.kv * d;
            let k = CacheHead {
                columns,
                d,
                values: &self.k[kv * d..],
            };
            let v = CacheHead {
                columns,
                d,
                values: &self.v[kv * d..],
            };

            queries.clear();
            let mut n_weights = 0;
            for row in run.clone() {
                let seen = &self.op.visible[row];
                for head in kv * group..(kv + 1) * group {
                    let at = (row * heads.query + head) * d;
                    // SAFETY: `at` is the start of a head, and no other unit has this row and head.
                    let out = unsafe { self.out.at(at) };
                    queries.push(Query {
                        q: &self.q[at..][..d],
                        seen,
                        weights: n_weights,
                        out,
                    });
                    n_weights += seen.len();
                }
            }
            weights.clear();
            weights.resize(n_weights, 0.0);

            let common = self.op.visible[run.clone()]
                .iter()
                .map(|seen| seen.prefix as usize)
                .min()
                .unwrap_or(0);
            score(simd, &queries, 0..common, k, &mut weights);
            for row in queries.chunks_exact(group) {
                score(simd, row, common..row[0].seen.len(), k, &mut weights);
            }
            for query in &queries {
                softmax(
                    &mut weights[query.weights..][..query.seen.len()],
                    self.op.scale,
                );
            }
            mix(simd, &queries, 0..common, v, &weights);
            for row in queries.chunks_exact(group) {
                mix(simd, row, common..row[0].seen.len(), v, &weights);
            }
        }
    }
}

/// One query head of one row.
#[derive(Clone, Copy)]
struct Query<'a> {
    q: &'a [f32],
    seen: &'a Visible,
    /// Where its weights start, one for each visible row.
    weights: usize,
    /// Its `d` places of the result.
    out: *mut f32,
}

/// The `d` columns of one key/value head of a cache; `values` starts at the first of these columns.
#[derive(Clone, Copy)]
struct CacheHead<'a> {
    columns: usize,
    d: usize,
    values: &'a [f32],
}

impl<'a> CacheHead<'a> {
    #[inline(always)]
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.columns..][..self.d]
    }
}

/// Writes `q . k` for some of the visible places, which must be the same cache rows for all of the queries.
#[inline(always)]
fn score<S: Simd>(
    simd: S,
    queries: &[Query<'_>],
    places: Range<usize>,
    k: CacheHead<'_>,
    scores: &mut [f32],
) {
    let mut left = queries;
    while !left.is_empty() {
        let places = places.clone();
        let tile = match left.len() {
            1 => score_tile::<S, 1>(simd, left, places, k, scores),
            2 => score_tile::<S, 2>(simd, left, places, k, scores),
            6.. if S::TILE_ROWS >= 6 => score_tile::<S, 6>(simd, left, places, k, scores),
            4.. if S::TILE_ROWS >= 4 => score_tile::<S, 4>(simd, left, places, k, scores),
            3.. if S::TILE_ROWS >= 3 => score_tile::<S, 3>(simd, left, places, k, scores),
            _ => score_tile::<S, 2>(simd, left, places, k, scores),
        };
        left = &left[tile..];
    }
}

/// The first `A` queries; returns A.
#[inline(always)]
fn score_tile<S: Simd, const A: usize>(
    simd: S,
    queries: &[Query<'_>],
    places: Range<usize>,
    k: CacheHead<'_>,
    scores: &mut [f32],
) -> usize {
    let seen = queries[0].seen;
    let mut q = [queries[0].q.as_ptr(); A];
    for a in 0..A {
        q[a] = queries[a].q.as_ptr();
    }
    let mut place = places.start;
    while place < places.end {
        // Past the end the last row stands in, and its products are dropped.
        let count = (places.end - place).min(4);
        let mut rows = [q[0]; 4];
        for c in 0..4 {
            rows[c] = k.row(seen.row(place + c.min(count - 1))).as_ptr();
        }
        // SAFETY: every pointer was made from a slice of `d` values.
        let products = unsafe { dots(simd, q, rows, k.d, 0) };
        for a in 0..A {
            let to = &mut scores[queries[a].weights + place..][..count];
            to.copy_from_slice(&products[a][..count]);
        }
        place += 4;
    }
    A
}

/// Turns the scores of a query into the weights of its visible rows.
#[inline(always)]
fn softmax(scores: &mut [f32], scale: f32) {
    for score in scores.iter_mut() {
        *score *= scale;
    }
    let max = max(scores);
    let mut totals = [0.0; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - max);
            totals[lane] += chunk[lane];
        }
    }
    for (score, total) in rest.iter_mut().zip(&mut totals) {
        *score = exp(*score - max);
        *total += *score;
    }
    let inverse = 1.0 / totals.iter().sum::<f32>();
    for score in scores {
        *score *= inverse;
    }
}

/// Sums and maxima run in so many lanes, since one operation waiting for the other would take longer than the rest.
const LANES: usize = 32;

/// The largest value, NaN aside.
#[inline(always)]
fn max(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, larger)
}

/// Adds to the results the weighted rows of some of the visible places, which must be the same cache rows for all of
/// the queries.
#[inline(always)]
fn mix<S: Simd>(
    simd: S,
    queries: &[Query<'_>],
    places: Range<usize>,
    v: CacheHead<'_>,
    weights: &[f32],
) {
    let mut left = queries;
    while !left.is_empty() {
        let places = places.clone();
        let tile = match left.len() {
            1 => mix_tile::<S, 1>(simd, left, places, v, weights),
            4.. if S::TILE_ROWS >= 4 => mix_tile::<S, 4>(simd, left, places, v, weights),
            _ => mix_tile::<S, 2>(simd, left, places, v, weights),
        };
        left = &left[tile..];
    }
}

/// The first `A` queries; returns A.
#[inline(always)]
fn mix_tile<S: Simd, const A: usize>(
    simd: S,
    queries: &[Query<'_>],
    places: Range<usize>,
    v: CacheHead<'_>,
    weights: &[f32],
) -> usize {
    let mut columns = 0;
    while columns < v.d {
        let left = v.d - columns;
        let part = Part {
            queries,
            places: places.clone(),
            v,
            weights,
            column: columns,
        };
        columns += match left / S::WIDTH {
            0 => part.add::<S, A, 1>(simd, left),
            1 => part.add::<S, A, 1>(simd, S::WIDTH),
            2 => part.add::<S, A, 2>(simd, 2 * S::WIDTH),
            3 => part.add::<S, A, 3>(simd, 3 * S::WIDTH),
            _ => part.add::<S, A, 4>(simd, 4 * S::WIDTH),
        };
    }
    A
}

/// Some columns of the weighted sum.
struct Part<'a> {
    queries: &'a [Query<'a>],
    places: Range<usize>,
    v: CacheHead<'a>,
    weights: &'a [f32],
    column: usize,
}

impl Part<'_> {
    /// The first `A` queries and the next `count` columns, which are C whole vectors or less than one; returns `count`.
    #[inline(always)]
    fn add<S: Simd, const A: usize, const C: usize>(self, simd: S, count: usize) -> usize {
        assert!(
            count == C * S::WIDTH || (C == 1 && count < S::WIDTH),
            "the vectors hold the columns"
        );
        let (queries, column) = (&self.queries[..A], self.column);
        let seen = queries[0].seen;
        let mut out = [queries[0].out; A];
        let mut sums = [[simd.splat(0.0); C]; A];
        for a in 0..A {
            // SAFETY: a query has `d` places in the result, of which `count` are left from `column` on.
            unsafe {
                out[a] = queries[a].out.add(column);
                for c in 0..C {
                    sums[a][c] = load(simd, out[a].add(c * S::WIDTH), count);
                }
            }
        }
        for place in self.places {
            let row = &self.v.row(seen.row(place))[column..][..count];
            let mut values = [simd.splat(0.0); C];
            for c in 0..C {
                // SAFETY: the row has `count` values.
                values[c] = unsafe { load(simd, row.as_ptr().add(c * S::WIDTH), count) };
            }
            for a in 0..A {
                let weight = simd.splat(self.weights[queries[a].weights + place]);
                for c in 0..C {
                    sums[a][c] = simd.mul_add(weight, values[c], sums[a][c]);
                }
            }
        }
        for a in 0..A {
            for c in 0..C {
                // SAFETY: as for the loads from the result.
                unsafe {
                    let to = out[a].add(c * S::WIDTH);
                    match count < S::WIDTH {
                        true => simd.store_first(to, count, sums[a][c]),
                        false => simd.store(to, sums[a][c]),
                    }
                }
            }
        }
        count
    }
}

/// A whole vector, or `count` lanes if that is less.
///
/// # Safety
/// As many values must be readable at `from`.
#[inline(always)]
unsafe fn load<S: Simd>(simd: S, from: *const f32, count: usize) -> S::Vector {
    // SAFETY: the caller vouches for the values.
    unsafe {
        match count < S::WIDTH {
            true => simd.load_first(from, count),
            false => simd.load(from),
        }
    }
}
