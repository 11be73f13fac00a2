//! Sums, products and softmax of rows, in lanes that the compiler turns into vector instructions.

use kernels::exp;

/// Sum of `row` in eight interleaved lanes, so that it can be vectorised.
#[inline(always)]
pub(super) fn sum(row: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let chunks = row.chunks_exact(8);
    let rest: f32 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

/// Scalar product of two rows of one length, in eight interleaved lanes.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8
        .remainder()
        .iter()
        .zip(b8.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x8, y8) in a8.zip(b8) {
        for ((lane, x), y) in lanes.iter_mut().zip(x8).zip(y8) {
            *lane += x * y;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

/// Largest value of a row, in eight interleaved lanes; minus infinity if it is empty.
#[inline(always)]
pub(super) fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 8];
    let chunks = row.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Replaces `row` by its softmax and returns the largest input.
pub(super) fn softmax_in_place(row: &mut [f32]) {
    let top = max(row);
    for value in row.iter_mut() {
        *value = exp(*value - top);
    }
    let scale = 1.0 / sum(row);
    for value in row.iter_mut() {
        *value *= scale;
    }
}
