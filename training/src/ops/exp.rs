//! `exp` in a form that the compiler turns into vector instructions.

/// `e^x` in f32, to 2 units in the last place for `-87 <= x <= 88`; smaller inputs give about 1e-38, larger are cut.
///
/// Splits `x = n ln 2 + r`, evaluates a polynomial in `r` and scales by `2^n` through the exponent bits.
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer without a call.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HI - n * LN2_LO;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // The low bits of `shifted` hold n (two's complement); move n + 127 to the exponent.
    let scale = f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23);
    p * scale
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polynomial_follows_exp_over_its_range() {
        let mut x = -86.9f32;
        while x < 87.9 {
            let want = f64::from(x).exp();
            let got = f64::from(exp(x));
            // Half a unit each for polynomial, scaling and the reduced argument.
            assert!(
                (got - want).abs() <= 3e-7 * want,
                "exp({x}): {got} for {want}"
            );
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e4) < 2e-38);
    }
}
