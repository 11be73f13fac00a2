//! Public suites as a user meets them: absent, foreign, and the sets inside the binary cut by rule.

use std::fs;

use reports::{Outcome, Record, read_records};

use crate::desk::{Desk, fine};

const SHORT: &str = "--methods vanilla --sampling greedy --max-new 4";

#[test]
fn a_suite_that_is_not_at_hand_is_skipped_and_what_is_runs() {
    let desk = Desk::new();
    fs::create_dir(desk.path("data")).unwrap();
    let args = format!("run --suites mini-chat,mt-bench --prompts 1 --data-dir data {SHORT}");
    let out = fine(&desk, &format!("{args} --out out"));
    let why = "suite mt-bench: data holds none of mt-bench.jsonl";
    assert!(
        out.contains(why) && out.contains("data pull mt-bench"),
        "{out}"
    );
    let records = read_records(&desk.path("out/records.jsonl")).unwrap();
    let of = |suite: &str| -> Vec<&Record> {
        let is_meant =
            |r: &&Record| r.cell.suite == suite && !matches!(r.outcome, Outcome::Started(_));
        records.iter().filter(is_meant).collect()
    };
    assert!(matches!(of("mini-chat")[0].outcome, Outcome::Ok(_)));
    assert!(matches!(of("mt-bench")[0].outcome, Outcome::Skipped { .. }));
    let plan = fine(&desk, &format!("plan --suites dflash10 {SHORT}"));
    assert!(plan.contains("groups    0\n"), "{plan}");
    for suite in ["gsm8k", "alpaca"] {
        let line =
            format!("tiny-qwen3 on {suite}, greedy, thinking off, concurrency 1: suite {suite}: ");
        assert!(plan.contains(&line), "{plan}");
    }
    let nothing = ["run", "--suites", "gsm8k", "--out", "none"];
    desk.refuses_in_a_line(
        &nothing,
        &["nothing can be run: suite gsm8k: ", "--data-dir"],
    );
}

#[test]
fn what_is_typed_wrong_or_is_not_the_pinned_set_is_refused() {
    let desk = Desk::new();
    fs::create_dir(desk.path("data")).unwrap();
    let rows = "{\"id\": \"0\", \"turns\": [\"Hi\", \"And now?\"]}\n";
    fs::write(desk.path("data/mt-bench.jsonl"), rows).unwrap();
    let foreign = [
        "run",
        "--suites",
        "mt-bench",
        "--data-dir",
        "data",
        "--out",
        "out",
    ];
    let hashes = ["holds 1 rows of sha256 ", "pinned are 80 rows of sha256 "];
    desk.refuses_in_a_line(&foreign, &hashes);
    for (args, error) in [
        (
            "--suites gsm9k",
            "suite \"gsm9k\" is unknown; known: mini-maths",
        ),
        ("--data-dir no", "--data-dir no: no such folder"),
        (
            "--subset odd",
            "--subset \"odd\" is unknown; known: first, dflash",
        ),
    ] {
        let args = format!("run {args} --out out");
        let args: Vec<&str> = args.split(' ').collect();
        desk.refuses_in_a_line(&args, &[error]);
    }
}

/// Ids of a suite's prompts in the order they were answered.
fn ids(desk: &Desk, run: &str) -> Vec<String> {
    let records = read_records(&desk.path(run).join("records.jsonl")).unwrap();
    let ids = records
        .iter()
        .filter_map(|r| Some(r.prompt.as_ref()?.id.clone()));
    ids.collect()
}

#[test]
fn a_plan_has_the_rule_and_the_seed_and_another_rule_is_another_plan() {
    let desk = Desk::new();
    let id = |more: &str, out: &str| -> String {
        let plan = format!("plan --suites mini-code --prompts 3 {SHORT}{more} --out {out}");
        let told = fine(&desk, &plan);
        assert!(
            told.contains("mini-code: 3 of 24 prompts by the rule "),
            "{told}"
        );
        let plan: serde_json::Value =
            serde_json::from_slice(&fs::read(desk.path(out)).unwrap()).unwrap();
        plan["groups"][0]["id"].as_str().unwrap().to_owned()
    };
    let first = id("", "first.json");
    assert_eq!(id(" --subset first", "again.json"), first);
    let hash = id(" --subset hash", "hash.json");
    let seed = id(" --subset hash --subset-seed 7", "seed.json");
    assert!(hash != first && seed != first && seed != hash);

    fine(&desk, "run --plan first.json --out first");
    assert_eq!(ids(&desk, "first"), ["1", "2", "3"]);
    fs::create_dir(desk.path("data")).unwrap();
    fine(&desk, "run --plan seed.json --data-dir data --out seed");
    fine(
        &desk,
        &format!(
            "run --suites mini-code --prompts 3 --subset hash --subset-seed 7 {SHORT} --out typed"
        ),
    );
    assert_eq!(ids(&desk, "seed"), ids(&desk, "typed"));
    fine(&desk, "run --resume seed --data-dir data");
    desk.refuses(
        &["run", "--plan", "seed.json", "--subset", "first"],
        &["cannot be used with"],
    );
}
