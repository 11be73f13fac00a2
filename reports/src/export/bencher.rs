//! Suite rows as Bencher Metric Format.

use serde_json::{Map, Value, json};

use crate::ArrivalKey;
use crate::levels::{Estimate, Level, LevelRow};

/// A JSON object of benchmarks, one a suite row without trouble: `target/method/suite/sampling/thinking-off/c1` with the
/// measures `tau` (tokens a round), `speedup` (ratio) and `tokens_per_sec`, intervals as lower and upper values.
///
/// Source: Bencher's documentation of the format, `{benchmark: {measure: {value, lower_value, upper_value}}}`.
pub fn bencher_json(rows: &[LevelRow]) -> String {
    let mut benchmarks = Map::new();
    let suites = rows.iter().filter(|r| r.key.level == Level::Suite);
    for row in suites.filter(|r| r.trouble.is_none()) {
        let mut measures = Map::new();
        for (name, estimate) in [("tau", row.tau), ("speedup", row.speedup())] {
            measures.extend(estimate.map(|e| (name.to_owned(), measure(e))));
        }
        let rate = row.tokens_per_sec.map(|value| json!({ "value": value }));
        measures.extend(rate.map(|rate| ("tokens_per_sec".to_owned(), rate)));
        if !measures.is_empty() {
            benchmarks.insert(name(row), Value::Object(measures));
        }
    }
    format!("{:#}\n", Value::Object(benchmarks))
}

fn name(row: &LevelRow) -> String {
    let key = &row.key;
    let of = |id: &Option<String>| id.clone().unwrap_or_default();
    let name = format!(
        "{}/{}/{}/{}/thinking-{}/c{}",
        of(&key.target),
        key.method,
        of(&key.suite),
        key.sampling,
        key.thinking,
        key.concurrency
    );
    match key.arrivals {
        ArrivalKey::Closed => name,
        open => format!("{name}/{open}"),
    }
}

fn measure(estimate: Estimate) -> Value {
    match estimate.interval {
        None => json!({ "value": estimate.value }),
        Some((low, high)) => json!({
            "value": estimate.value,
            "lower_value": low,
            "upper_value": high,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels;
    use crate::record::Outcome;
    use crate::record::tests::{answer, record};

    #[test]
    fn a_benchmark_has_its_measures_with_bounds() {
        let mut records = Vec::new();
        for prompt in ["a", "b"] {
            records.push(record("vanilla", prompt, answer(&[(0, 1); 6])));
            records.push(record("dflash", prompt, answer(&[(2, 3), (2, 3)])));
        }
        let mut failed = record("dcoco", "a", answer(&[]));
        failed.outcome = Outcome::Failed { why: "nan".into() };
        records.push(failed);
        let got: Value = serde_json::from_str(&bencher_json(&levels(&records))).unwrap();
        assert_eq!(got.as_object().unwrap().len(), 2);
        let want = json!({
            "tau": { "value": 3.0, "lower_value": 3.0, "upper_value": 3.0 },
            "speedup": { "value": 1.0, "lower_value": 1.0, "upper_value": 1.0 },
            "tokens_per_sec": { "value": 1e6 },
        });
        assert_eq!(got["toy/dflash/mini/greedy/thinking-off/c1"], want);
        let vanilla = &got["toy/vanilla/mini/greedy/thinking-off/c1"];
        assert_eq!(vanilla["speedup"], json!({ "value": 1.0 }));
    }
}
