//! `draftbench report`: what it writes, and what it refuses.

use std::fs;

use crate::desk::{Desk, fine};

const RUN: &str = "run --suites mini-maths,mini-chat --prompts 2 --max-new 16 --methods dflash,dcoco --sampling greedy";

#[test]
fn a_run_becomes_a_page_tables_plots_and_files_for_other_programs() {
    let desk = Desk::new();
    fine(&desk, &format!("{RUN} --out r"));
    let costs = "unit = \"ms\"\nvanilla_step = 10.0\nverify = [{ rows = 1, cost = 10.0 }, { rows = 8, cost = 12.0 }]\ndraft_per_round = 1.0\nhead_per_draft = 0.1\nrest_per_round = 0.5\n";
    fs::write(desk.path("costs.toml"), costs).unwrap();
    let out = fine(&desk, "report r --out rep --costs costs.toml --title Mine");
    for want in [
        "**Speedup / tau, greedy, thinking off, concurrency 1**",
        "Acceptance length by convention",
        "PROJECTION of recorded acceptance",
        "report.html first",
    ] {
        assert!(out.contains(want), "{want} is not in {out}");
    }
    let page = fs::read_to_string(desk.path("rep/report.html")).unwrap();
    assert!(page.contains("<h1>Mine</h1>") && page.contains("dcoco"));
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
    let place = "tiny-qwen3-greedy-thinking-off";
    for file in [
        "tables.md".to_owned(),
        "tables.tex".to_owned(),
        "csv/conventions.csv".to_owned(),
        "csv/levels.csv".to_owned(),
        "csv/drafts.csv".to_owned(),
        "csv/positions.csv".to_owned(),
        "csv/phases.csv".to_owned(),
        "csv/projection.csv".to_owned(),
        "csv/all-levels.csv".to_owned(),
        "csv/answers.csv".to_owned(),
        "parquet/all-levels.parquet".to_owned(),
        "parquet/answers.parquet".to_owned(),
        "interop/openmetrics.txt".to_owned(),
        "interop/bencher.json".to_owned(),
        format!("plots/speedup-{place}-x1.svg"),
        format!("plots/speedup-{place}-x1.png"),
        format!("plots/round-{place}-x1.svg"),
        format!("plots/positions-{place}-x1.svg"),
        format!("plots/accepted-{place}-x1.svg"),
    ] {
        assert!(desk.path("rep").join(&file).is_file(), "{file}");
    }
    let bench = fs::read_dir(desk.path("rep/interop/vllm-bench")).unwrap();
    assert_eq!(bench.count(), 6, "a file a cell");
    // Once more into the same folder.
    fine(&desk, "report r --out rep");
}

#[test]
fn what_cannot_be_reported_is_one_line_that_names_file_and_remedy() {
    let desk = Desk::new();
    fine(&desk, &format!("{RUN} --out r"));
    let refuses = |args: &str, want: &[&str]| {
        let args: Vec<&str> = args.split(' ').collect();
        desk.refuses_in_a_line(&args, want);
    };
    refuses(
        "report none",
        &["none: holds neither records.jsonl nor coverage.jsonl"],
    );
    refuses(
        "report r r",
        &[
            "r: holds answers of tiny-qwen3 / ",
            "as does a run named before it",
        ],
    );
    let records = fs::read_to_string(desk.path("r/records.jsonl")).unwrap();
    let spoiled = |name: &str, text: &str| {
        fs::create_dir(desk.path(name)).unwrap();
        fs::write(desk.path(name).join("records.jsonl"), text).unwrap();
    };
    spoiled("empty", "");
    refuses("report empty", &["hold no answer"]);
    spoiled("old", &records.replace("\"schema\":5", "\"schema\":3"));
    refuses(
        "report old",
        &["line 1: schema is 3, this program reads 4 to 5"],
    );
    spoiled(
        "nan",
        &records.replacen("\"prefill_ns\":", "\"prefill_ns\":NaN,\"x\":", 1),
    );
    refuses("report nan", &["records.jsonl\" line "]);
    let impossible = records.replacen("\"accepted\":[", "\"accepted\":[99,", 1);
    spoiled("impossible", &impossible);
    refuses(
        "report impossible",
        &["the four round lists differ in length"],
    );
    fs::write(desk.path("mine.csv"), "paper,speed\nx,1\n").unwrap();
    refuses("report r --published mine.csv", &["mine.csv", "speed"]);
    fs::write(desk.path("costs.toml"), "unit = \"ms\"\nspeed = 1\n").unwrap();
    refuses(
        "report r --costs costs.toml",
        &["--costs costs.toml", "speed"],
    );
    refuses(
        "report r --training mine.csv",
        &["--training", "mine.csv", "column step is missing"],
    );
    assert!(!desk.path("report").exists(), "nothing was written");
}

#[test]
fn a_run_without_vanilla_has_acceptance_and_no_speedup() {
    let desk = Desk::new();
    fine(&desk, &format!("{RUN} --out r"));
    let records = fs::read_to_string(desk.path("r/records.jsonl")).unwrap();
    let lines = records
        .lines()
        .filter(|line| !line.contains("\"method\":\"vanilla\""));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    fs::create_dir(desk.path("bare")).unwrap();
    fs::write(desk.path("bare/records.jsonl"), text).unwrap();
    let out = fine(&desk, "report bare --out rep");
    let row = out.lines().find(|line| line.contains("| dcoco |"));
    assert!(row.is_some_and(|row| row.contains("- / ")), "{out}");
}
