//! Every gate's figures, a JSON line each, and where in them something changed for good.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::policy::HistoryPolicy;
use super::{Report, Verdict};
use crate::paired::percent;
use crate::run_data::RunData;

/// Version of a line.
pub const HISTORY_SCHEMA: u32 = 1;

/// Points that must lie on either side of a split.
const MIN_SIDE: usize = 5;

/// One gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryLine {
    /// [`HISTORY_SCHEMA`].
    pub schema: u32,
    /// When the gate was run, in seconds since 1970.
    pub unix_secs: u64,
    /// Class of the machine that the candidate was measured on; only lines of one class make a series.
    pub hardware: String,
    /// The candidate's id.
    pub run: String,
    /// Version and commit of the candidate's program.
    pub program: String,
    /// What the gate said.
    pub verdict: Verdict,
    /// The candidate's figures.
    pub points: Vec<Point>,
}

/// A figure of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Pool and figure.
    pub series: String,
    /// Its value: tokens a round, or tokens a second.
    pub value: f64,
}

/// A line of a history cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--history {label} line {line}: {why}; move the file away to start a new one")]
pub struct HistoryError {
    /// The file.
    pub label: String,
    /// 1-based line.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// Reads the lines of a history.
///
/// # Errors
/// [`HistoryError`] at the first line that is of another version or none.
pub fn parse_history(label: &str, text: &str) -> Result<Vec<HistoryLine>, HistoryError> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(idx, line)| {
            let broken = |why: String| HistoryError {
                label: label.to_owned(),
                line: idx + 1,
                why,
            };
            let parsed: HistoryLine =
                serde_json::from_str(line).map_err(|e| broken(e.to_string()))?;
            match parsed.schema {
                HISTORY_SCHEMA => Ok(parsed),
                other => Err(broken(format!(
                    "schema is {other}, this program reads {HISTORY_SCHEMA}"
                ))),
            }
        })
        .collect()
}

impl HistoryLine {
    /// What a gate leaves behind; `unix_secs` is now. `None` if the candidate's hardware class is unknown.
    pub fn new(report: &Report, candidate: &RunData, unix_secs: u64) -> Option<Self> {
        let mut points = Vec::new();
        for pool in candidate.pools() {
            let cells = candidate.of_pool(&pool).map(|(cell, _)| cell);
            let total = crate::paired::Pairs::of(candidate, candidate, cells).total();
            let mut point = |figure: &str, value: Option<f64>| {
                points.extend(value.map(|value| Point {
                    series: format!("{pool} / {figure}"),
                    value,
                }));
            };
            let per_sec = total.new.rate().map(|rate| rate * 1e9);
            point("tokens a second", per_sec);
            if pool.method != "vanilla" {
                point("tau", total.new.tau());
                let vanilla = total.new_vanilla.rate();
                point(
                    "speedup",
                    total.new.rate().zip(vanilla).map(|(own, its)| own / its),
                );
            }
        }
        Some(Self {
            schema: HISTORY_SCHEMA,
            unix_secs,
            hardware: candidate.identity.hardware.clone()?,
            run: candidate.identity.run.clone(),
            program: candidate.identity.program.clone(),
            verdict: report.verdict,
            points,
        })
    }

    /// As it is appended.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a line has string keys") + "\n"
    }
}

/// A figure that is another since some run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Pool and figure.
    pub series: String,
    /// The first run after it.
    pub run: String,
    /// Mean before, back to the change before it.
    pub before: f64,
    /// Mean after, up to the next change.
    pub after: f64,
    /// Of a t test across it, times the splits tried.
    pub p: f64,
    /// Points that the series has.
    pub n: usize,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            series,
            run,
            before,
            after,
            p,
            n,
        } = self;
        let moved = percent((after / before).ln());
        write!(
            f,
            "history: {series}: {before:.3} > {after:.3} ({moved} %) since run {run}, p = {p:.1e}, {n} points"
        )
    }
}

/// Change points of every series of one hardware class, in the order of the file.
///
/// Splits are found by the energy distance of E-divisive and held to a t test, as Hunter does; the p of the best
/// split is multiplied by the number of splits it was chosen from.
///
/// Sources: Matteson and James (2014); Fleming and others, "Hunter" (2023).
pub fn changes(history: &[HistoryLine], hardware: &str, policy: &HistoryPolicy) -> Vec<Change> {
    let mut series: std::collections::BTreeMap<&str, Vec<(&str, f64)>> = Default::default();
    for line in history.iter().filter(|l| l.hardware == hardware) {
        for point in &line.points {
            series
                .entry(&point.series)
                .or_default()
                .push((&line.run, point.value));
        }
    }
    let mut out = Vec::new();
    for (name, points) in series {
        let points = &points[points.len().saturating_sub(policy.window)..];
        if points.len() < policy.min_points {
            continue;
        }
        let values: Vec<f64> = points.iter().map(|p| p.1).collect();
        let mut found = Vec::new();
        split(&values, 0, policy, &mut found);
        found.sort_by_key(|(at, _)| *at);
        let ends: Vec<usize> = [0]
            .into_iter()
            .chain(found.iter().map(|f| f.0))
            .chain([values.len()])
            .collect();
        for (idx, (at, p)) in found.iter().enumerate() {
            out.push(Change {
                series: name.to_owned(),
                run: points[*at].0.to_owned(),
                before: mean(&values[ends[idx]..*at]),
                after: mean(&values[*at..ends[idx + 2]]),
                p: *p,
                n: values.len(),
            });
        }
    }
    out
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Adds change points of `values`, which begin at `offset`, and looks into both parts.
fn split(values: &[f64], offset: usize, policy: &HistoryPolicy, found: &mut Vec<(usize, f64)>) {
    let n = values.len();
    if n < 2 * MIN_SIDE {
        return;
    }
    let splits = MIN_SIDE..=n - MIN_SIDE;
    let n_splits = splits.clone().count();
    let best = splits.map(|at| (at, energy(&values[..at], &values[at..])));
    let Some((at, _)) = best.max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return;
    };
    let (before, after) = values.split_at(at);
    let p = (t_test(before, after) * n_splits as f64).min(1.0);
    let (a, b) = (mean(before), mean(after));
    let magnitude = ((b - a) / a).abs();
    if p <= policy.p && magnitude >= policy.min_magnitude {
        found.push((offset + at, p));
        split(before, offset, policy, found);
        split(after, offset + at, policy, found);
    }
}

/// Energy distance of two samples, scaled by their sizes.
fn energy(a: &[f64], b: &[f64]) -> f64 {
    let mean_distance = |a: &[f64], b: &[f64]| {
        let sum: f64 = a
            .iter()
            .map(|x| b.iter().map(|y| (x - y).abs()).sum::<f64>())
            .sum();
        sum / (a.len() * b.len()) as f64
    };
    let (n, m) = (a.len() as f64, b.len() as f64);
    let distance = 2.0 * mean_distance(a, b) - mean_distance(a, a) - mean_distance(b, b);
    distance * n * m / (n + m)
}

/// Two-sided p of Student's t for two means, variances pooled.
fn t_test(a: &[f64], b: &[f64]) -> f64 {
    let squares = |v: &[f64]| {
        let center = mean(v);
        v.iter().map(|x| (x - center).powi(2)).sum::<f64>()
    };
    let (n, m) = (a.len() as f64, b.len() as f64);
    let freedom = n + m - 2.0;
    let variance = (squares(a) + squares(b)) / freedom;
    let difference = (mean(a) - mean(b)).abs();
    if difference == 0.0 {
        return 1.0;
    }
    // Counts do not scatter: a figure that only ever had two values changed without a doubt.
    let t = difference / (variance * (1.0 / n + 1.0 / m)).sqrt();
    match StudentsT::new(0.0, 1.0, freedom) {
        Ok(law) if t.is_finite() => 2.0 * law.sf(t),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(values: impl IntoIterator<Item = f64>) -> Vec<HistoryLine> {
        let line = |(idx, value): (usize, f64)| HistoryLine {
            schema: HISTORY_SCHEMA,
            unix_secs: idx as u64,
            hardware: "cpu".into(),
            run: format!("r{idx}"),
            program: "1".into(),
            verdict: Verdict::Pass,
            points: vec![Point {
                series: "x".into(),
                value,
            }],
        };
        values.into_iter().enumerate().map(line).collect()
    }

    /// Noise of standard deviation `sd` around `mean`, from a fixed sequence.
    fn noise(seed: u64, n: usize, mean: f64, sd: f64) -> Vec<f64> {
        let mut dice = crate::gate::trial::Dice::new(seed);
        (0..n).map(|_| mean * (1.0 + sd * dice.normal())).collect()
    }

    #[test]
    fn a_step_is_found_where_it_is_and_needs_thirty_points_of_one_machine() {
        let policy = HistoryPolicy::default();
        let values = [noise(1, 20, 100.0, 0.01), noise(2, 15, 95.0, 0.01)].concat();
        let lines = history(values);
        let got = changes(&lines, "cpu", &policy);
        assert_eq!(got.len(), 1, "{got:?}");
        assert_eq!((got[0].run.as_str(), got[0].n), ("r20", 35));
        assert!(
            (got[0].before / got[0].after - 100.0 / 95.0).abs() < 0.01,
            "{got:?}"
        );
        let told = got[0].to_string();
        assert!(
            told.starts_with("history: x: ") && told.contains("since run r20"),
            "{told}"
        );
        assert_eq!(changes(&lines[8..], "cpu", &policy), []);
        assert_eq!(changes(&lines, "gpu", &policy), []);
        // One percent is told by nobody, however sure.
        let values = [[100.0; 20], [99.0; 20]].concat();
        assert_eq!(changes(&history(values), "cpu", &policy), []);
        let counts = [[4.0; 20], [3.8; 20]].concat();
        assert_eq!(changes(&history(counts), "cpu", &policy)[0].p, 0.0);
    }

    #[test]
    fn of_two_hundred_histories_of_noise_hardly_any_has_a_change() {
        let policy = HistoryPolicy::default();
        let is_alarm = |seed: &u64| {
            let lines = history(noise(1000 + seed, 60, 100.0, 0.03));
            !changes(&lines, "cpu", &policy).is_empty()
        };
        assert_eq!((0..200).filter(is_alarm).count(), 0);
    }

    #[test]
    fn a_line_reads_back_and_another_version_is_named() {
        let lines = history([1.0, 2.0]);
        let text: String = lines.iter().map(HistoryLine::line).collect();
        assert_eq!(parse_history("h", &text).unwrap(), lines);
        let old = text.replacen("\"schema\":1", "\"schema\":0", 1);
        let err = parse_history("h.jsonl", &old).unwrap_err().to_string();
        let want = "--history h.jsonl line 1: schema is 0, this program reads 1; move the file away to start a new one";
        assert_eq!(err, want);
    }
}
