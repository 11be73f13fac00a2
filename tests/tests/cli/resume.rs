//! Runs that are cut short, cut in parts, and put together: no record is lost or changed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reports::{Outcome, Phases, Record, Timeline, read_records};

use crate::desk::{Desk, binary, fine, text};

const KILLS: usize = 50;
/// A kill comes no later than this after the begin of a process.
const LONGEST: Duration = Duration::from_secs(2);

/// Four groups of three arms, one of which has no drafter here.
const MATRIX: &str = r#"
title = "a matrix to cut short"
prompts = 3
max_new = 6
methods = ["dflash", "dflash:checkpoint=none"]
suites = ["mini-chat"]
sampling = ["greedy", "t1000"]
concurrency = [1, 2]
"#;

/// A desk with `plan.json` of that matrix.
fn planned() -> Desk {
    let desk = Desk::new();
    fs::write(desk.path("matrix.toml"), MATRIX).unwrap();
    let plan = ["plan", "--matrix", "matrix.toml", "--out", "plan.json"];
    let output = desk.run(&plan);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    desk
}

fn start(desk: &Desk, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.current_dir(desk.path("")).args(args);
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The records of a run without what differs between two runs: its id, times and warm-ups.
fn timeless(records: &Path) -> Vec<Record> {
    let mut records = read_records(records).unwrap();
    records.retain(|r| !matches!(r.outcome, Outcome::Started(_)));
    for record in &mut records {
        record.run.clear();
        if let Outcome::Ok(answer) = &mut record.outcome {
            (answer.prefill_ns, answer.decode_ns, answer.batch_ns) = (0, 0, 0);
            answer.phases = Phases::default();
            answer.timeline = Timeline::default();
        }
    }
    records
}

/// Numbers that look random and are the same in every run of the test (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        for (left, by) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << by } else { self.0 >> by };
        }
        self.0 % n.max(1)
    }
}

#[test]
fn fifty_kills_change_no_record() {
    let desk = planned();
    let began = Instant::now();
    fine(&desk, "run --plan plan.json --threads 1 --out whole");
    // On a machine that is busy with other tests a run takes long by chance; the test need not.
    let length = began.elapsed().min(LONGEST);
    let want = timeless(&desk.path("whole/records.jsonl"));
    let mut dice = Dice(20_261_129);
    let (mut n_kills, mut n_runs) = (0, 0);
    while n_kills < KILLS {
        n_runs += 1;
        let out = format!("out-{n_runs}");
        let args = format!("run --plan plan.json --threads 1 --resume {out}");
        let args: Vec<&str> = args.split(' ').collect();
        loop {
            let mut child = start(&desk, &args);
            // The last run is let through.
            if n_kills < KILLS {
                let micros = dice.below(length.as_micros() as u64);
                std::thread::sleep(Duration::from_micros(micros));
                child.kill().unwrap();
            }
            let output = child.wait_with_output().unwrap();
            match output.status.code() {
                None => n_kills += 1,
                code => {
                    assert_eq!(code, Some(0), "{}", text(&output.stderr));
                    break;
                }
            }
        }
        let got = timeless(&desk.path(&out).join("records.jsonl"));
        assert!(got == want, "run {n_runs} differs after {n_kills} kills");
        let left: Vec<_> = fs::read_dir(desk.path(&out)).unwrap().flatten().collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }
}

#[test]
fn an_interrupt_seals_what_is_complete_and_says_how_to_go_on() {
    let desk = planned();
    let mut child = start(&desk, &["run", "--plan", "plan.json", "--out", "out"]);
    // plan.json is written when everything is loaded and Ctrl-C is listened for.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !desk.path("out/plan.json").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
    let status = child.wait().unwrap();
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.contains("of 4 groups are sealed"), "{err}");
    assert!(err.contains("draftbench run --resume out"), "{err}");
    assert!(!desk.path("out/records.jsonl").exists());
    let table = fine(&desk, "run --resume out");
    assert!(table.contains("all equal"), "{table}");
    fine(&desk, "run --plan plan.json --out whole");
    let records = ["out/records.jsonl", "whole/records.jsonl"];
    let [got, want] = records.map(|file| timeless(&desk.path(file)));
    assert!(got == want);
    let run: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.path("out/run.json")).unwrap()).unwrap();
    assert_eq!(run["complete"], true);
    assert_eq!(run["sittings"].as_array().map(Vec::len), Some(2));
    assert_eq!(run["sittings"][1]["command"][1], "run");
}

#[test]
fn shards_of_a_plan_are_merged_into_the_run_that_one_machine_would_have_made() {
    let desk = planned();
    fine(&desk, "run --plan plan.json --out whole");
    for shard in 1..=3 {
        let args = format!("run --plan plan.json --shard {shard}/3 --out part-{shard}");
        fine(&desk, &args);
    }
    let merge = |desk: &Desk, args: &str| fine(desk, &format!("merge {args}"));
    let table = merge(&desk, "merged part-1 part-2 part-3");
    assert!(table.contains("merged from 3 runs of one plan"), "{table}");
    let records = ["merged/records.jsonl", "whole/records.jsonl"];
    let [got, want] = records.map(|file| timeless(&desk.path(file)));
    assert!(got == want);
    for run in ["merged", "whole"] {
        fine(&desk, &format!("analyse study {run} --out study-{run}"));
    }

    let part = ["merge", "other", "part-1", "part-3"];
    desk.refuses_in_a_line(&part, &["of 4 groups are in none of the runs", "--partial"]);
    merge(&desk, "some part-1 part-3 part-1 --partial");
    desk.refuses_in_a_line(
        &["merge", "other", "whole", "part-1"],
        &[
            "whole and part-1 hold different records of tiny-qwen3 / ",
            "--repeats",
        ],
    );
    // Another process over the same plan: its passes follow, and each is paired with its own vanilla's.
    fine(&desk, "run --plan plan.json --out again");
    let table = merge(&desk, "both whole again whole --repeats");
    assert!(table.contains("passes)"), "{table}");
    let both = timeless(&desk.path("both/records.jsonl"));
    let passes_of = |concurrency: u32| -> Vec<u32> {
        let its = both.iter().filter(|r| r.cell.concurrency == concurrency);
        let mut passes: Vec<u32> = its.filter_map(|r| Some(r.prompt.as_ref()?.pass)).collect();
        passes.sort_unstable();
        passes.dedup();
        passes
    };
    assert_eq!(passes_of(1), [0, 1]);
    assert_eq!(passes_of(2), [0, 1, 2, 3]);
    // A merged run holds runs of its own, each of which counts once.
    merge(&desk, "again-first again both whole --repeats");
    let count = |dir: &str| timeless(&desk.path(dir).join("records.jsonl")).len();
    assert_eq!(count("again-first"), count("both"));

    // Shards can be reported as they are, and say once what none of them could run.
    fine(&desk, "report part-1 part-2 part-3 --out report");
    // To look at a complete run again changes nothing in it.
    let description = || fs::read(desk.path("whole/run.json")).unwrap();
    let before = description();
    fine(&desk, "run --resume whole");
    assert!(description() == before);
    fine(
        &desk,
        "run --prompts 1 --max-new 4 --methods dflash --suites mini-chat --out alone",
    );
    desk.refuses_in_a_line(
        &["merge", "other", "part-1", "alone"],
        &["alone: is of another plan"],
    );
    desk.refuses_in_a_line(
        &["run", "--resume", "merged"],
        &["was merged from other runs"],
    );
}

#[test]
fn a_plan_that_no_longer_holds_says_what_changed() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3-dflash", "tiny-qwen3-dflash");
    let plan = "plan --methods dflash --suites mini-chat --sampling greedy --prompts 1 --max-new 4 --checkpoints models --out plan.json";
    fine(&desk, plan);
    let config = desk.path("models/tiny-qwen3-dflash/config.json");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}\n")).unwrap();
    let run = ["run", "--plan", "plan.json", "--out", "out"];
    let want = [
        "tiny-qwen3 / mini-chat / greedy / thinking off / concurrency 1: no longer what was planned",
        "drafters_sha256 of dflash was ",
    ];
    desk.refuses_in_a_line(&run, &want);
    fs::write(&config, before).unwrap();
    fine(&desk, "run --plan plan.json --out out");
    desk.refuses_in_a_line(&run, &["--out out: holds the records.jsonl"]);
    let plan = fs::read_to_string(desk.path("plan.json")).unwrap();
    fs::write(
        desk.path("plan.json"),
        plan.replacen("\"seed\": 0", "\"seed\": 1", 1),
    )
    .unwrap();
    desk.refuses_in_a_line(
        &["run", "--plan", "plan.json", "--out", "other"],
        &["plan.json: was edited"],
    );
    desk.refuses_in_a_line(
        &["run", "--resume", "nowhere"],
        &["--resume nowhere: holds no plan.json of a run"],
    );
    desk.refuses_in_a_line(
        &["run", "--plan", "none.json"],
        &["none.json: cannot be read"],
    );
}

#[test]
fn a_group_that_somebody_works_on_is_left_to_him() {
    let desk = planned();
    let mut child = start(&desk, &["run", "--plan", "plan.json", "--out", "out"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !desk.path("out/plan.json").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let groups = fs::read_dir(desk.path("out/groups")).unwrap().flatten();
    let part = groups
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "part"));
    // The kill may have come before the first group; its name is in the plan.
    let plan: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.path("plan.json")).unwrap()).unwrap();
    let id = plan["groups"][0]["id"].as_str().unwrap();
    let first = desk.path(&format!("out/groups/00000-{}.part", &id[..12]));
    let lease = part.unwrap_or(first).with_extension("lease");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_secs();
    let holder = serde_json::json!({
        "pid": 7, "host": "elsewhere", "since_unix_secs": now - 9, "heartbeat_unix_secs": now,
    });
    fs::write(&lease, holder.to_string()).unwrap();
    let want = ["process 7 on elsewhere works on it", "remove out/groups/"];
    desk.refuses_in_a_line(&["run", "--resume", "out"], &want);
    fs::remove_file(&lease).unwrap();
    fine(&desk, "run --resume out");
}

#[test]
fn a_target_that_cannot_be_loaded_fails_its_groups_and_is_tried_again() {
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3", "qwen3-4b");
    let weights = model.join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let args = "--targets qwen3-4b,tiny-qwen3 --methods vanilla --suites mini-chat --sampling greedy --prompts 1 --max-new 4 --checkpoints models --out out";
    let run = |more: &str| desk.run(&format!("run {args}{more}").split(' ').collect::<Vec<_>>());
    assert_eq!(run("").status.code(), Some(2));
    assert!(!desk.path("out").exists());
    let output = run(" --keep-going");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(err.contains("failed: qwen3-4b / mini-chat"), "{err}");
    assert!(out.contains("1 groups failed and are not sealed"), "{out}");
    assert!(out.contains("tiny-qwen3, greedy"), "{out}");
    // Other weights are another plan; these are the ones that were planned, made readable.
    let output = desk.run(&["run", "--resume", "out", "--keep-going"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    fs::write(&weights, &whole).unwrap();
    desk.refuses_in_a_line(
        &["run", "--resume", "out"],
        &["no longer what was planned: target_sha256 was"],
    );
}
