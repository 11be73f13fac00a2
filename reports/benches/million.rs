//! All numbers and files of a run of a million rounds: 2 targets, 5 suites, vanilla and 3 drafting methods.
//!
//! The run should take less than 5 s and 1 GB on 2 cores. Stages and peak memory of one run are printed first.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use reports::{
    Answer, ArrivalKey, Cell, Ended, Grams, Layout, Outcome, Phases, PromptKey, Record, Rounds,
    SCHEMA, SamplingKey, Thinking, Timeline,
};

const ROUNDS: usize = 1_000_000;
const TARGETS: [&str; 2] = ["small", "large"];
const SUITES: [&str; 5] = ["gsm8k", "math500", "humaneval", "mbpp", "mt-bench"];
/// Method and the mean chance of a draft to be accepted; none for vanilla.
const METHODS: [(&str, Option<f64>); 4] = [
    ("vanilla", None),
    ("dflash", Some(0.75)),
    ("domino", Some(0.78)),
    ("dcoco", Some(0.8)),
];
const MAX_DRAFT: u32 = 15;

/// Uniform numbers: xorshift64*.
struct Draws(u64);

impl Draws {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Prompts are added to every cell until there are enough rounds.
fn records() -> Vec<Record> {
    let mut draws = Draws(7);
    let (mut records, mut n_rounds) = (Vec::new(), 0);
    for prompt in 0.. {
        if n_rounds >= ROUNDS {
            break;
        }
        for target in TARGETS {
            for suite in SUITES {
                let n_tokens = 200 + (600.0 * draws.uniform()) as u32;
                let ease = 0.2 * (draws.uniform() - 0.5);
                for (method, acceptance) in METHODS {
                    let acceptance = acceptance.map(|a| a + ease);
                    let answer = answer(&mut draws, n_tokens, acceptance);
                    n_rounds += answer.rounds.committed.len();
                    records.push(record([target, suite, method], prompt, answer));
                }
            }
        }
    }
    records
}

fn answer(draws: &mut Draws, n_tokens: u32, acceptance: Option<f64>) -> Answer {
    let (mut rounds, mut left) = (Rounds::default(), n_tokens - 1);
    while left > 0 {
        let drafted = acceptance.map_or(0, |_| MAX_DRAFT);
        let mut accepted = 0;
        while accepted < drafted && acceptance.is_some_and(|a| draws.uniform() < a) {
            accepted += 1;
        }
        let committed = (accepted + 1).min(left);
        left -= committed;
        rounds.drafted.push(drafted);
        rounds.verified.push(drafted);
        rounds.accepted.push(accepted);
        rounds.committed.push(committed);
    }
    let step_ns: Vec<u64> = rounds
        .committed
        .iter()
        .map(|_| 20_000_000 + (2e6 * draws.uniform()) as u64)
        .collect();
    let decode_ns = step_ns.iter().sum();
    Answer {
        n_tokens,
        tokens_sha256: format!("{n_tokens:064x}"),
        tokens: None,
        rounds,
        ended: Ended::Stop,
        prefill_ns: 30_000_000,
        decode_ns,
        batch_ns: 30_000_000 + decode_ns,
        timeline: Timeline {
            arrived_ns: None,
            admitted_ns: 0,
            first_ns: 30_000_000,
            step_ns,
        },
        phases: Phases {
            prefill_ns: 30_000_000,
            verify_ns: decode_ns,
            ..Phases::default()
        },
        grams: Grams {
            total: n_tokens - 7,
            repeated: 3,
        },
        correct: Some(draws.uniform() < 0.8),
    }
}

fn record([target, suite, method]: [&str; 3], prompt: u32, answer: Answer) -> Record {
    Record {
        schema: SCHEMA,
        run: "bench".into(),
        cell: Cell {
            target: target.into(),
            suite: suite.into(),
            sampling: SamplingKey::Greedy,
            thinking: Thinking::Off,
            concurrency: 1,
            arrivals: ArrivalKey::Closed,
            method: method.into(),
        },
        prompt: Some(PromptKey {
            id: format!("p{prompt}"),
            sample: 0,
            pass: 0,
            turn: 0,
            sha256: format!("{prompt:064x}"),
            n_tokens: 100,
        }),
        outcome: Outcome::Ok(Box::new(answer)),
    }
}

/// Makes everything; tells `lap` after each stage and returns the bytes written.
fn everything(records: &[Record], mut lap: impl FnMut(&str)) -> usize {
    black_box(reports::cells(records));
    lap("cells");
    let levels = reports::levels(records);
    lap("levels");
    black_box(reports::survival(records));
    lap("survival");
    let mut bytes = 0;
    for columns in [
        reports::level_columns(&levels),
        reports::answer_columns(records),
    ] {
        let parquet = columns.parquet().expect("counts are far below 2^63");
        bytes += columns.csv().len() + parquet.len();
    }
    lap("CSV and Parquet");
    for table in reports::paper_tables(records, &Layout::default()) {
        bytes += table.markdown().len() + table.latex().len();
    }
    lap("Markdown and LaTeX");
    bytes += reports::openmetrics(&levels).len() + reports::bencher_json(&levels).len();
    let files = reports::vllm_bench_json(records);
    bytes += files.iter().map(|(_, text)| text.len()).sum::<usize>();
    lap("other formats");
    bytes
}

fn million(criterion: &mut Criterion) {
    let records = records();
    let begin = Instant::now();
    let mut last = begin;
    let bytes = everything(&records, |stage| {
        eprintln!("{stage}: {:.2} s", last.elapsed().as_secs_f64());
        last = Instant::now();
    });
    let seconds = begin.elapsed().as_secs_f64();
    let answers = records.len();
    eprintln!("{answers} answers, {bytes} bytes written, {seconds:.2} s in all");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|l| l.starts_with("VmHWM"));
    eprintln!("peak memory: {}", peak.unwrap_or("unknown on this system"));
    let mut group = criterion.benchmark_group("reports");
    group.sample_size(10);
    group.bench_function("a million rounds", |bench| {
        bench.iter(|| everything(&records, |_| ()));
    });
    group.finish();
}

criterion_group!(benches, million);
criterion_main!(benches);
