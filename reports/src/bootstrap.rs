//! Intervals of a ratio of sums whose unit is the prompt: answers to one prompt, and rounds of one answer, are not
//! independent, so whole prompts are drawn anew.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

const RESAMPLES: usize = 10_000;
const CONFIDENCE: f64 = 0.95;
const SEED: u64 = 0x5EED;

/// How an interval is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Draws {
    /// Resamples.
    pub(crate) resamples: usize,
    /// Share of intervals that hold the truth, below 1.
    pub(crate) confidence: f64,
}

impl Default for Draws {
    fn default() -> Self {
        Self {
            resamples: RESAMPLES,
            confidence: CONFIDENCE,
        }
    }
}

/// Bias-corrected and accelerated bootstrap interval, 95 %, of a statistic over clusters: as many are drawn with
/// replacement as there are. The same clusters give the same interval. `None` with fewer than 2 clusters, or if the
/// statistic never exists.
///
/// Sources: Efron (1987), "Better bootstrap confidence intervals"; the acceleration is the jackknife's. For the small
/// number of clusters the ends are moved out as Hesterberg (2015), "What teachers should know about the bootstrap",
/// expands percentiles.
pub(crate) fn interval<T: Copy>(
    clusters: &[T],
    statistic: impl Fn(&[T]) -> Option<f64>,
) -> Option<(f64, f64)> {
    interval_with(Draws::default(), clusters, statistic)
}

/// [`interval`] with as many resamples and of such confidence as `draws` says.
pub(crate) fn interval_with<T: Copy>(
    draws: Draws,
    clusters: &[T],
    statistic: impl Fn(&[T]) -> Option<f64>,
) -> Option<(f64, f64)> {
    if clusters.len() < 2 {
        return None;
    }
    let mut state = SEED;
    let mut drawn = Vec::with_capacity(clusters.len());
    let values: Vec<f64> = (0..draws.resamples)
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
    let without = || leave_one_out(clusters, &statistic);
    let shape = (clusters.len(), draws.confidence);
    ends_of(values, shape, statistic(clusters), without)
}

/// [`interval`] of each statistic of the clusters' sums, entry by entry: the same intervals, without a copy of the
/// clusters drawn, and with one draw for all.
pub(crate) fn sums_intervals<const N: usize, const M: usize>(
    clusters: &[[u64; N]],
    statistics: [impl Fn(&[u64; N]) -> Option<f64>; M],
) -> [Option<(f64, f64)>; M] {
    if clusters.len() < 2 {
        return [None; M];
    }
    let mut state = SEED;
    let mut values = [(); M].map(|()| Vec::with_capacity(RESAMPLES));
    for _ in 0..RESAMPLES {
        let mut sums = [0; N];
        for _ in 0..clusters.len() {
            add(&mut sums, &clusters[below(&mut state, clusters.len())]);
        }
        for (list, statistic) in values.iter_mut().zip(&statistics) {
            list.extend(statistic(&sums));
        }
    }
    let mut total = [0; N];
    clusters.iter().for_each(|c| add(&mut total, c));
    let mut found = [None; M];
    for ((found, statistic), values) in found.iter_mut().zip(&statistics).zip(values) {
        let without = || {
            let each = clusters.iter().map(|c| {
                let mut rest = total;
                rest.iter_mut().zip(c).for_each(|(sum, x)| *sum -= x);
                statistic(&rest)
            });
            each.collect()
        };
        *found = ends_of(
            values,
            (clusters.len(), CONFIDENCE),
            statistic(&total),
            without,
        );
    }
    found
}

/// [`ratio_interval`] of each column of clusters. Columns with equally many clusters share their draws, which are the
/// same anyway, and their equal parts are added up once.
pub(crate) fn ratio_intervals(columns: &[Vec<(u64, u64)>]) -> Vec<Option<(f64, f64)>> {
    let mut by_len: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (idx, column) in columns.iter().enumerate() {
        by_len.entry(column.len()).or_default().push(idx);
    }
    let mut found = vec![None; columns.len()];
    for (n, group) in by_len.into_iter().filter(|(n, _)| *n >= 2) {
        let mut parts = Parts::default();
        let places: Vec<(usize, usize)> = group
            .iter()
            .map(|idx| {
                let num = parts.place(columns[*idx].iter().map(|c| c.0).collect());
                (
                    num,
                    parts.place(columns[*idx].iter().map(|c| c.1).collect()),
                )
            })
            .collect();
        let rows = parts.rows(n);
        let width = parts.0.len();
        let mut values = vec![Vec::with_capacity(RESAMPLES); group.len()];
        let (mut state, mut sums) = (SEED, vec![0; width]);
        for _ in 0..RESAMPLES {
            sums.fill(0);
            for _ in 0..n {
                let at = below(&mut state, n) * width;
                add(&mut sums, &rows[at..at + width]);
            }
            for (list, (num, den)) in values.iter_mut().zip(&places) {
                list.extend(ratio(sums[*num], sums[*den]));
            }
        }
        for (idx, values) in group.into_iter().zip(values) {
            let (num, den) = total(&columns[idx]);
            let without = || {
                let each = columns[idx].iter();
                each.map(|c| ratio(num - c.0, den - c.1)).collect()
            };
            found[idx] = ends_of(values, (n, CONFIDENCE), ratio(num, den), without);
        }
    }
    found
}

/// Distinct lists of one number a cluster.
#[derive(Default)]
struct Parts(Vec<Vec<u64>>);

impl Parts {
    fn place(&mut self, part: Vec<u64>) -> usize {
        let known = self.0.iter().position(|p| *p == part);
        known.unwrap_or_else(|| {
            self.0.push(part);
            self.0.len() - 1
        })
    }

    /// `[cluster, part]`.
    fn rows(&self, n: usize) -> Vec<u64> {
        (0..n)
            .flat_map(|cluster| self.0.iter().map(move |part| part[cluster]))
            .collect()
    }
}

fn add(sums: &mut [u64], row: &[u64]) {
    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
}

fn total(clusters: &[(u64, u64)]) -> (u64, u64) {
    clusters
        .iter()
        .fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1))
}

fn ratio(num: u64, den: u64) -> Option<f64> {
    (den > 0).then(|| num as f64 / den as f64)
}

/// The interval's ends from the resampled `values`, in any order, the statistic of all clusters, and what it is without
/// each one of them, which is `None` if it does not always exist.
fn ends_of(
    mut values: Vec<f64>,
    (n_clusters, confidence): (usize, f64),
    value: Option<f64>,
    without: impl FnOnce() -> Option<Vec<f64>>,
) -> Option<(f64, f64)> {
    let last = values.len().checked_sub(1)?;
    let ends = ends(n_clusters, confidence);
    let [low, high] = match value {
        Some(value) => {
            let acceleration = without().map_or(0.0, |w| acceleration(&w));
            levels(&values, value, acceleration, ends)
        }
        None => ends.map(|z| Normal::standard().cdf(z)),
    };
    let mut at = |share: f64| {
        let rank = (share * last as f64).round() as usize;
        *values.select_nth_unstable_by(rank, f64::total_cmp).1
    };
    Some((at(low), at(high)))
}

/// Ends of an interval in standard deviations of the resampled statistic, which are `sqrt((n - 1) / n)` too small:
/// those of Student's t with n - 1 degrees of freedom.
fn ends(n_clusters: usize, confidence: f64) -> [f64; 2] {
    let n = n_clusters as f64;
    let share = (1.0 + confidence) / 2.0;
    let end = StudentsT::new(0.0, 1.0, n - 1.0).map_or(1.96, |t| t.inverse_cdf(share));
    [-1.0, 1.0].map(|side| side * end * (n / (n - 1.0)).sqrt())
}

/// Which shares of the `values`, once they rise, are the ends, given the statistic of the clusters themselves.
fn levels(values: &[f64], value: f64, acceleration: f64, ends: [f64; 2]) -> [f64; 2] {
    let count = |is: fn(f64, f64) -> bool| values.iter().filter(|v| is(**v, value)).count();
    let below = count(|v, value| v < value);
    let upto = count(|v, value| v <= value);
    // Half of those that equal it lie below.
    let share = (below + upto) as f64 / (2 * values.len()) as f64;
    let normal = Normal::standard();
    let bias = normal.inverse_cdf(share);
    let level = |end: f64| {
        let z = bias + end;
        normal.cdf(bias + z / (1.0 - acceleration * z))
    };
    let levels = ends.map(level);
    match levels.iter().all(|l| l.is_finite()) && levels[0] < levels[1] {
        true => levels,
        // Nothing lies below the value, or nothing above: there is no bias to read.
        false => ends.map(|z| normal.cdf(z)),
    }
}

/// The statistic without each cluster in turn; `None` if one of them does not exist.
fn leave_one_out<T: Copy>(
    clusters: &[T],
    statistic: &impl Fn(&[T]) -> Option<f64>,
) -> Option<Vec<f64>> {
    let mut rest: Vec<T> = clusters[1..].to_vec();
    let each = clusters.iter().enumerate().map(|(i, cluster)| {
        let value = statistic(&rest);
        // The next one comes out, this one back in.
        if let Some(slot) = rest.get_mut(i) {
            *slot = *cluster;
        }
        value
    });
    each.collect()
}

/// A sixth of the skewness of the statistic's influence, from its values without one cluster at a time.
fn acceleration(without: &[f64]) -> f64 {
    let mean = without.iter().sum::<f64>() / without.len() as f64;
    let power = |n: i32| without.iter().map(|v| (mean - v).powi(n)).sum::<f64>();
    let spread = power(2).powf(1.5);
    if spread > 0.0 {
        power(3) / (6.0 * spread)
    } else {
        0.0
    }
}

/// [`interval`] of `sum(num) / sum(den)` over clusters `(num, den)`.
pub(crate) fn ratio_interval(clusters: &[(u64, u64)]) -> Option<(f64, f64)> {
    let clusters: Vec<[u64; 2]> = clusters.iter().map(|c| [c.0, c.1]).collect();
    let [found] = sums_intervals(&clusters, [|[num, den]: &[u64; 2]| ratio(*num, *den)]);
    found
}

/// An index below `n`: splitmix64, the high bits scaled.
pub(crate) fn below(state: &mut u64, n: usize) -> usize {
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
    fn the_three_ways_to_resample_give_the_same_interval() {
        let mut state = 7;
        let mut column = |n: u64| -> Vec<(u64, u64)> {
            let of = |_| {
                (
                    below(&mut state, 40) as u64,
                    1 + below(&mut state, 9) as u64,
                )
            };
            (0..n).map(of).collect()
        };
        let columns = [
            column(30),
            column(12),
            column(30),
            column(1),
            vec![(0, 0); 4],
        ];
        let by_copy = columns.each_ref().map(|clusters| {
            interval(clusters, |drawn| {
                let (num, den) = total(drawn);
                ratio(num, den)
            })
        });
        assert!(by_copy[0].is_some() && by_copy[3].is_none() && by_copy[4].is_none());
        assert_eq!(ratio_intervals(&columns), by_copy);
        assert_eq!(columns.each_ref().map(|c| ratio_interval(c)), by_copy);
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
    fn skewness_moves_both_ends_and_bias_too() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let close = |got: [f64; 2], want: [f64; 2]| {
            let off = (got[0] - want[0]).abs().max((got[1] - want[1]).abs());
            assert!(off < 1e-3, "{got:?} for {want:?}");
        };
        let levels = |value, acceleration| levels(&values, value, acceleration, [-1.96, 1.96]);
        close(levels(499.5, 0.0), [0.025, 0.975]);
        // -1.96 / (1 + 0.05 * 1.96) = -1.785 and 1.96 / (1 - 0.05 * 1.96) = 2.173.
        close(levels(499.5, 0.05), [0.0371, 0.9851]);
        // 60 % below the value: 2 * 0.2533 -+ 1.96.
        close(levels(600.0, 0.0), [0.0731, 0.9932]);
        close(levels(-1.0, 0.0), [0.025, 0.975]);
        // scipy.stats.t.ppf(0.975, 59) is 2.0010.
        assert!((ends(60, 0.95)[1] - 2.0010 * (60f64 / 59.0).sqrt()).abs() < 1e-4);
        let cubes: Vec<f64> = (1..=20).map(|i| f64::from(i).powi(3)).collect();
        let mean = |x: &[f64]| Some(x.iter().sum::<f64>() / x.len() as f64);
        // The skewness of the values over 6 sqrt(20).
        let center = mean(&cubes).unwrap();
        let moment = |n| cubes.iter().map(|x| (x - center).powi(n)).sum::<f64>() / 20.0;
        let skewness = moment(3) / moment(2).powf(1.5);
        let want = skewness / (6.0 * 20f64.sqrt());
        let without = leave_one_out(&cubes, &mean).unwrap();
        assert!((acceleration(&without) - want).abs() < 1e-9);
    }

    /// Answers of one prompt: `(tokens, rounds)` of a drafter of 7 whose acceptance is the prompt's own, to about 120
    /// tokens.
    fn prompt(state: &mut u64) -> Vec<(u64, u64)> {
        let mut uniform = || (below(state, 1 << 53) as f64 + 0.5) / (1u64 << 53) as f64;
        let mut normal = || {
            let (a, b) = (uniform(), uniform());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        };
        let acceptance = (0.8 + 0.08 * normal()).clamp(0.2, 0.98);
        let length = (120.0 * (0.5 * normal()).exp()) as u64;
        let (mut tokens, mut rounds) = (0, Vec::new());
        while tokens < length {
            let mut committed = 1;
            while committed < 8 && uniform() < acceptance {
                committed += 1;
            }
            let committed = committed.min(length - tokens);
            tokens += committed;
            rounds.push((committed, 1));
        }
        rounds
    }

    #[test]
    fn ninety_five_percent_of_intervals_over_prompts_hold_the_truth_and_those_over_rounds_do_not() {
        const TRIALS: usize = 1000;
        let pool = |rounds: &[(u64, u64)]| {
            let sum = rounds.iter().fold((0, 0), |s, r| (s.0 + r.0, s.1 + r.1));
            sum.0 as f64 / sum.1 as f64
        };
        let mut state = 1;
        let many: Vec<(u64, u64)> = (0..100_000).flat_map(|_| prompt(&mut state)).collect();
        let truth = pool(&many);
        let (mut by_prompt, mut by_round) = (0, 0);
        for trial in 0..TRIALS {
            let prompts: Vec<Vec<(u64, u64)>> = (0..60).map(|_| prompt(&mut state)).collect();
            let sums = prompts.iter().map(|rounds| {
                let tokens = rounds.iter().map(|r| r.0).sum();
                (tokens, rounds.len() as u64)
            });
            let holds = |(low, high): (f64, f64)| u32::from(low <= truth && truth <= high);
            by_prompt += holds(ratio_interval(&sums.collect::<Vec<_>>()).unwrap());
            // Many more clusters: fewer trials tell enough.
            if trial < 60 {
                by_round += holds(ratio_interval(&prompts.concat()).unwrap());
            }
        }
        // A share of 0.95 in 1000 trials has a standard deviation of 0.7 points.
        assert!((930..=970).contains(&by_prompt), "{by_prompt} of {TRIALS}");
        assert!(by_round < 50, "{by_round} of 60: the prompt is the unit");
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
