//! Intervals of a ratio of sums whose unit is the prompt: answers to one prompt, and rounds of one answer, are not
//! independent, so whole prompts are drawn anew.

const RESAMPLES: usize = 2000;

/// Percentile bootstrap interval, 95 %, of a statistic over clusters: as many are drawn with replacement as there
/// are. The same clusters give the same interval. `None` with fewer than 2 clusters, or if the statistic never exists.
pub(crate) fn interval<T: Copy>(
    clusters: &[T],
    statistic: impl Fn(&[T]) -> Option<f64>,
) -> Option<(f64, f64)> {
    if clusters.len() < 2 {
        return None;
    }
    let mut state = 0x5EED_u64;
    let mut drawn = Vec::with_capacity(clusters.len());
    let mut values: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            drawn.clear();
            drawn.extend(
                clusters
                    .iter()
                    .map(|_| clusters[below(&mut state, clusters.len())]),
            );
            statistic(&drawn)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |share: f64| values[(share * last as f64).round() as usize];
    Some((at(0.025), at(0.975)))
}

/// [`interval`] of `sum(num) / sum(den)` over clusters `(num, den)`.
pub(crate) fn ratio_interval(clusters: &[(u64, u64)]) -> Option<(f64, f64)> {
    interval(clusters, |drawn| {
        let (num, den) = drawn
            .iter()
            .fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
        (den > 0).then(|| num as f64 / den as f64)
    })
}

/// An index below `n`: splitmix64, the high bits scaled.
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    ((u128::from(z) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_clusters_leave_no_doubt() {
        assert_eq!(ratio_interval(&[(6, 2); 5]), Some((3.0, 3.0)));
        assert_eq!(ratio_interval(&[(6, 2)]), None);
        assert_eq!(ratio_interval(&[(0, 0); 3]), None);
    }

    #[test]
    fn the_interval_is_as_wide_as_the_spread_of_prompts_says() {
        // 400 prompts of 10 rounds each, half at 2 tokens a round and half at 4: the ratio's standard error is
        // 1 / sqrt(400) = 0.05, so the interval is 3 -+ 0.098. 2000 resamples place its ends within about 0.01.
        let clusters: Vec<(u64, u64)> = (0..400).map(|i| (20 + 20 * (i % 2), 10)).collect();
        let (low, high) = ratio_interval(&clusters).unwrap();
        assert!((low - 2.902).abs() < 0.02, "{low}");
        assert!((high - 3.098).abs() < 0.02, "{high}");
    }

    #[test]
    fn indices_cover_their_range_evenly() {
        let mut state = 1;
        let mut hits = [0u32; 7];
        (0..70_000).for_each(|_| hits[below(&mut state, 7)] += 1);
        // Standard deviation of a count is sqrt(70000 * 1/7 * 6/7) = 93; five of them.
        assert!(hits.iter().all(|h| h.abs_diff(10_000) < 465), "{hits:?}");
    }
}
