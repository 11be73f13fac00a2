//! What the study makes of runs.

use std::fs;

use reports::{CoverageRecord, Outcome, oracle_tau};

use crate::desk::{Desk, by_method, short, text};

#[test]
fn coverage_ranks_give_the_tau_that_a_run_measures_and_a_study_shows_both() {
    let desk = Desk::new();
    let output = desk.run(&short(&[
        "--methods",
        "dflash",
        "--suites",
        "mini-chat,mini-code",
    ]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let args = "analyse coverage --suites mini-chat,mini-code --prompts 2 --max-new 8 --out cov";
    let args: Vec<&str> = args.split(' ').collect();
    let output = desk.run(&args);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        out.contains("right token in the top 16") && out.contains("oracle path"),
        "{out}"
    );
    desk.refuses_in_a_line(
        &args,
        &["--out cov: holds the coverage.jsonl of an earlier run"],
    );

    let ranks: Vec<CoverageRecord> = fs::read_to_string(desk.path("cov/coverage.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(ranks.len() == 4 && ranks.iter().all(|r| r.fault().is_none()));
    let all: Vec<&CoverageRecord> = ranks.iter().collect();
    // Always taking a first choice is DFlash itself.
    let oracle = oracle_tau(&all, 1).unwrap().value;
    let (mut committed, mut rounds) = (0, 0);
    for record in &by_method(&desk)["dflash"] {
        if let Outcome::Ok(answer) = &record.outcome {
            committed += answer.rounds.committed.iter().sum::<u32>();
            rounds += answer.rounds.committed.len();
        }
    }
    assert_eq!(oracle, f64::from(committed) / rounds as f64);

    fills_a_document(&desk, oracle);
}

/// A run and the coverage of the same prompts, filled into a document.
fn fills_a_document(desk: &Desk, oracle: f64) {
    let args = [
        "analyse",
        "study",
        "out",
        "cov",
        "--out",
        "docs/plots",
        "--doc",
        "docs.md",
    ];
    let output = desk.run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for name in [
        "methods.csv",
        "coverage.csv",
        "k.csv",
        "cost.csv",
        "coverage.svg",
        "coverage.png",
        "study.md",
    ] {
        assert!(
            desk.path("docs/plots").join(name).is_file(),
            "{name}: {:?}",
            desk.tree()
        );
    }
    let doc = fs::read_to_string(desk.path("docs.md")).unwrap();
    let row = format!("| dflash | {oracle:.2} |");
    assert!(
        doc.contains(&row) && doc.contains("![What a slot holds](docs/plots/coverage.svg)"),
        "{doc}"
    );
    desk.run(&args);
    assert_eq!(
        fs::read_to_string(desk.path("docs.md")).unwrap(),
        doc,
        "a second filling changes nothing"
    );
    only_what_is_named_is_filled(desk, &doc);
    what_was_measured_elsewhere_is_shown(desk);
    fs::write(desk.path("prose.md"), "No place.\n").unwrap();
    let args = [
        "analyse",
        "study",
        "out",
        "--out",
        "docs/plots",
        "--doc",
        "prose.md",
    ];
    let output = desk.run(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--doc prose.md: holds no marked place"));
    desk.refuses_in_a_line(
        &["analyse", "study", "cov/none"],
        &["cov/none: holds neither records.jsonl nor coverage.jsonl"],
    );
    desk.refuses_in_a_line(
        &["analyse", "coverage", "--checkpoint", "none"],
        &["no folder tiny-qwen3-none/"],
    );
}

/// Costs of steps and another program's acceptance stand beside the records'.
fn what_was_measured_elsewhere_is_shown(desk: &Desk) {
    let args = "cost --target tiny-qwen3 --rows 1,8 --sequences 1 --context 8 --prompt 8 --repeats 1 --json cost.json";
    let output = desk.run(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = r#"{"tau": {"all": {"prompts": 1, "llama_cpp": 2.0}}, "answers": []}"#;
    fs::write(desk.path("peer.json"), printed).unwrap();
    let args =
        "analyse study out --out more --only model,llama --cost cost.json --peer dflash=peer.json";
    let output = desk.run(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(out.contains("| predicted by it | error |"), "{out}");
    assert!(out.contains("| dflash | all | 1 | 2.00 | - |"), "{out}");
    let with = |more: &[&'static str]| [&["analyse", "study", "out"], more].concat();
    desk.refuses_in_a_line(
        &with(&["--cost", "peer.json"]),
        &["--cost peer.json: holds no costs", "draftbench cost --json"],
    );
    desk.refuses_in_a_line(
        &with(&["--peer", "peer.json"]),
        &["--peer peer.json: write the arm, =, and a file"],
    );
    desk.refuses_in_a_line(
        &with(&["--peer", "dflash=cost.json"]),
        &["is not what tests/peers/llama_accept.py prints"],
    );
}

/// `--only` leaves the rest of a document alone; without it a table that these runs lack goes.
fn only_what_is_named_is_filled(desk: &Desk, doc: &str) {
    let filled = |args: &str| {
        let old = "<!-- generated: schedules -->\nold\n<!-- end: schedules -->\n";
        fs::write(desk.path("docs.md"), format!("{doc}{old}")).unwrap();
        let args = format!("analyse study out --out elsewhere --doc docs.md{args}");
        let output = desk.run(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        fs::read_to_string(desk.path("docs.md")).unwrap()
    };
    assert!(filled(" --only methods").contains("\nold\n"));
    assert!(!desk.path("elsewhere/study.md").exists());
    let without = filled("");
    assert!(!without.contains("\nold\n"), "{without}");
    assert!(without.contains("Nothing in these runs."), "{without}");
    let args = ["analyse", "study", "out", "--out", "elsewhere", "--only"];
    let named = |id| [&args[..], &[id]].concat();
    desk.refuses_in_a_line(&named("method"), &["--only \"method\"", "known: methods"]);
    desk.refuses_in_a_line(
        &named("schedules"),
        &["--only schedules: the runs hold nothing"],
    );
    fs::write(desk.path("docs.md"), doc).unwrap();
}

#[test]
fn temperatures_are_fitted_to_confidences_as_trained() {
    let desk = Desk::new();
    let methods = ["--methods", "dspark:calibration=off,dspark"];
    let output = desk.run(&short(&methods));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let args = ["analyse", "calibrate", "out"];
    let with = |more: &[&'static str]| [&args[..], more].concat();
    desk.refuses_in_a_line(
        &with(&["--method", "dspark"]),
        &["--method \"dspark\"", "calibration=off"],
    );
    desk.refuses_in_a_line(&with(&["--sampling", "t1000"]), &["no t1000 confidences"]);
    let output = desk.run(&with(&[]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let fitted = fs::read_to_string(desk.path("calibration.json")).unwrap();
    assert!(fitted.starts_with("{\"temperatures\":["), "{fitted}");
}

#[test]
fn a_cell_that_a_later_run_could_not_measure_keeps_the_answers_of_an_earlier_one() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3-dflash", "tiny-qwen3-mine");
    let arm = [
        "--suites",
        "mini-chat",
        "--methods",
        "dflash,dflash:checkpoint=mine",
    ];
    let with = desk.run(&short(&[&["--checkpoints", "models"], &arm[..]].concat()));
    assert_eq!(with.status.code(), Some(0), "{}", text(&with.stderr));
    fs::rename(desk.path("out"), desk.path("with")).unwrap();
    let without = desk.run(&short(&arm));
    assert_eq!(without.status.code(), Some(0), "{}", text(&without.stderr));
    for (runs, is_there) in [(["with", "out"], true), (["out", "out"], false)] {
        let output = desk.run(&["analyse", "study", runs[0], runs[1]]);
        let out = text(&output.stdout);
        let row = "| dflash:checkpoint=mine | ";
        let found = out.lines().filter(|l| l.starts_with(row));
        let is_measured = found.clone().any(|l| !l.contains("has no drafter"));
        assert_eq!(is_measured, is_there, "{runs:?}: {out}");
        assert_eq!(out.contains("has no drafter"), !is_there, "{runs:?}: {out}");
    }
}

#[test]
fn the_ablation_preset_ends_with_the_studys_tables_and_plots() {
    let desk = Desk::new();
    let args = "run --preset ablation --prompts 1 --max-new 6 --suites mini-chat --methods dflash,draft_model \
                --sampling greedy --concurrency 1,4 --out out";
    let output = desk.run(&args.split_whitespace().collect::<Vec<_>>());
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        out.contains("**Time of a round by part, and throughput**"),
        "{out}"
    );
    assert!(
        out.contains("tables and plots: out/study/tiny-qwen3"),
        "{out}"
    );
    for name in [
        "methods.csv",
        "cost.csv",
        "cost.svg",
        "cost.png",
        "positions.csv",
    ] {
        assert!(
            desk.path("out/study/tiny-qwen3").join(name).is_file(),
            "{name}"
        );
    }
    // The blocks that ask for 16 sequences ask for every prompt twice.
    let pairs = by_method(&desk)["dflash"]
        .iter()
        .filter(|r| r.cell.concurrency == 4)
        .count();
    assert_eq!(pairs, 2 * 2, "two samples in two passes");
}
