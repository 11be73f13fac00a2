//! The terminal table as a reader sees it.

use reports::{
    Answer, ArrivalKey, Cell, Ended, Grams, Layout, Outcome, Phases, PromptKey, Record, Rounds,
    SCHEMA, SamplingKey, Thinking, Timeline, render,
};

fn cell(method: &str, suite: &str) -> Cell {
    Cell {
        target: "tiny-qwen3".into(),
        suite: suite.into(),
        sampling: SamplingKey::Greedy,
        thinking: Thinking::Off,
        concurrency: 1,
        arrivals: ArrivalKey::Closed,
        method: method.into(),
    }
}

fn record(cell: Cell, prompt: usize, outcome: Outcome) -> Record {
    Record {
        schema: SCHEMA,
        run: "r".into(),
        cell,
        prompt: Some(PromptKey {
            id: format!("p{prompt}"),
            sample: 0,
            pass: 0,
            turn: 0,
            sha256: "p".into(),
            n_tokens: 4,
        }),
        outcome,
    }
}

/// 13 tokens in rounds of `step`, at `ns_per_token`.
fn answer(step: u32, ns_per_token: u64) -> Outcome {
    let n = (12 / step) as usize;
    Outcome::Ok(Box::new(Answer {
        n_tokens: 13,
        tokens_sha256: "same".into(),
        tokens: None,
        rounds: Rounds {
            drafted: vec![step - 1; n],
            verified: vec![step - 1; n],
            accepted: vec![step - 1; n],
            committed: vec![step; n],
            confidence_ppm: None,
        },
        ended: Ended::Length,
        prefill_ns: 1000,
        decode_ns: 12 * ns_per_token,
        batch_ns: 1000 + 12 * ns_per_token,
        timeline: Timeline {
            arrived_ns: None,
            admitted_ns: 0,
            first_ns: 1000,
            step_ns: vec![u64::from(step) * ns_per_token; n],
        },
        phases: Phases::default(),
        grams: Grams {
            total: 6,
            repeated: 0,
        },
        correct: None,
    }))
}

fn quick_matrix() -> Vec<Record> {
    let mut records = Vec::new();
    for suite in ["mini-maths", "mini-chat"] {
        for prompt in 0..2 {
            for (method, step, ns) in [
                ("vanilla", 1, 1_000_000),
                ("dflash", 2 + prompt as u32 * 2, 400_000),
                ("draft_model", 2, 800_000),
            ] {
                records.push(record(cell(method, suite), prompt, answer(step, ns)));
            }
        }
    }
    records
}

fn layout() -> Layout {
    Layout {
        methods: ["vanilla", "draft_model", "dflash"]
            .map(String::from)
            .to_vec(),
        suites: ["mini-maths", "mini-chat"].map(String::from).to_vec(),
        machine: "a test".into(),
        remarks: vec!["Warm-up is not measured.".into()],
    }
}

#[test]
fn suites_are_rows_and_each_method_has_four_columns() {
    let text = render(&quick_matrix(), &layout());
    let title = "tiny-qwen3, greedy, thinking off, concurrency 1\n";
    assert!(text.starts_with(title), "{text}");
    let table: Vec<&str> = text.lines().skip(1).take(8).collect();
    assert_eq!(table.join("\n"), GOLDEN, "\n{text}");
    assert!(
        text.contains("dflash tau, 95 % interval: mini-maths 2.00 to 4.00, mini-chat 2.00 to 4.00")
    );
    assert!(text.contains("repeated 8-grams: vanilla 0.0 %, draft_model 0.0 %, dflash 0.0 %"));
    assert!(text.contains("tau: tokens committed per round"));
    assert!(text.contains("Warm-up is not measured."));
    assert!(text.contains("Models that fit in the processor's cache make speedups small"));
    assert!(text.ends_with("machine: a test\n"));
}

const GOLDEN: &str = "\
─────────────────────────────────────────────────────────────────────────────────────────────────────────
              vanilla   draft_model                                 dflash
 suite          tok/s           tau   speedup   tok/s       equal      tau   speedup   tok/s       equal
═════════════════════════════════════════════════════════════════════════════════════════════════════════
 mini-maths      1000          2.00     1.25x    1250   exact 2/2     2.67     2.50x    2500   exact 2/2
 mini-chat       1000          2.00     1.25x    1250   exact 2/2     2.67     2.50x    2500   exact 2/2
 mean            1000          2.00     1.25x    1250   exact 4/4     2.67     2.50x    2500   exact 4/4
─────────────────────────────────────────────────────────────────────────────────────────────────────────";

#[test]
fn a_failed_cell_is_a_dash_with_a_footnote_and_leaves_the_mean_without_a_value() {
    let mut records = quick_matrix();
    let why = "the cache is full".to_owned();
    records.push(record(
        cell("dflash", "mini-chat"),
        0,
        Outcome::Failed { why },
    ));
    let text = render(&records, &layout());
    let row = |name: &str| text.lines().find(|l| l.contains(name)).unwrap_or_default();
    assert!(row("mini-chat").contains("- [1]"), "{text}");
    assert!(row("mini-maths").contains("2.67"), "{text}");
    let mean: Vec<&str> = row("mean ").split_whitespace().collect();
    let want = [
        "mean", "1000", "2.00", "1.25x", "1250", "exact", "4/4", "-", "-", "-", "-",
    ];
    assert_eq!(mean, want, "{text}");
    assert!(
        text.contains("\n[1] dflash on mini-chat: the cache is full\n"),
        "{text}"
    );
}

#[test]
fn text_that_differs_is_shouted_and_sampled_text_is_called_law() {
    let mut records = quick_matrix();
    for rec in &mut records {
        if let Outcome::Ok(a) = &mut rec.outcome
            && rec.cell.method == "draft_model"
            && rec.prompt.as_ref().is_some_and(|p| p.id == "p1")
        {
            a.tokens_sha256 = "other".into();
        }
    }
    let text = render(&records, &layout());
    assert!(text.contains("DIFFERS 1/2"), "{text}");
    assert!(text.contains("DIFFERS 2/4"), "{text}");
    for rec in &mut records {
        rec.cell.sampling = SamplingKey::at(1000);
    }
    let text = render(&records, &layout());
    assert!(!text.contains("DIFFERS"), "{text}");
    assert!(text.starts_with("tiny-qwen3, t1000,"), "{text}");
    assert!(text.contains(" law\n"), "{text}");
    assert!(text.contains("equal: law = draws differ"), "{text}");
}

#[test]
fn above_concurrency_1_the_batchs_throughput_stands_beside_one_sequences_speed() {
    let mut records = quick_matrix();
    for rec in &mut records {
        rec.cell.concurrency = 4;
        if let Outcome::Ok(a) = &mut rec.outcome {
            // Both prompts of a suite in one batch.
            a.prefill_ns = 0;
            a.batch_ns = a.decode_ns;
        }
    }
    let text = render(&records, &layout());
    let row = |name: &str| text.lines().find(|l| l.contains(name)).unwrap_or_default();
    assert!(row(" suite ").contains("batch tok/s"), "{text}");
    let maths: Vec<&str> = row(" mini-maths ").split_whitespace().collect();
    let want = [
        "mini-maths",
        "1000",
        "2000",
        "2.00",
        "1.25x",
        "1250",
        "2500",
        "exact",
        "2/2",
        "2.67",
        "2.50x",
        "2500",
        "5000",
        "exact",
        "2/2",
    ];
    assert_eq!(maths, want, "{text}");
    // Two answers bound no percentile and make no plateau, their 24 steps bound the median; 26 tokens in 12 ms.
    let load = text
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>());
    let want = [
        &["mini-maths", "vanilla"][..],
        &["-"; 6],
        &["1.00", "-", "2167", "n/a"],
    ]
    .concat();
    assert!(load.clone().any(|row| row == want), "{text}");
    assert!(
        text.contains("batch tok/s: tokens of all sequences"),
        "{text}"
    );
}

#[test]
fn vanilla_alone_is_a_table_too() {
    let mut records = quick_matrix();
    records.retain(|r| r.cell.method == "vanilla");
    let text = render(&records, &layout());
    assert!(text.contains(" mini-maths      1000\n"), "{text}");
    assert!(!text.contains("interval:"), "{text}");
}
