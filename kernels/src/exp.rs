//! The exponential in a form that the compiler turns into vector instructions.

/// `e^x` in f32, to 3e-7 of its value for `-87 <= x <= 88`; smaller inputs give about 1e-38, larger ones are cut.
///
/// `x = n ln 2 + r`, a polynomial in `r`, and a scale of `2^n` through the exponent bits. Adding and subtracting
/// 1.5 * 2^23 rounds to the nearest integer without a call.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
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
    // The low bits of `shifted` hold n in two's complement; n + 127 belongs into the exponent.
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
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
        assert!(exp(-1e4) < 2e-38);
        assert_eq!(silu(0.0), 0.0);
        assert!(silu(-1e4).abs() < 1e-30 && silu(1e4) == 1e4);
    }
}
