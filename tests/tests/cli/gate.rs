//! `compare` and `gate` on runs of the embedded models.

use std::fs;

use serde_json::Value;

use crate::desk::{Desk, binary, edit_json, fine, short, text};

/// A run of dflash in `out`.
fn desk() -> Desk {
    let desk = Desk::new();
    let output = desk.run(&short(&["--methods", "dflash"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    desk
}

/// Copies the run `out` to `name` with edited records; one that becomes null is left out.
fn edited(desk: &Desk, name: &str, edit: impl Fn(usize, &mut Value)) {
    fs::create_dir(desk.path(name)).unwrap();
    for file in ["run.json", "plan.json"] {
        fs::copy(desk.path("out").join(file), desk.path(name).join(file)).unwrap();
    }
    let records = fs::read_to_string(desk.path("out/records.jsonl")).unwrap();
    let lines = records.lines().enumerate().filter_map(|(idx, line)| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        // What a warm-up took is no answer.
        if record["outcome"].get("started").is_none() {
            edit(idx, &mut record);
        }
        (!record.is_null()).then(|| format!("{record}\n"))
    });
    fs::write(
        desk.path(name).join("records.jsonl"),
        lines.collect::<String>(),
    )
    .unwrap();
}

/// Edits the run's description: another run, by another program.
fn renamed(desk: &Desk, name: &str, run: &str, commit: &str) {
    let path = desk.path(name).join("run.json");
    let mut info: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    info["run"] = run.into();
    info["sittings"][0]["git_commit"] = commit.into();
    fs::write(path, info.to_string()).unwrap();
}

fn is_dflash(record: &Value) -> bool {
    record["cell"]["method"] == "dflash"
}

/// Exit code and standard output of a gate of `out` against `candidate`.
fn gate(desk: &Desk, candidate: &str, more: &[&str]) -> (Option<i32>, String) {
    let args = [
        &["gate", "--reference", "out", "--candidate", candidate],
        more,
    ]
    .concat();
    let output = desk.run(&args);
    assert_eq!(text(&output.stderr), "", "{args:?}");
    (output.status.code(), text(&output.stdout))
}

#[test]
fn a_run_passes_against_itself_and_against_its_own_record() {
    let desk = desk();
    // A plan of another version has other keys.
    edit_json(&desk.path("out/plan.json"), "weather", "fine");
    let (code, out) = gate(&desk, "out", &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("L1 losslessness   pass") && out.contains("L2 acceptance     pass"),
        "{out}"
    );
    assert!(out.ends_with("verdict: pass (exit code 0)\n"), "{out}");

    let out = fine(&desk, "gate record out --out a.jsonl");
    assert!(out.starts_with("12 answers in a.jsonl, "), "{out}");
    let whole = fs::metadata(desk.path("out/records.jsonl")).unwrap().len();
    assert!(fs::metadata(desk.path("a.jsonl")).unwrap().len() * 3 < whole);
    desk.refuses_in_a_line(
        &["gate", "record", "out", "--out", "a.jsonl"],
        &["--out a.jsonl: is there already"],
    );
    let out = fine(&desk, "gate --reference a.jsonl --candidate out");
    assert!(out.contains("every round is the reference's"), "{out}");
    let out = fine(&desk, "compare a.jsonl out --json c.json --markdown c.md");
    assert!(
        out.contains("no difference") && out.contains("equal 6/6"),
        "{out}"
    );
    let json: Value = serde_json::from_slice(&fs::read(desk.path("c.json")).unwrap()).unwrap();
    assert_eq!(
        json["others"][0]["rows"][0]["findings"][0]["word"],
        "no_difference"
    );
    assert!(
        fs::read_to_string(desk.path("c.md"))
            .unwrap()
            .starts_with("## out against a.jsonl")
    );
}

#[test]
fn what_is_wrong_fails_with_1() {
    let desk = desk();
    edited(&desk, "tampered", |_, r| {
        if is_dflash(r) {
            r["outcome"]["ok"]["rounds"]["accepted"][0] = 99.into();
        }
    });
    let (code, out) = gate(&desk, "tampered", &[]);
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("L0 known answers  fail")
            && out.contains("round 0 breaks accepted <= verified"),
        "{out}"
    );
    edited(&desk, "lossy", |_, r| {
        if is_dflash(r) {
            r["outcome"]["ok"]["tokens_sha256"] = "0".repeat(64).into();
        }
    });
    let (code, out) = gate(&desk, "lossy", &[]);
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("6 of 6 answers are not vanilla's; the first is of suite mini-"),
        "{out}"
    );
    // One token a round: the same text by many more rounds.
    edited(&desk, "rejecting", |_, r| {
        if is_dflash(r) {
            let answer = &mut r["outcome"]["ok"];
            let n = answer["n_tokens"].as_u64().unwrap() as usize - 1;
            answer["rounds"] = serde_json::json!({
                "drafted": vec![7; n], "verified": vec![7; n], "accepted": vec![0; n], "committed": vec![1; n]
            });
            answer["timeline"]["step_ns"] = vec![1; n].into();
        }
    });
    let (code, out) = gate(&desk, "rejecting", &[]);
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("L2 acceptance     fail")
            && out.contains("most is lost at draft 1 of a round"),
        "{out}"
    );
}

#[test]
fn what_is_no_pair_is_incomparable_with_2() {
    let desk = desk();
    edited(&desk, "template", |_, r| {
        r["prompt"]["sha256"] = "1".repeat(64).into()
    });
    let (code, out) = gate(&desk, "template", &[]);
    assert_eq!(code, Some(2), "{out}");
    assert!(out.contains("chat template: prompt "), "{out}");
    let output = desk.run(&["compare", "out", "template"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("incomparable: chat template: prompt "));
    let output = desk.run(
        &"run --prompts 2 --max-new 8 --sampling greedy --methods draft_model --out other"
            .split(' ')
            .collect::<Vec<_>>(),
    );
    assert_eq!(output.status.code(), Some(0));
    let (code, out) = gate(&desk, "other", &[]);
    assert_eq!(code, Some(2), "{out}");
    assert!(
        out.contains("the candidate has no answer: it was not measured"),
        "{out}"
    );
    assert!(
        out.contains(
            "note: not in the reference, and not judged by L2 and L3: tiny-qwen3 / draft_model"
        ),
        "{out}"
    );
}

#[test]
fn a_null_control_makes_times_count() {
    let desk = desk();
    let slower = |share: f64| {
        move |_: usize, r: &mut Value| {
            let ns = r["outcome"]["ok"]["decode_ns"].as_f64().unwrap();
            if is_dflash(r) {
                r["outcome"]["ok"]["decode_ns"] = ((ns * share) as u64).into();
            }
        }
    };
    edited(&desk, "slow", slower(1.5));
    edited(&desk, "null", slower(1.0));
    edited(&desk, "moved", slower(1.1));
    renamed(&desk, "slow", "slow", "new");
    renamed(&desk, "null", "null", "new");
    renamed(&desk, "moved", "moved", "new");
    // 6 prompts in 2 pools are enough for an interval of 90 %, and none of 95 %.
    fs::write(desk.path("gate.toml"), "confidence = 0.9\n").unwrap();
    let policy = ["--policy", "gate.toml"];
    let (code, out) = gate(&desk, "slow", &policy);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("L3 throughput     fail (advisory)"), "{out}");
    edited(&desk, "same", slower(1.5));
    renamed(&desk, "same", "same", "new");
    for (null, want, said) in [
        ("same", 1, "L3 throughput     fail"),
        ("null", 3, "the null control is not clean"),
    ] {
        let (code, out) = gate(&desk, "slow", &[&policy[..], &["--null", null]].concat());
        assert_eq!(code, Some(want), "{null}: {out}");
        assert!(out.contains(said), "{null}: {out}");
    }
    renamed(&desk, "moved", "moved", "third");
    let args = [
        "gate",
        "--reference",
        "out",
        "--candidate",
        "slow",
        "--null",
        "moved",
    ];
    desk.refuses_in_a_line(
        &args,
        &[
            "--null moved: was measured by program",
            "neither the reference's nor the candidate's",
        ],
    );
    let args = [
        "gate",
        "--reference",
        "out",
        "--candidate",
        "slow",
        "--null",
        "slow",
    ];
    desk.refuses_in_a_line(&args, &["--null slow: is the same run as slow"]);
}

#[test]
fn files_and_a_workflow_get_the_report() {
    let desk = desk();
    edited(&desk, "lossy", |_, r| {
        if is_dflash(r) {
            r["outcome"]["ok"]["tokens_sha256"] = "0".repeat(64).into();
        }
    });
    let args =
        "gate --reference out --candidate lossy --junit j.xml --json r.json --history h.jsonl";
    for n in 1..=2 {
        let output = assert_cmd::Command::new(binary())
            .current_dir(desk.path(""))
            .env("GITHUB_STEP_SUMMARY", desk.path("summary.md"))
            .args(args.split(' '))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let out = text(&output.stdout);
        assert!(
            out.contains("::error title=gate L1 losslessness%3A fail::tiny-qwen3 / dflash"),
            "{out}"
        );
        let read = |name: &str| fs::read_to_string(desk.path(name)).unwrap();
        assert_eq!(
            read("summary.md")
                .matches("## draftbench gate: fail")
                .count(),
            n
        );
        assert_eq!(read("h.jsonl").lines().count(), n);
        assert!(read("j.xml").contains("<failure message=\"6 of 6 answers are not vanilla&apos;s"));
        let json: Value = serde_json::from_str(&read("r.json")).unwrap();
        assert_eq!(
            (&json["verdict"], &json["layers"][1]["verdict"]),
            (&"fail".into(), &"fail".into())
        );
    }
}

#[test]
fn bad_input_is_one_line_that_names_the_file_and_the_remedy() {
    let desk = desk();
    let of = |candidate| ["gate", "--reference", "out", "--candidate", candidate];
    desk.refuses_in_a_line(
        &of("nowhere"),
        &["nowhere: is not there; name the folder of a run"],
    );
    edited(&desk, "empty", |_, r| *r = Value::Null);
    desk.refuses_in_a_line(
        &of("empty"),
        &["empty: holds no answer; name the folder of a run"],
    );
    edited(&desk, "old", |_, r| r["schema"] = 3.into());
    desk.refuses_in_a_line(
        &of("old"),
        &[
            "old/records.jsonl",
            "line 3: schema is 3, this program reads 4 to 5",
        ],
    );
    edited(&desk, "lonely", |_, r| {
        if !is_dflash(r) {
            *r = Value::Null;
        }
    });
    desk.refuses_in_a_line(
        &of("lonely"),
        &[
            "lonely: tiny-qwen3 / dflash",
            "its vanilla cell has none; measure again",
        ],
    );
    edited(&desk, "twice", |_, _| {});
    let records = desk.path("twice/records.jsonl");
    let lines = fs::read_to_string(&records).unwrap();
    fs::write(&records, format!("{lines}{lines}")).unwrap();
    desk.refuses_in_a_line(
        &of("twice"),
        &[
            "twice: tiny-qwen3 / vanilla",
            "is there twice; name one run",
        ],
    );
    fs::write(desk.path("twice/plan.json"), "{}").unwrap();
    desk.refuses_in_a_line(
        &of("twice"),
        &["twice/plan.json: does not say what was measured"],
    );
    fs::remove_file(desk.path("empty/plan.json")).unwrap();
    desk.refuses_in_a_line(
        &of("empty"),
        &["empty: holds no plan.json, which says what was measured"],
    );
    fs::write(desk.path("x.jsonl"), "{}\n").unwrap();
    desk.refuses_in_a_line(
        &["compare", "x.jsonl", "out"],
        &[
            "x.jsonl line 1: is no reference of a gate",
            "draftbench gate record",
        ],
    );
    let policy = |text: &str, want: &str| {
        fs::write(desk.path("gate.toml"), text).unwrap();
        let args = [&of("out")[..], &["--policy", "gate.toml"]].concat();
        desk.refuses_in_a_line(&args, &["--policy gate.toml", want]);
    };
    policy(
        "[acceptance]\nmin_drop = 0.1\n",
        "line 2: unknown field `min_drop`",
    );
    policy(
        "[throughput]\nmax_drop = 5\n",
        "max_drop = 5: must be above 0 and below 1",
    );
    fs::write(desk.path("h.jsonl"), "{}\n").unwrap();
    let args = [&of("out")[..], &["--history", "h.jsonl"]].concat();
    desk.refuses_in_a_line(&args, &["--history h.jsonl line 1: missing field `schema`"]);
    desk.refuses_in_a_line(&["gate"], &["gate needs --reference and --candidate"]);
}
