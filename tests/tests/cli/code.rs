//! `--execute-code` as a user meets it. What it does to an answer is tested where programs are run, since a suite that
//! has tests is a public one, and none of these is in the repository.

use std::fs;

use crate::desk::{Desk, fine, text};

const SHORT: &str =
    "--suites mini-code --prompts 1 --methods vanilla --sampling greedy --max-new 4";

#[test]
fn without_python_a_run_that_executes_code_is_refused_before_it_begins() {
    let desk = Desk::new();
    let args = format!("run {SHORT} --execute-code --out out");
    let args: Vec<&str> = args.split(' ').collect();
    let output = desk.run_with(&args, &[("PATH", "")]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.starts_with("error: --execute-code: python3 cannot be started; put a Python 3 on PATH"),
        "{err}"
    );
    assert_eq!(desk.tree(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_stored_plan_takes_the_flag_and_stays_the_same_plan() {
    let desk = Desk::new();
    if std::process::Command::new("python3")
        .arg("-V")
        .output()
        .is_err()
    {
        eprintln!("no python3, nothing is tested");
        return;
    }
    fine(&desk, &format!("plan {SHORT} --out plan.json"));
    fine(&desk, "run --plan plan.json --out plain");
    let args = [
        "run",
        "--plan",
        "plan.json",
        "--execute-code",
        "--out",
        "executed",
    ];
    let output = desk.run(&args);
    let err = text(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("note: --execute-code: no suite of this run has tests\n"),
        "{err}"
    );
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(desk.path(path)).unwrap()).unwrap()
    };
    assert_eq!(json("plain/plan.json"), json("executed/plan.json"));
    let sitting =
        |run: &str| json(&format!("{run}/run.json"))["sittings"][0]["execute_code"].clone();
    assert!(sitting("plain").is_null());
    let level = sitting("executed")["sandbox"].clone();
    assert!(level == "namespaces" || level == "limits_only", "{level}");
    fine(&desk, "run --resume executed --execute-code");
}
