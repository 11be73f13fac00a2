//! Matrices and plans as a user meets them.

use std::fs;

use crate::desk::{Desk, text};

fn planned(desk: &Desk, args: &[&str]) -> String {
    let output = desk.run(&[&["plan"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn the_published_schema_is_the_one_that_files_are_read_by() {
    let output = Desk::new().run(&["schema", "matrix"]);
    let published = tests::workspace().join("docs/matrix.schema.json");
    let published = fs::read_to_string(published).unwrap_or_default();
    assert!(
        text(&output.stdout) == published,
        "docs/matrix.schema.json is old; draftbench schema matrix > docs/matrix.schema.json"
    );
}

#[test]
fn the_papers_matrix_is_planned_where_none_of_it_can_run() {
    let desk = Desk::new();
    let out = planned(&desk, &["--preset", "paper-main"]);
    assert!(out.contains("target \"qwen3-8b\" needs files"), "{out}");
    assert!(out.contains("cells     0\n"), "{out}");
    desk.refuses_in_a_line(
        &["run", "--preset", "paper-main", "--out", "out"],
        &["nothing can be run: target \"qwen3-4b\" needs files"],
    );
}

#[test]
fn a_matrix_extends_a_preset_and_its_exclusions_and_skips_are_told() {
    let desk = Desk::new();
    let matrix = r#"
extends = "quick"
max_new = 16
suites = ["mini-chat", "gsm8k"]
methods = ["dcoco:k=8", "dflash"]

[[exclude]]
methods = ["dflash"]
sampling = ["t1000"]
why = "known already"
"#;
    fs::write(desk.path("m.toml"), matrix).unwrap();
    let args = [
        "--matrix",
        "m.toml",
        "--out",
        "plan.json",
        "--assume-rate",
        "100",
    ];
    let out = planned(&desk, &args);
    for line in [
        "  method  dcoco:k=8 from embedded tiny-qwen3-dcoco\n",
        "setting   greedy, thinking off, concurrency 1: 3 methods on mini-chat\n",
        "setting   t1000, thinking off, concurrency 1: 2 methods on mini-chat\n",
        "skipped   2 groups, tiny-qwen3 on gsm8k, greedy, thinking off, concurrency 1 and so on: suite gsm8k: ",
        "excluded  2 cells: known already\n",
        "cells     5\n",
        "groups    2\n",
        // 5 cells of 12 prompts of 16 tokens at 100 tokens a second.
        "estimate  tiny-qwen3: at most 10 s, a guess from 100 tokens a second",
    ] {
        assert!(out.contains(line), "{line:?} is not in {out}");
    }
    let plan: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.path("plan.json")).unwrap()).unwrap();
    let group = &plan["groups"][0];
    assert_eq!(group["id"].as_str().map(str::len), Some(64));
    assert!(group["content"]["drafters_sha256"]["dcoco:k=8"].is_string());
    assert!(group["estimate"]["memory_bytes"].as_u64() > Some(8_000_000));
    desk.refuses_in_a_line(
        &[&["plan"], &args[..]].concat(),
        &["plan.json: is there already"],
    );
}

#[test]
fn a_slip_in_a_matrix_is_named_with_its_line_and_the_key_that_was_meant() {
    let desk = Desk::new();
    let cases = [
        (
            "extends = \"quick\"\nmetods = [\"dflash\"]\n",
            "line 2: unknown field `metods`",
            "did you mean `methods`?",
        ),
        (
            "extends = \"quick\"\nmethods = [\"dflsh\"]\n",
            "method \"dflsh\" is unknown",
            "dflash",
        ),
        (
            "extends = \"quick\"\nmethods = 3\n",
            "line 2: invalid type",
            "integer",
        ),
        (
            "extends = \"quick\"\ntop_p = 0.9\n",
            "line 2: unknown field `top_p`",
            "targets",
        ),
        (
            "extends = \"quick\"\nsuites = []\n",
            "suites is an empty list",
            "m.toml",
        ),
        (
            "extends = \"quick\"\nconcurrency = [65]\n",
            "65: must be between 1 and 64",
            "concurrency",
        ),
    ];
    for (matrix, error, more) in cases {
        fs::write(desk.path("m.toml"), matrix).unwrap();
        let args = ["run", "--matrix", "m.toml", "--out", "out"];
        desk.refuses_in_a_line(&args, &[error, more]);
    }
    desk.refuses_in_a_line(
        &["run", "--matrix", "no.toml"],
        &["--matrix no.toml: cannot be read"],
    );
    desk.refuses(
        &["run", "--matrix", "m.toml", "--preset", "quick"],
        &["cannot be used with"],
    );
}
