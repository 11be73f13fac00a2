//! Tests and intervals that a matrix of cells needs beside the bootstrap.

use crate::bootstrap::below;
use crate::sums::ratio;

/// Random swaps of [`swap_test`].
const SWAPS: u32 = 10_000;
/// Prompts up to which all swaps are tried: `2^13` is less than [`SWAPS`].
const EXACT: usize = 13;
/// Of the standard normal law, 97.5 %.
const Z: f64 = 1.959_963_984_540_054;

/// Wilson's 95 % interval of a share `hits / of`, from 0 to 1; `None` if `of` is 0.
///
/// For counts that are independent, such as right answers to different prompts. Rounds of one prompt are not: their
/// shares have the bootstrap's interval over prompts.
///
/// Source: Wilson (1927), without correction for continuity.
pub fn wilson(hits: u64, of: u64) -> Option<(f64, f64)> {
    let share = ratio(hits, of)?;
    let n = of as f64;
    let z2 = Z * Z;
    let center = (share + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
    Some(((center - half).max(0.0), (center + half).min(1.0)))
}

/// Benjamini and Hochberg's adjusted p-values, in the order given: those at most q are discoveries of which a share q
/// is expected to be false.
///
/// Source: Benjamini and Hochberg (1995), the step-up procedure.
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let n = p_values.len();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| p_values[*b].total_cmp(&p_values[*a]));
    let mut adjusted = vec![1.0; n];
    let mut least = 1.0f64;
    for (from_top, idx) in order.into_iter().enumerate() {
        let rank = (n - from_top) as f64;
        least = least.min(p_values[idx] * n as f64 / rank);
        adjusted[idx] = least;
    }
    adjusted
}

/// One prompt's sums of two arms, each `(num, den)`: committed tokens and rounds for tau, tokens and nanoseconds for
/// speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairedSums {
    /// Of the arm asked about.
    pub mine: (u64, u64),
    /// Of the arm it is held against.
    pub theirs: (u64, u64),
}

/// Two-sided p-value that the two arms' pooled ratios `sum(num) / sum(den)` are equal: were the arms alike, each
/// prompt's sums could as well be the other's, so they are swapped at random and the log of the ratios compared. All
/// swaps are tried with up to 13 prompts, else 10,000 with a fixed seed. `None` with fewer than 2 prompts, or if a
/// ratio does not exist or is 0.
///
/// The smallest value that `n` prompts allow is `2^(1 - n)`: five or fewer cannot be significant at 5 %.
pub fn swap_test(prompts: &[PairedSums]) -> Option<f64> {
    let n = prompts.len();
    if n < 2 {
        return None;
    }
    let observed = log_ratio(prompts, |_| false)?.abs();
    // A swap of all is the same distance, up to rounding.
    let as_far = |swapped: Option<f64>| swapped.is_some_and(|v| v.abs() >= observed - 1e-12);
    if n <= EXACT {
        let all = 1u32 << n;
        let hits = (0..all).filter(|mask| as_far(log_ratio(prompts, |i| mask >> i & 1 == 1)));
        return Some(hits.count() as f64 / f64::from(all));
    }
    let mut state = 0x51A9;
    let mut hits = 1;
    for _ in 0..SWAPS {
        let swaps: Vec<u64> = (0..n.div_ceil(32))
            .map(|_| below(&mut state, 1 << 32) as u64)
            .collect();
        let swapped = log_ratio(prompts, |i| swaps[i / 32] >> (i % 32) & 1 == 1);
        hits += u32::from(as_far(swapped));
    }
    Some(f64::from(hits) / f64::from(SWAPS + 1))
}

/// Log of the first arm's ratio over the second's, where some prompts' arms are swapped.
fn log_ratio(prompts: &[PairedSums], swapped: impl Fn(usize) -> bool) -> Option<f64> {
    let mut sums = [0u64; 4];
    for (i, prompt) in prompts.iter().enumerate() {
        let (a, b) = match swapped(i) {
            true => (prompt.theirs, prompt.mine),
            false => (prompt.mine, prompt.theirs),
        };
        for (sum, x) in sums.iter_mut().zip([a.0, a.1, b.0, b.1]) {
            *sum += x;
        }
    }
    let of = |num, den| ratio(num, den).filter(|r| *r > 0.0).map(f64::ln);
    Some(of(sums[0], sums[1])? - of(sums[2], sums[3])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, off: f64) {
        assert!((got - want).abs() < off, "{got} for {want}");
    }

    #[test]
    fn wilsons_interval_is_the_published_one() {
        // R: prop.test(8, 10, correct = FALSE) and (0, 10).
        let (low, high) = wilson(8, 10).unwrap();
        close(low, 0.490_162_5, 1e-6);
        close(high, 0.943_317_8, 1e-6);
        let (low, high) = wilson(0, 10).unwrap();
        assert_eq!(low, 0.0);
        close(high, 0.277_532_8, 1e-6);
        close(wilson(10, 10).unwrap().1, 1.0, 1e-12);
        assert_eq!(wilson(0, 0), None);
    }

    #[test]
    fn the_papers_fifteen_hypotheses_give_four_discoveries() {
        // Benjamini and Hochberg (1995), section 3.2.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let mut given = p;
        given.reverse();
        let adjusted = benjamini_hochberg(&given);
        let found = adjusted.iter().filter(|a| **a <= 0.05).count();
        assert_eq!(found, 4);
        close(adjusted[14], 0.0015, 1e-12);
        // 0.0298 * 15 / 7 is less than 0.0278 * 15 / 6 and 0.0344 * 15 / 8 more.
        close(adjusted[9], 0.0298 * 15.0 / 7.0, 1e-12);
        close(adjusted[0], 1.0, 1e-12);
        assert!(benjamini_hochberg(&[]).is_empty());
        assert_eq!(benjamini_hochberg(&[0.03]), [0.03]);
    }

    fn pair(mine: u64, theirs: u64) -> PairedSums {
        PairedSums {
            mine: (mine, 10),
            theirs: (theirs, 10),
        }
    }

    #[test]
    fn a_few_prompts_are_swapped_in_every_way() {
        // All four one way: only that and its mirror are as far, 2 of 16.
        assert_eq!(swap_test(&[pair(30, 20); 4]), Some(0.125));
        assert_eq!(swap_test(&[pair(20, 20); 4]), Some(1.0));
        // Differences 40, -20 and -10 add up to 10; with any other signs they are as far from 0 or further.
        let prompts = [pair(50, 10), pair(20, 40), pair(30, 40)];
        assert_eq!(swap_test(&prompts), Some(1.0));
        let prompts = [pair(50, 10), pair(40, 20), pair(30, 40)];
        // 40 + 20 - 10 = 50 or more: +++, ++- and their mirrors, 4 of 8.
        assert_eq!(swap_test(&prompts), Some(0.5));
        assert_eq!(swap_test(&[pair(3, 2)]), None);
        assert_eq!(swap_test(&[pair(0, 2); 3]), None);
    }

    #[test]
    fn many_prompts_are_swapped_at_random_and_agree_with_the_normal_law() {
        // 400 prompts, each 1 up or 1 down around 100; 230 up: the sum is 60, its deviation 20, so p is near 2 Phi(-3).
        let prompts: Vec<PairedSums> = (0..400)
            .map(|i| {
                if i < 230 {
                    pair(101, 100)
                } else {
                    pair(100, 101)
                }
            })
            .collect();
        let p = swap_test(&prompts).unwrap();
        // 27 of 10,000 are expected: Poisson, five deviations.
        assert!((0.0005..0.0055).contains(&p), "{p}");
        assert_eq!(swap_test(&prompts), Some(p));
        assert!(swap_test(&[pair(30, 20); 14]).unwrap() < 0.001);
    }

    #[test]
    fn one_in_twenty_is_significant_where_arms_are_alike() {
        let mut state = 3;
        let mut trial = || {
            let mut prompts = Vec::new();
            for _ in 0..12 {
                let base = 50 + below(&mut state, 100) as u64;
                let one = base + below(&mut state, 40) as u64;
                let other = base + below(&mut state, 40) as u64;
                prompts.push(pair(one, other));
            }
            swap_test(&prompts).unwrap() <= 0.05
        };
        let n = (0..400).filter(|_| trial()).count();
        // 20 expected, deviation 4.4; four of them.
        assert!((3..=37).contains(&n), "{n} of 400");
    }
}
