//! Hodges-Lehmann estimate of a shift and its interval by the exact signed-rank law: times have outliers, and a mean
//! follows them.

use crate::paired::Effect;

/// Half the median of all sums of two values, a value with itself included, and the interval in which the signed-rank
/// test of Wilcoxon rejects nothing. `None` if so few values cannot reject at this confidence whatever they are.
///
/// Sources: Hodges and Lehmann (1963); the law of the rank sum is counted, not approximated, up to 60 values, and
/// normal above.
pub(crate) fn hodges_lehmann(values: &[f64], confidence: f64) -> Option<Effect> {
    let n = values.len();
    let mut walsh: Vec<f64> = Vec::with_capacity(n * (n + 1) / 2);
    for (i, a) in values.iter().enumerate() {
        walsh.extend(values[i..].iter().map(|b| (a + b) / 2.0));
    }
    walsh.sort_by(f64::total_cmp);
    let last = walsh.len().checked_sub(1)?;
    let skipped = rejected(n, (1.0 - confidence) / 2.0)?;
    Some(Effect {
        log_ratio: (walsh[last / 2] + walsh[last - last / 2]) / 2.0,
        low: walsh[skipped],
        high: walsh[last - skipped],
        n,
    })
}

/// Values that are enough to reject at this confidence, if all have one sign.
pub(crate) fn least_values(confidence: f64) -> usize {
    let tail = (1.0 - confidence) / 2.0;
    (1..)
        .find(|n| 0.5f64.powi(*n) <= tail)
        .map_or(usize::MAX, |n| n as usize)
}

/// How likely a fair coin gives `fewer` or more of one side in `fewer + more` throws: the sign test's exact tail.
pub(crate) fn sign_tail(fewer: u64, more: u64) -> f64 {
    use statrs::distribution::{Binomial, DiscreteCDF as _};
    match fewer.checked_sub(1) {
        None => 1.0,
        Some(below) => Binomial::new(0.5, fewer + more).map_or(1.0, |law| law.sf(below)),
    }
}

/// The largest rank sum whose lower tail is at most `tail`; `None` if even 0 is likelier.
fn rejected(n: usize, tail: f64) -> Option<usize> {
    let most = n * (n + 1) / 2;
    if n > 60 {
        let (mean, var) = (most as f64 / 2.0, (most * (2 * n + 1)) as f64 / 12.0);
        let z = {
            use statrs::distribution::{ContinuousCDF as _, Normal};
            Normal::standard().inverse_cdf(tail)
        };
        return Some((mean + z * var.sqrt() - 0.5).floor().max(0.0) as usize);
    }
    // Chance of each rank sum when every sign is a coin's.
    let mut chance = vec![0.0; most + 1];
    chance[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..=most).rev() {
            let with = sum.checked_sub(rank).map_or(0.0, |rest| chance[rest]);
            chance[sum] = (chance[sum] + with) / 2.0;
        }
    }
    let mut below = 0.0;
    let upto = chance.iter().take_while(|p| {
        below += **p;
        below <= tail
    });
    upto.count().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_law_of_the_rank_sum_is_that_of_the_tables() {
        // Critical values of Wilcoxon's signed-rank test, two-sided 5 %: n = 6: 0, 10: 8, 20: 52.
        for (n, want) in [(5, None), (6, Some(0)), (10, Some(8)), (20, Some(52))] {
            assert_eq!(rejected(n, 0.025), want, "{n}");
        }
        assert_eq!(least_values(0.95), 6);
        // The normal law takes over without a step: 60 values exactly and by the formula.
        let exact = rejected(60, 0.025).unwrap() as i64;
        let mean = 60.0 * 61.0 / 4.0;
        let normal = mean - 1.96 * (60.0f64 * 61.0 * 121.0 / 24.0).sqrt();
        assert!((exact as f64 - normal).abs() < 3.0, "{exact} {normal}");
    }

    #[test]
    fn the_tail_of_the_sign_test_is_counted() {
        for (fewer, more, want) in [
            (0, 0, 1.0),
            (0, 3, 1.0),
            (6, 0, 1.0 / 64.0),
            (5, 1, 7.0 / 64.0),
            (3, 1, 5.0 / 16.0),
        ] {
            let got = sign_tail(fewer, more);
            // Rounding of the incomplete beta function.
            assert!((got - want).abs() < 1e-9, "{fewer} {more}: {got}");
        }
    }

    #[test]
    fn the_estimate_is_the_shift_and_an_outlier_does_not_move_it() {
        let mut values: Vec<f64> = (0..9).map(|i| 0.05 + 0.001 * f64::from(i - 4)).collect();
        let got = hodges_lehmann(&values, 0.95).unwrap();
        assert!((got.log_ratio - 0.05).abs() < 1e-12, "{got:?}");
        assert!(
            got.low < 0.05 && got.high > 0.05 && got.high - got.low < 0.006,
            "{got:?}"
        );
        values[8] = 3.0;
        let got = hodges_lehmann(&values, 0.95).unwrap();
        assert!((got.log_ratio - 0.05).abs() < 0.001, "{got:?}");
        assert_eq!(hodges_lehmann(&values[..5], 0.95), None);
        assert_eq!(hodges_lehmann(&[], 0.95), None);
    }
}
