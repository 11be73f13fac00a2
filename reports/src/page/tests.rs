//! Checks of the page as text; `tests/browser/page.mjs` checks what a browser makes of it.

use std::collections::BTreeSet;

use super::{PageInput, page};
use crate::record::tests::{answer, cell, record};
use crate::record::{Cell, Outcome, Record, Thinking};

/// A text that does harm wherever it is not spelled out.
const HOSTILE: &str = "\"'><script>x</script><img src=x onerror=alert(1)>&";

fn made(records: &[Record]) -> String {
    page(&PageInput {
        title: "a page",
        records,
        runs: &[],
        synthetic: &[],
        flags: &[],
        coverage: &[],
        training: &[],
    })
}

/// An answer of `(accepted, committed)` rounds, with times of a batch and of phases, and with confidences.
fn timed(method: &str, rounds: &[(u32, u32)], ns_per_token: u64) -> crate::Answer {
    let mut answer = answer(rounds);
    answer.decode_ns = ns_per_token * u64::from(answer.n_tokens - 1);
    answer.batch_ns = answer.decode_ns + answer.prefill_ns;
    answer.phases.verify_ns = answer.decode_ns / 2;
    answer.phases.draft_ns = answer.decode_ns / 4;
    if method.starts_with("dcoco") {
        answer.rounds.confidence_ppm = Some(vec![vec![500_000; 3]; rounds.len()]);
    }
    answer
}

/// Name, rounds, nanoseconds a token.
type Arm = (&'static str, &'static [(u32, u32)], u64);

/// Three methods on two suites at two concurrencies, 8 prompts each; dcoco is the fastest by far.
fn matrix() -> Vec<Record> {
    let mut records = Vec::new();
    for suite in ["maths", "code"] {
        for concurrency in [1, 4] {
            for prompt in 0..8u64 {
                let arms: [Arm; 3] = [
                    ("vanilla", &[(0, 1); 12], 1000),
                    ("dflash", &[(1, 2); 6], 800),
                    ("dcoco", &[(2, 3); 4], 400),
                ];
                for (method, rounds, ns) in arms {
                    let answer = timed(method, rounds, ns + prompt);
                    let mut record = record(method, &prompt.to_string(), answer);
                    record.cell.suite = suite.into();
                    record.cell.concurrency = concurrency;
                    records.push(record);
                }
            }
        }
    }
    records
}

/// Panics at the first tag that closes what is not open; says which ids there are.
fn assert_nested(html: &str) -> Vec<String> {
    const VOID: [&str; 4] = ["meta", "link", "wbr", "input"];
    let (mut open, mut ids) = (Vec::new(), Vec::new());
    let mut rest = html.strip_prefix("<!doctype html>").unwrap();
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
        if let Some(id) = tag.split(" id=\"").nth(1) {
            ids.push(id.split('"').next().unwrap().to_owned());
        }
        let name = tag.split([' ', '/']).find(|n| !n.is_empty()).unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "before {:.80}", rest),
            (false, true) => {}
            (false, false) if VOID.contains(&name) => {}
            (false, false) => open.push(name),
        }
        // The text of a script is no markup.
        if name == "script" && !tag.starts_with('/') {
            rest = &rest[rest.find("</script>").unwrap()..];
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    ids
}

#[test]
fn tags_are_nested_and_ids_distinct() {
    for records in [matrix(), matrix()[..3].to_vec(), Vec::new()] {
        let mut ids = assert_nested(&made(&records));
        let n = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), n);
    }
}

#[test]
fn every_cell_has_a_row_and_every_setting_a_table() {
    let records = matrix();
    let html = made(&records);
    let cells: BTreeSet<&Cell> = records.iter().map(|r| &r.cell).collect();
    for cell in &cells {
        let row = format!(
            "<tr data-target=\"toy\" data-sampling=\"greedy\" data-thinking=\"off\" data-arrivals=\"closed\" data-concurrency=\"{}\" data-suite=\"{}\" data-method=\"{}\">",
            cell.concurrency, cell.suite, cell.method
        );
        assert_eq!(html.matches(&row).count(), 1, "{row}");
    }
    assert_eq!(html.matches("<section class=\"setting\"").count(), 2);
    assert_eq!(html.matches("class=\"grid sortable\"").count(), 2);
}

#[test]
fn the_summary_names_the_best_and_how_sure_that_is() {
    let html = made(&matrix());
    assert!(
        html.contains("<b>dcoco</b> is highest in 2 of 2 settings (clear of the second in both)"),
        "{html}"
    );
    assert!(
        html.contains("<span class=\"tag clear\">ahead</span> +50.0\u{a0}% over dflash (2.00)")
    );
    // Two methods that draft alike.
    let mut alike = matrix();
    for record in &mut alike {
        if let (Outcome::Ok(answer), "dcoco") = (&mut record.outcome, record.cell.method.as_str()) {
            **answer = timed("dcoco", &[(1, 2); 6], 800);
        }
    }
    let html = made(&alike);
    assert!(html.contains("not separable"), "{html}");
}

/// Gives every answer of a method other text, or text that repeats itself.
fn spoiled(method: &str, spoil: impl Fn(&mut crate::Answer)) -> Vec<Record> {
    let mut records = matrix();
    for record in records.iter_mut().filter(|r| r.cell.method == method) {
        if let Outcome::Ok(answer) = &mut record.outcome {
            spoil(answer);
        }
    }
    records
}

#[test]
fn text_that_differs_or_loops_is_never_best() {
    for records in [
        spoiled("dcoco", |answer| answer.tokens_sha256 = "other".into()),
        spoiled("dcoco", |answer| answer.grams.repeated = answer.grams.total),
    ] {
        let html = made(&records);
        assert!(!html.contains("<b>dcoco</b> is highest"));
        // Alone, dflash is neither best nor second.
        assert!(html.contains(
            "<b>dflash</b> stands alone in 2 of 2 settings (the only one that may be ranked)"
        ));
        let table = html.split("<section id=\"results\"").nth(1).unwrap();
        let cells = table.split("<tbody>").nth(1).unwrap();
        let cells = cells.split("</tbody>").next().unwrap();
        assert!(
            !cells.contains("<strong>") && !cells.contains("<u>"),
            "{cells}"
        );
        assert!(html.contains("so it is not ranked"));
    }
}

#[test]
fn equal_numbers_are_both_best() {
    let records = spoiled("dcoco", |answer| {
        *answer = timed("dcoco", &[(1, 2); 6], 800)
    });
    let html = made(&records);
    let table = html.split("<section id=\"results\"").nth(1).unwrap();
    let cells = table.split("<tbody>").nth(1).unwrap();
    let cells = cells.split("</tbody>").next().unwrap();
    // Tau on two suites and their mean.
    assert_eq!(cells.matches("<strong>2.00</strong>").count(), 6, "{cells}");
    assert_eq!(cells.matches("<u>2.00</u>").count(), 0);
}

#[test]
fn no_address_is_loaded() {
    let html = made(&matrix());
    for scheme in ["http:", "https:", "url(//", "src="] {
        assert!(!html.contains(scheme), "{scheme}");
    }
    let links = html.split("href=\"").skip(1);
    links.for_each(|l| assert!(l.starts_with('#') || l.starts_with("data:,"), "{l:.40}"));
}

#[test]
fn every_text_of_the_input_is_shown_as_text() {
    assert_shown_as_text(matrix());
    // A lone suite is named where several are counted.
    let is_first = |r: &Record| r.cell.suite == "maths";
    assert_shown_as_text(matrix().into_iter().filter(is_first).collect());
}

fn assert_shown_as_text(mut records: Vec<Record>) {
    for record in &mut records {
        let method = &mut record.cell.method;
        if method == "dcoco" {
            *method = format!("dcoco{HOSTILE}");
        }
        record.cell.target = HOSTILE.into();
        record.cell.suite += HOSTILE;
        record.run = HOSTILE.into();
    }
    let mut skipped = records[0].clone();
    skipped.cell.method = "eagle3".into();
    skipped.prompt = None;
    skipped.outcome = Outcome::Skipped {
        why: HOSTILE.into(),
    };
    records.push(skipped);
    let facts = serde_json::json!({
        "run": HOSTILE, "git_commit": HOSTILE, "crates": { HOSTILE: HOSTILE }, "complete": false,
        "asked": { "preset": HOSTILE, "notes": [HOSTILE], "targets": [{ "id": HOSTILE, "from": HOSTILE }] },
        "sittings": [{ "command": [HOSTILE], "machine": { "cpu": HOSTILE, "cpu_flags": [HOSTILE] } }],
    });
    let html = page(&PageInput {
        title: HOSTILE,
        records: &records,
        runs: &[facts],
        synthetic: &[],
        flags: &[(records[0].cell.clone(), HOSTILE.into())],
        coverage: &[],
        training: &[],
    });
    assert!(!html.contains("<script>x"));
    assert!(!html.contains("<img"));
    assert!(!html.contains("'><"));
    assert!(html.contains("&lt;script&gt;x"));
    assert_eq!(html.matches("<script>").count(), 1);
    assert_nested(&html);
}

#[test]
fn what_is_missing_and_what_is_doubtful_is_said_with_its_reason() {
    let mut records = matrix();
    let mut skipped = records[0].clone();
    skipped.cell = Cell {
        suite: "maths".into(),
        ..cell("eagle3")
    };
    skipped.prompt = None;
    skipped.outcome = Outcome::Skipped {
        why: "no drafter".into(),
    };
    let mut failed = records[2].clone();
    failed.cell.method = "domino".into();
    failed.outcome = Outcome::Failed {
        why: "out of memory".into(),
    };
    let mut long = records[2].clone();
    long.prompt.as_mut().unwrap().id = "long".into();
    long.outcome = Outcome::Skipped {
        why: "too long".into(),
    };
    if let Outcome::Ok(answer) = &mut records[1].outcome {
        answer.tokens_sha256 = "other".into();
        answer.grams.repeated = 10;
    }
    let flag = (records[1].cell.clone(), "times did not settle".to_owned());
    records.extend([skipped, failed, long]);
    let html = page(&PageInput {
        title: "a page",
        records: &records,
        runs: &[],
        synthetic: &[],
        flags: &[flag.clone(), flag],
        coverage: &[],
        training: &[],
    });
    for text in [
        "1 cell: Skipped: no drafter",
        "1 cell: Failed: out of memory",
        "1 cell: Prompts left out: too long",
        "Caution:</b> Text differs from vanilla&#39;s",
        "7 of 8 answers equal",
        "Caution:</b> times did not settle (1 of 14 cells)",
        "Degenerate text: more than 20 %",
        "Small sample: fewer than 30 prompts",
        "<td class=\"text\" colspan=\"15\">no drafter</td>",
    ] {
        assert!(html.contains(text), "{text}");
    }
    assert_eq!(html.matches("times did not settle").count(), 2);
}

#[test]
fn a_plot_is_drawn_or_left_out_with_its_reason() {
    let html = made(&matrix());
    for title in [
        "Speedup on maths",
        "Throughput by concurrency",
        "Acceptance length by concurrency",
        "Throughput and waiting",
        "Conditional acceptance by position",
        "Accepted drafts a round, dflash",
        "Time of a round at concurrency 4",
        "Calibration",
    ] {
        assert!(html.contains(&format!("\">{title}</title>")), "{title}");
    }
    assert!(!html.contains("Left out:"));
    // A marker says its numbers.
    assert!(html.contains("<title>dcoco at 2: 100.0\u{a0}% (80.6\u{a0}% to 100.0\u{a0}%)</title>"));
    let alone: Vec<Record> = matrix()
        .into_iter()
        .filter(|r| r.cell.method == "vanilla" && r.cell.concurrency == 1)
        .collect();
    let html = made(&alone);
    for why in [
        "No plot of speedups: no method has a vanilla cell beside it",
        "tau by concurrency (no method was measured at two concurrencies)",
        "acceptance by position (nothing was drafted in chains)",
        "calibration (no drafter gave confidences)",
    ] {
        assert!(html.contains(why), "{why}");
    }
}

#[test]
fn thinking_and_sampling_are_settings_of_their_own() {
    let mut records = matrix();
    let thinking = records.clone().into_iter().map(|mut record| {
        record.cell.thinking = Thinking::On;
        record
    });
    let sampled = records.clone().into_iter().map(|mut record| {
        record.cell.sampling = crate::SamplingKey::at(1000);
        record
    });
    let more: Vec<Record> = thinking.chain(sampled).collect();
    records.extend(more);
    let html = made(&records);
    assert_eq!(html.matches("<section class=\"setting\"").count(), 6);
    assert_eq!(html.matches("<section class=\"family\"").count(), 3);
    assert!(html.contains("<h3>toy, t1000, thinking off, concurrency 4</h3>"));
    assert!(html.contains("sampled answers are vanilla\u{2019}s in law"));
}

#[test]
fn a_mean_is_that_of_the_cells_it_stands_beside() {
    let mut records = matrix();
    // Suites that differ: the method drafts worse on one.
    for record in &mut records {
        let cell = &record.cell;
        if let (Outcome::Ok(answer), "dcoco", "code") = (
            &mut record.outcome,
            cell.method.as_str(),
            cell.suite.as_str(),
        ) {
            **answer = timed("dcoco", &[(1, 2); 6], 500);
        }
    }
    let data = super::data::Data::new(&PageInput {
        title: "",
        records: &records,
        runs: &[],
        synthetic: &[],
        flags: &[],
        coverage: &[],
        training: &[],
    });
    for setting in &data.settings {
        let stats = ["maths", "code"].map(|suite| data.stat(setting, suite, "dcoco").unwrap());
        let standing = data.standing(setting, "dcoco");
        let mean = |of: fn(&crate::CellStats) -> Option<f64>| {
            stats.iter().map(|s| of(s).unwrap()).sum::<f64>() / 2.0
        };
        let close = |got: Option<crate::Share>, want: f64| {
            let got = got.unwrap().value;
            assert!((got - want).abs() < 1e-9, "{got} for {want}");
        };
        close(standing.tau, mean(|s| s.tau));
        close(standing.speedup, mean(|s| s.speedup));
    }
}
