use super::*;
use crate::record::tests::{answer, cell, record};

fn timed(rounds: &[(u32, u32)], ns_per_token: u64) -> Answer {
    let mut a = answer(rounds);
    a.decode_ns = ns_per_token * u64::from(a.n_tokens - 1);
    a
}

fn stats(records: &[Record], method: &str) -> CellStats {
    cells(records)[&cell(method)].clone()
}

#[test]
fn tau_pools_rounds_and_its_macro_twin_averages_answers() {
    let got = stats(
        &[
            record("dflash", "a", answer(&[(3, 4), (3, 4), (3, 4)])),
            record("dflash", "b", answer(&[(1, 2)])),
        ],
        "dflash",
    );
    assert_eq!(got.tau, Some(14.0 / 4.0));
    assert_eq!(got.tau_macro, Some(3.0));
    assert_eq!(got.accepted_share, Some(10.0 / 12.0));
    assert_eq!(got.repeated_share, Some(0.1));
    let (low, high) = got.tau_interval.unwrap();
    assert_eq!((low, high), (2.0, 4.0));
}

#[test]
fn answers_that_loop_are_left_out_of_the_second_tau() {
    let mut looping = answer(&[(3, 4), (3, 4)]);
    looping.grams.repeated = 4;
    let records = [
        record("dflash", "a", looping),
        record("dflash", "b", answer(&[(1, 2), (0, 1)])),
    ];
    let got = stats(&records, "dflash");
    assert_eq!((got.tau, got.n_loops), (Some(11.0 / 4.0), 1));
    assert_eq!(got.tau_without_loops, Some(1.5));
    let got = stats(&records[..1], "dflash");
    assert_eq!((got.tau, got.tau_without_loops), (Some(4.0), None));
}

#[test]
fn an_answer_without_rounds_has_no_tau_and_adds_no_time() {
    let ended_at_once = timed(&[], 0);
    let got = stats(&[record("dflash", "a", ended_at_once.clone())], "dflash");
    assert_eq!(
        (got.tau, got.tau_macro, got.tokens_per_sec),
        (None, None, None)
    );
    let slow = Answer {
        decode_ns: 1_000_000,
        ..ended_at_once
    };
    let got = stats(
        &[
            record("dflash", "a", slow),
            record("dflash", "b", timed(&[(1, 2)], 500)),
        ],
        "dflash",
    );
    assert_eq!(got.tokens_per_sec, Some(2e6));
    assert_eq!(got.n_answers, 2);
}

#[test]
fn a_speedup_uses_only_prompts_that_both_arms_answered() {
    let records = [
        record("vanilla", "a", timed(&[(0, 1); 6], 900)),
        record("vanilla", "only vanilla", timed(&[(0, 1); 6], 90_000)),
        record("dflash", "a", timed(&[(2, 3), (2, 3)], 300)),
        record("dflash", "only dflash", timed(&[(2, 3), (2, 3)], 1)),
    ];
    assert_eq!(stats(&records, "dflash").speedup, Some(3.0));
    assert_eq!(stats(&records, "vanilla").speedup, Some(1.0));
    assert_eq!(stats(&records[2..], "dflash").speedup, None);
}

#[test]
fn above_concurrency_1_a_speedup_is_a_ratio_of_throughputs() {
    // Two sequences at once: vanilla's batch takes 1200 ns beside 100 of prefill, dflash's 400. The first answer
    // took three quarters of each. A sequence's own decode time would say something else.
    let of = |method: &str, prompt: &str, batch_ns: u64, spent_ns: u64| {
        let mut a = answer(&[(2, 3), (2, 3)]);
        a.prefill_ns = 50;
        a.batch_ns = batch_ns + 100;
        a.phases.verify_ns = spent_ns;
        a.decode_ns = batch_ns;
        let mut rec = record(method, prompt, a);
        rec.cell.concurrency = 2;
        rec
    };
    let records = [
        of("vanilla", "a", 1200, 600),
        of("vanilla", "b", 1200, 200),
        of("dflash", "a", 400, 300),
        of("dflash", "b", 400, 100),
    ];
    let all = cells(&records);
    let of = |method: &str| {
        let cell = Cell {
            concurrency: 2,
            ..cell(method)
        };
        all[&cell].clone()
    };
    assert_eq!(of("dflash").throughput, Some(12.0 / 400.0 * 1e9));
    assert_eq!(of("vanilla").throughput, Some(12.0 / 1200.0 * 1e9));
    assert_eq!(of("dflash").tokens_per_sec, Some(12.0 / 800.0 * 1e9));
    assert_eq!(of("dflash").speedup, Some(3.0));
    assert_eq!(of("dflash").speedup_interval, Some((3.0, 3.0)));
}

#[test]
fn the_speedup_interval_spans_the_prompts_and_vanilla_has_none() {
    let mut records = Vec::new();
    for (prompt, ns) in [("a", 300), ("b", 450), ("c", 300), ("d", 450)] {
        records.push(record("vanilla", prompt, timed(&[(0, 1); 6], 900)));
        records.push(record("dflash", prompt, timed(&[(2, 3), (2, 3)], ns)));
    }
    let got = stats(&records, "dflash");
    assert_eq!(got.speedup, Some(2.4));
    // All four draws slow, or all four fast, are likelier than one in forty.
    assert_eq!(got.speedup_interval, Some((2.0, 3.0)));
    assert_eq!(stats(&records, "vanilla").speedup_interval, None);
}

#[test]
fn greedy_equality_counts_answers_and_needs_vanilla_to_count_one() {
    let mut other = answer(&[(2, 3)]);
    other.tokens_sha256 = "something else".into();
    let records = [
        record("vanilla", "a", answer(&[(0, 1); 3])),
        record("vanilla", "b", answer(&[(0, 1); 3])),
        record("dflash", "a", answer(&[(2, 3)])),
        record("dflash", "b", other),
        record("dflash", "c", answer(&[(2, 3)])),
    ];
    let equality = stats(&records, "dflash").equality;
    assert_eq!(equality, Equality::Exact { equal: 1, of: 3 });
    assert_eq!(stats(&records, "vanilla").equality, Equality::Reference);
}

#[test]
fn nothing_is_said_of_equality_where_vanilla_failed() {
    let mut failed = record("vanilla", "a", answer(&[]));
    failed.outcome = Outcome::Failed { why: "nan".into() };
    let records = [failed, record("dflash", "a", answer(&[(2, 3)]))];
    assert_eq!(stats(&records, "dflash").equality, Equality::Unknown);
}

#[test]
fn sampled_text_is_equal_in_law_only() {
    let mut rec = record("dflash", "a", answer(&[(2, 3)]));
    rec.cell.sampling = SamplingKey::at(1000);
    let got = cells(std::slice::from_ref(&rec));
    assert_eq!(got[&rec.cell].equality, Equality::Law);
}

#[test]
fn a_turn_is_an_answer_of_its_own_and_a_batch_of_its_own() {
    let turn = |turn: u32, batch_ns: u64| {
        let mut a = answer(&[(2, 3), (2, 3)]);
        a.prefill_ns = 0;
        a.batch_ns = batch_ns;
        let mut rec = record("dflash", "a", a);
        rec.cell.concurrency = 2;
        rec.prompt.as_mut().unwrap().turn = turn;
        rec
    };
    let records = [turn(0, 400), turn(1, 800)];
    let got = cells(&records)[&records[0].cell].clone();
    assert_eq!(got.n_answers, 2);
    assert_eq!(got.throughput, Some(12.0 / 1200.0 * 1e9));
}

#[test]
fn answers_that_could_be_checked_are_counted_and_those_that_are_right() {
    let checked = |prompt: &str, correct: Option<bool>| {
        let a = Answer {
            correct,
            ..answer(&[(2, 3)])
        };
        record("dflash", prompt, a)
    };
    let records = [
        checked("a", Some(true)),
        checked("b", Some(false)),
        checked("c", None),
    ];
    assert_eq!(stats(&records, "dflash").correct, Some((1, 2)));
    assert_eq!(stats(&records[2..], "dflash").correct, None);
}

#[test]
fn a_prompt_that_was_left_out_is_counted_and_is_trouble_only_if_all_were() {
    let mut left_out = record("dflash", "b", answer(&[]));
    left_out.outcome = Outcome::Skipped {
        why: "too long".into(),
    };
    let got = stats(
        &[record("dflash", "a", answer(&[(2, 3)])), left_out.clone()],
        "dflash",
    );
    assert_eq!((got.n_answers, got.n_skipped, got.trouble), (1, 1, None));
    let mut turn = left_out.clone();
    turn.prompt.as_mut().unwrap().turn = 1;
    let both_passes = [0, 1].map(|pass| {
        let mut record = turn.clone();
        record.prompt.as_mut().unwrap().pass = pass;
        record
    });
    let got = stats(&both_passes, "dflash");
    assert_eq!((got.n_skipped, got.n_skipped_turns), (0, 1));
    let got = stats(&[left_out], "dflash");
    assert_eq!(got.trouble.as_deref(), Some("too long"));
}

#[test]
fn warm_ups_of_all_processes_count_and_one_that_did_not_settle_is_told() {
    let started = |settled| {
        let mut record = record("dflash", "a", answer(&[]));
        record.prompt = None;
        record.outcome = Outcome::Started(Startup {
            cover_ns: 20,
            settle_ns: 3,
            step_ns: vec![1],
            settled,
        });
        record
    };
    let answered = record("dflash", "a", answer(&[(2, 3)]));
    let got = stats(&[started(true), answered.clone()], "dflash");
    assert_eq!((got.warm_up_ns, got.is_unsettled), (23, false));
    let got = stats(&[started(true), answered, started(false)], "dflash");
    assert_eq!((got.warm_up_ns, got.is_unsettled), (46, true));
    assert_eq!((got.n_answers, got.trouble), (1, None));
}

#[test]
fn a_failure_and_a_skip_say_why() {
    let mut failed = record("dflash", "a", answer(&[]));
    failed.outcome = Outcome::Failed { why: "nan".into() };
    let got = stats(
        &[failed, record("dflash", "b", answer(&[(2, 3)]))],
        "dflash",
    );
    assert_eq!(got.trouble.as_deref(), Some("nan"));
    let mut skipped = record("eagle", "a", answer(&[]));
    skipped.prompt = None;
    skipped.outcome = Outcome::Skipped {
        why: "no drafter".into(),
    };
    let got = stats(&[skipped], "eagle");
    assert_eq!(got.trouble.as_deref(), Some("no drafter"));
    assert_eq!((got.tau, got.equality), (None, Equality::Unknown));
}
