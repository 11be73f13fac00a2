//! A cell in the shape of the result file of `vllm bench serve`, for scripts that read those.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::latency::{Latency, percentile, wall};
use crate::metrics::{Group, groups};
use crate::record::{Cell, Outcome, Record, Timeline};
use crate::survival::{Survival, SurvivalTally, is_tree};

/// One JSON object for each cell with answers. An answer, or a turn of a conversation, is a request.
///
/// Keys are those of the tool's `--save-result` without what only a server or a clock knows: `date`, `goodput` and the
/// detailed lists are left out. Times are milliseconds, waiting for a slot is left out as the tool's semaphore does, and
/// `itl` is from one round's tokens to the next, which the tool sees as chunks. A median or percentile that the sample
/// cannot bound is left out. `spec_decode_acceptance_length` is the tool's: 1 + accepted / rounds that drafted.
///
/// Source: `vllm/benchmarks/serve.py`, 2026.
pub fn vllm_bench_json(records: &[Record]) -> Vec<(Cell, String)> {
    let mut failed: BTreeMap<&Cell, u64> = BTreeMap::new();
    for record in records {
        let is_failed = matches!(record.outcome, Outcome::Failed { .. });
        *failed.entry(&record.cell).or_default() += u64::from(is_failed);
    }
    let groups = groups(records);
    let answered = groups.into_iter().filter(|(_, g)| !g.answers.is_empty());
    let mut inputs = input_tokens(records);
    answered
        .map(|(cell, group)| {
            let input = inputs.remove(cell).unwrap_or_default();
            let object = object(cell, &group, failed[cell], input);
            (cell.clone(), format!("{:#}\n", Value::Object(object)))
        })
        .collect()
}

/// Prompt tokens of all answers.
fn input_tokens(records: &[Record]) -> BTreeMap<&Cell, u64> {
    let mut sums = BTreeMap::new();
    for record in records {
        if let (Outcome::Ok(_), Some(prompt)) = (&record.outcome, &record.prompt) {
            *sums.entry(&record.cell).or_default() += u64::from(prompt.n_tokens);
        }
    }
    sums
}

fn object(cell: &Cell, group: &Group<'_>, failed: u64, input: u64) -> Map<String, Value> {
    let completed = group.answers.len() as u64;
    let (output, wall_ns) = wall(group, cell);
    let seconds = wall_ns as f64 / 1e9;
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put("endpoint_type", json!("draftbench"));
    put("backend", json!("draftbench"));
    put("label", json!(cell.to_string()));
    put("model_id", json!(cell.target));
    put("tokenizer_id", json!(cell.target));
    put("num_prompts", json!(completed + failed));
    put(
        "request_rate",
        cell.arrivals
            .per_sec()
            .map_or_else(|| json!("inf"), |rate| json!(rate)),
    );
    put("burstiness", json!(1.0));
    put("max_concurrency", json!(cell.concurrency));
    put("duration", json!(seconds));
    put("completed", json!(completed));
    put("failed", json!(failed));
    put("total_input_tokens", json!(input));
    put("total_output_tokens", json!(output));
    if wall_ns > 0 {
        put("request_throughput", json!(completed as f64 / seconds));
        put("output_throughput", json!(output as f64 / seconds));
        let all = (input + output) as f64;
        put("total_token_throughput", json!(all / seconds));
    }
    let mut tally = SurvivalTally::default();
    for ((prompt, ..), timed) in &group.answers {
        tally.add(*prompt, &timed.answer.rounds);
    }
    let n_positions = match is_tree(&cell.method) {
        // A tree's count of verified drafts is none of positions.
        true => 0,
        false => most_verified(group),
    };
    out.extend(speculative(tally.counts(), n_positions));
    let latency = Latency::of(group, cell);
    let first = in_slot(group, |t| t.first_ns - t.admitted_ns);
    let last = in_slot(group, |t| t.finished_ns() - t.admitted_ns);
    for (name, rising) in [
        ("ttft", &first),
        ("tpot", &latency.per_token),
        ("itl", &latency.step),
        ("e2el", &last),
    ] {
        out.extend(times(name, rising));
    }
    out
}

/// Times from entering a slot, rising: what a request waited for it in open loop is out.
fn in_slot(group: &Group<'_>, of: fn(&Timeline) -> u64) -> Vec<u64> {
    let each = group.answers.values().map(|t| of(&t.answer.timeline));
    let mut times: Vec<u64> = each.collect();
    times.sort_unstable();
    times
}

/// Most drafts that a round verified.
fn most_verified(group: &Group<'_>) -> usize {
    let rounds = group.answers.values().map(|t| &t.answer.rounds);
    let most = rounds.flat_map(|r| r.verified.iter().copied()).max();
    most.unwrap_or(0) as usize
}

/// Nothing where nothing was drafted, as the tool does. Rates are given up to `n_positions` at least, of which the last
/// may never have been accepted.
fn speculative(counts: &Survival, n_positions: usize) -> Vec<(String, Value)> {
    let (rounds, verified, accepted) = (counts.n_drafting, counts.verified, counts.accepted);
    if rounds == 0 {
        return Vec::new();
    }
    let n_rounds = rounds as f64;
    let n_positions = n_positions.max(counts.accepted_rounds.len() - 1);
    let by_position = (1..=n_positions).map(|position| {
        let reached: u64 = counts.accepted_rounds.iter().skip(position).sum();
        reached as f64 / n_rounds
    });
    [
        (
            "acceptance_rate",
            json!(100.0 * accepted as f64 / verified as f64),
        ),
        ("acceptance_length", json!(1.0 + accepted as f64 / n_rounds)),
        ("num_drafts", json!(rounds)),
        ("draft_tokens", json!(verified)),
        ("accepted_tokens", json!(accepted)),
        (
            "per_position_acceptance_rates",
            json!(by_position.collect::<Vec<f64>>()),
        ),
    ]
    .map(|(key, value)| (format!("spec_decode_{key}"), value))
    .to_vec()
}

fn times(name: &str, rising: &[u64]) -> Vec<(String, Value)> {
    if rising.is_empty() {
        return Vec::new();
    }
    let n = rising.len() as f64;
    let mean = rising.iter().map(|ns| *ns as f64).sum::<f64>() / n;
    let squares = rising.iter().map(|ns| (*ns as f64 - mean).powi(2));
    let deviation = (squares.sum::<f64>() / n).sqrt();
    let all = [
        (format!("mean_{name}_ms"), Some(mean)),
        (format!("median_{name}_ms"), percentile(rising, 50.0)),
        (format!("std_{name}_ms"), Some(deviation)),
        (format!("p99_{name}_ms"), percentile(rising, 99.0)),
    ];
    let present = all.into_iter().filter_map(|(key, ns)| Some((key, ns?)));
    present.map(|(key, ns)| (key, json!(ns / 1e6))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{answer, record};

    fn only(records: &[Record]) -> Value {
        let mut files = vllm_bench_json(records);
        assert_eq!(files.len(), 1);
        serde_json::from_str(&files.remove(0).1).unwrap()
    }

    #[test]
    fn a_cell_reads_like_the_tools_result_file() {
        // Two requests of 4 prompt tokens: 6 tokens in 2 rounds, 2 in 1; 50 ns of prefill, 1 us a token.
        let mut failed = record("dflash", "c", answer(&[]));
        failed.outcome = Outcome::Failed { why: "nan".into() };
        let records = [
            record("dflash", "a", answer(&[(2, 3), (1, 2)])),
            record("dflash", "b", answer(&[(0, 1)])),
            failed,
        ];
        let got = only(&records);
        let close = |key: &str, want: f64| {
            let value = got[key].as_f64().unwrap();
            assert!(
                (value - want).abs() < 1e-9 * want.abs().max(1.0),
                "{key}: {value}"
            );
        };
        for (key, want) in [
            ("completed", 2.0),
            ("failed", 1.0),
            ("num_prompts", 3.0),
            ("max_concurrency", 1.0),
            ("total_input_tokens", 8.0),
            ("total_output_tokens", 8.0),
            ("duration", 6.1e-6),
            ("request_throughput", 2.0 / 6.1e-6),
            ("output_throughput", 8.0 / 6.1e-6),
            ("total_token_throughput", 16.0 / 6.1e-6),
            ("mean_ttft_ms", 50e-6),
            ("std_ttft_ms", 0.0),
            ("mean_tpot_ms", 1e-3),
            ("mean_itl_ms", 2e-3),
            ("mean_e2el_ms", 3.05e-3),
            ("spec_decode_num_drafts", 3.0),
            ("spec_decode_draft_tokens", 9.0),
            ("spec_decode_accepted_tokens", 3.0),
            ("spec_decode_acceptance_rate", 100.0 / 3.0),
            ("spec_decode_acceptance_length", 2.0),
        ] {
            close(key, want);
        }
        assert_eq!(got["model_id"], "toy");
        let rates = &got["spec_decode_per_position_acceptance_rates"];
        assert_eq!(*rates, json!([2.0 / 3.0, 1.0 / 3.0, 0.0]));
        // Two requests bound neither a median nor a percentile.
        assert!(got.get("median_ttft_ms").is_none() && got.get("p99_ttft_ms").is_none());
    }

    #[test]
    fn waiting_for_a_slot_is_left_out_and_a_trees_nodes_are_no_positions() {
        let waiting = |method: &str| {
            let mut a = answer(&[(1, 2)]);
            a.timeline.arrived_ns = Some(0);
            (a.timeline.admitted_ns, a.timeline.first_ns) = (1000, 1050);
            let mut rec = record(method, "a", a);
            rec.cell.arrivals = "poisson-2000".parse().unwrap();
            only(&[rec])
        };
        let got = waiting("dflash");
        // 50 ns of prefill and 2 us of decoding behind 1 us of waiting.
        assert_eq!(got["mean_ttft_ms"], json!(5e-5));
        assert_eq!(got["mean_e2el_ms"], json!(2.05e-3));
        let rates = |of: &Value| of["spec_decode_per_position_acceptance_rates"].clone();
        assert_eq!(rates(&got), json!([1.0, 0.0, 0.0]));
        assert_eq!(rates(&waiting("eagle3-tree-7-10-60")), json!([1.0]));
    }

    #[test]
    fn percentiles_come_with_the_sample_and_vanilla_has_no_drafts() {
        let one = |i: u32| {
            let mut a = answer(&[(0, 1)]);
            (a.rounds.drafted, a.rounds.verified) = (vec![0], vec![0]);
            record("vanilla", &i.to_string(), a)
        };
        let records: Vec<Record> = (0..299).map(one).collect();
        let got = only(&records);
        assert_eq!(got["p99_ttft_ms"], json!(5e-5));
        assert_eq!(got["median_e2el_ms"], json!(1.05e-3));
        assert!(got.get("spec_decode_num_drafts").is_none());
        assert!(only(&records[..298]).get("p99_ttft_ms").is_none());
    }
}
