//! The exponential in a form that the compiler turns into vector instructions.

/// `e^x` in f32, to 3e-7 of its value where that is a normal number. Above it overflows to infinity, below it underflows
/// to 0 by way of the subnormal numbers; NaN stays NaN.
///
/// `x = n ln 2 + r`, a polynomial in `r`, and a scale of `2^n` through the exponent bits, in two halves so that each is a
/// normal number. Adding and subtracting 1.5 * 2^23 rounds to the nearest integer without a call.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let x = x.clamp(-104.0, 89.0);
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
    // The low bits of `shifted` hold n in two's complement; half of n + 127 belongs into an exponent.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let scale = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    p * scale(half) * scale(n - half)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::{exp, silu};

    #[test]
    fn the_polynomial_follows_exp_over_its_range() {
        let mut x = -86.9f32;
        while x < 87.9 {
            let want = f64::from(x).exp();
            let off = (f64::from(exp(x)) - want).abs();
            assert!(off <= 3e-7 * want, "exp({x}) is off by {off:e}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(
            (exp(-1e4), exp(89.0), exp(1e4)),
            (0.0, f32::INFINITY, f32::INFINITY)
        );
        assert!(exp(88.7).is_finite() && exp(-90.0) > 0.0 && exp(f32::NAN).is_nan());
        assert_eq!((silu(0.0), silu(-f32::MAX), silu(1e4)), (0.0, -0.0, 1e4));
    }
}
