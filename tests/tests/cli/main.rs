//! The command as a user meets it: bad input is one clear line and leaves nothing behind, good input makes a run.
//!
//! Needs the binary beside this test: `cargo test --workspace`, or `cargo build` first.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test may panic as the test may"
)]

mod code;
mod data;
mod desk;
mod export;
mod gate;
mod matrix;
mod report;
mod resume;
mod study;
mod synthetic;
mod weights;

use std::fs;
use std::path::PathBuf;

use reports::Outcome;
use tests::golden;

use desk::{Desk, by_method, edit_json, short, text};

#[test]
fn unknown_ids_and_keys_list_what_is_known() {
    let desk = Desk::new();
    let target = ["target \"tiny-qwen4\" is unknown; known: ", "tiny-qwen3"];
    let method = ["method \"eagle9\" is unknown; known: vanilla, draft_model, eagle3, dflash"];
    let suite = ["suite \"gsm9k\" is unknown; known: mini-maths, mini-code, mini-chat"];
    let sampling = ["--sampling", "sampling \"warm\" is unknown; use greedy"];
    desk.refuses_in_a_line(&short(&["--targets", "tiny-qwen4"]), &target);
    desk.refuses_in_a_line(&short(&["--methods", "vanilla,eagle9"]), &method);
    desk.refuses_in_a_line(&short(&["--suites", "gsm9k"]), &suite);
    let preset = ["--preset \"quik\" is unknown; known: quick"];
    desk.refuses_in_a_line(&short(&["--preset", "quik"]), &preset);
    desk.refuses_in_a_line(&short(&["--sampling", "warm"]), &sampling);
    desk.refuses_in_a_line(&["plan", "--targets", "tiny-qwen4"], &target);
    desk.refuses_in_a_line(&["generate", "--target", "tiny-qwen4", "Hi"], &target);
    desk.refuses_in_a_line(&["generate", "--method", "eagle9", "Hi"], &method[..1]);
    desk.refuses_in_a_line(&["generate", "--sampling", "warm", "Hi"], &sampling);
    desk.refuses(
        &short(&["--speed", "3"]),
        &["unexpected argument '--speed'"],
    );
    desk.refuses(
        &short(&["--thinking", "maybe"]),
        &["[possible values: off, on, both]"],
    );
}

#[test]
fn an_unknown_key_in_a_recipe_or_a_config_is_named() {
    let desk = Desk::new();
    fs::write(desk.path("recipe.toml"), "seed = 1\nspeed = 3\n").unwrap();
    desk.refuses(
        &["train", "target", "recipe.toml"],
        &["recipe.toml", "speed"],
    );
    let model = desk.copy_model("tiny-qwen3", "tiny-qwen3");
    edit_json(&model.join("config.json"), "attention_twist", 3);
    let args = short(&["--checkpoints", "models"]);
    desk.refuses_in_a_line(&args, &["tiny-qwen3/config.json", "attention_twist"]);
}

#[test]
fn zeros_and_values_out_of_range_name_their_flag() {
    let desk = Desk::new();
    for (flag, value, want) in [
        ("--max-new", "0", "--max-new 0: must be at least 1"),
        ("--samples", "0", "--samples 0: must be at least 1"),
        ("--prompts", "0", "--prompts 0: must be at least 1"),
        ("--threads", "0", "--threads 0: must be at least 1"),
        (
            "--concurrency",
            "0",
            "--concurrency 0: must be between 1 and 64",
        ),
        (
            "--concurrency",
            "1,65",
            "--concurrency 65: must be between 1 and 64",
        ),
        (
            "--arrivals",
            "closed,poisson-0",
            "--arrivals: arrivals \"poisson-0\" are unknown; use closed, or poisson- and requests a second in thousandths",
        ),
    ] {
        desk.refuses_in_a_line(&["run", "--out", "out", flag, value], &[want]);
    }
    desk.refuses_in_a_line(&["generate", "--max-new", "0", "Hi"], &["--max-new 0"]);
}

#[test]
fn weight_files_that_are_missing_or_cut_short_are_named() {
    let desk = Desk::new();
    let args = short(&["--checkpoints", "models"]);
    for name in ["tiny-qwen3", "tiny-qwen3-draft"] {
        let model = desk.copy_model(name, name);
        let weights = model.join("model.safetensors");
        let whole = fs::read(&weights).unwrap();
        fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
        let file = format!("{name}/model.safetensors is not a whole safetensors file");
        desk.refuses_in_a_line(&args, &[&file]);
        fs::remove_file(&weights).unwrap();
        let place = format!("{name} holds neither model.safetensors nor");
        desk.refuses_in_a_line(&args, &[&place]);
        fs::remove_dir_all(&model).unwrap();
    }
    let model = desk.copy_model("tiny-qwen3", "tiny-qwen3");
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    desk.refuses_in_a_line(&args, &["cannot read", "tiny-qwen3/tokenizer.json"]);
}

#[test]
fn a_config_that_contradicts_the_tensors_names_file_and_tensor() {
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3", "tiny-qwen3");
    edit_json(&model.join("config.json"), "intermediate_size", 32);
    let args = short(&["--checkpoints", "models"]);
    let want = [
        "tiny-qwen3/model.safetensors: tensor ",
        "mlp",
        "the config wants [32, ",
    ];
    desk.refuses_in_a_line(&args, &want);
}

#[test]
fn a_drafter_of_another_target_is_refused() {
    let args = short(&["--checkpoints", "models"]);
    let desk = Desk::new();
    desk.hashed_model(
        "tiny-qwen3-dflash",
        &golden::dflash_config(),
        &golden::dflash_shapes(),
    );
    desk.refuses_in_a_line(
        &args,
        &["tiny-qwen3-dflash/config.json: hidden_size is 16, target tiny-qwen3 has"],
    );
    let desk = Desk::new();
    desk.hashed_model(
        "tiny-qwen3-draft",
        &golden::target_config(),
        &golden::target_shapes(),
    );
    desk.refuses_in_a_line(
        &args,
        &["tiny-qwen3-draft/config.json: vocab_size is 40, target tiny-qwen3 has"],
    );
}

#[test]
fn a_prompt_longer_than_the_cache_is_named_with_its_length() {
    let desk = Desk::new();
    let args = ["run", "--out", "out", "--max-new", "100000"];
    let want = [
        "suite mini-",
        ": prompt ",
        " prompt tokens + 100000 new",
        "target tiny-qwen3 holds ",
    ];
    desk.refuses_in_a_line(&args, &want);
    let long = "What is 1 + 1? ".repeat(2000);
    let want = [
        "the prompt needs ",
        "target tiny-qwen3 holds ",
        "lower --max-new",
    ];
    desk.refuses_in_a_line(&["generate", &long], &want);
}

#[test]
fn an_out_that_cannot_be_written_or_holds_a_run_is_refused() {
    let desk = Desk::new();
    fs::write(desk.path("file"), "").unwrap();
    desk.refuses_in_a_line(
        &["run", "--out", "file/out"],
        &["--out file/out: file is not a folder"],
    );
    desk.refuses_in_a_line(
        &["run", "--out", "/proc/out"],
        &["--out /proc/out: cannot be written to"],
    );
    fs::create_dir(desk.path("old")).unwrap();
    fs::write(desk.path("old/records.jsonl"), "").unwrap();
    let want = ["--out old: holds the records.jsonl of an earlier run; choose another folder"];
    desk.refuses_in_a_line(&["run", "--out", "old"], &want);
}

#[test]
fn a_checkpoint_folder_that_is_absent_or_of_no_use_is_refused() {
    let desk = Desk::new();
    let args = short(&["--checkpoints", "models"]);
    desk.refuses_in_a_line(&args, &["--checkpoints models: is not a folder"]);
    fs::create_dir(desk.path("models")).unwrap();
    desk.refuses_in_a_line(
        &args,
        &["--checkpoints models: holds no folder named like a target"],
    );
    let args = short(&["--targets", "qwen3-8b"]);
    desk.refuses_in_a_line(
        &args,
        &[
            "target \"qwen3-8b\" needs files",
            "Qwen/Qwen3-8B",
            "--checkpoints",
        ],
    );
}

#[test]
fn a_short_run_prints_a_table_and_stores_every_answer() {
    let desk = Desk::new();
    let more = [
        "--methods",
        "draft_model,dflash",
        "--concurrency",
        "1,2",
        "--keep-tokens",
    ];
    let output = desk.run(&short(&more));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(
        out.contains("tiny-qwen3, greedy, thinking off, concurrency 2"),
        "{out}"
    );
    assert!(
        out.contains("exact 6/6") && !out.contains("DIFFERS"),
        "{out}"
    );
    assert!(
        out.contains("greedy answers held against vanilla's, all equal"),
        "{out}"
    );
    let records = by_method(&desk);
    let methods: Vec<&str> = records.keys().map(String::as_str).collect();
    assert_eq!(methods, ["dflash", "draft_model", "vanilla"]);
    for records in records.values() {
        // 3 suites x 2 prompts, once at concurrency 1 and in two passes at concurrency 2.
        assert_eq!(records.len(), 6 * 3);
        assert!(
            records
                .iter()
                .all(|r| matches!(&r.outcome, Outcome::Ok(a) if a.tokens.is_some()))
        );
    }
    let info: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.path("out/run.json")).unwrap()).unwrap();
    assert_eq!(info["complete"], true);
    assert_eq!(info["asked"]["max_new"], 8);
    // out with records.jsonl, run.json and plan.json.
    assert_eq!(desk.tree().len(), 4, "{:?}", desk.tree());
}

#[test]
fn arms_of_one_method_are_told_apart_by_their_options() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3-dflash", "tiny-qwen3-mine");
    let methods = "dflash:max_draft=2,dflash:checkpoint=mine:schedule=all,dflash:checkpoint=none";
    let output = desk.run(&short(&["--checkpoints", "models", "--methods", methods]));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    let records = by_method(&desk);
    assert_eq!(records.len(), 4, "{:?}", records.keys());
    let drafted = |key: &str| -> Vec<u32> {
        let lists = records[key].iter().map(|r| match &r.outcome {
            Outcome::Ok(answer) => answer.rounds.drafted.clone(),
            _ => panic!("{key} has no answer"),
        });
        lists.flatten().collect()
    };
    assert!(drafted("dflash:max_draft=2").iter().all(|n| *n == 2));
    assert!(
        drafted("dflash:checkpoint=mine:schedule=all")
            .iter()
            .all(|n| *n == 7)
    );
    let skipped = &records["dflash:checkpoint=none"];
    assert!(
        skipped
            .iter()
            .all(|r| matches!(r.outcome, Outcome::Skipped { .. }))
    );
    let is_note = |line: &str| line.starts_with("note:") && line.contains("mine");
    assert!(!err.lines().any(is_note), "the folder is in use: {err}");
    let args = |option: &str| short(&["--methods", option]).join(" ");
    for (option, want) in [
        (
            "dflash:speed=3",
            "option speed=3 is unknown; known: checkpoint, max_draft, schedule",
        ),
        ("dflash:max_draft=0", "max_draft=0"),
        ("dflash:max_draft=99", "max_draft"),
        ("dflash:schedule=never", "schedule=never"),
        ("dflash:schedule=adaptive", "gives no confidences"),
    ] {
        let args = args(option).replace("--out out", "--out other");
        desk.refuses_in_a_line(&args.split(' ').collect::<Vec<_>>(), &[want]);
    }
}

#[test]
fn a_schedule_that_needs_the_cost_of_a_step_has_it_profiled_and_stored() {
    let desk = Desk::new();
    let more = [
        "--suites",
        "mini-chat",
        "--concurrency",
        "2",
        "--methods",
        "dspark:schedule=adaptive",
    ];
    let output = desk.run(&short(&more));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("batch tok/s"), "{out}");
    let info: serde_json::Value =
        serde_json::from_slice(&fs::read(desk.path("out/run.json")).unwrap()).unwrap();
    let table = &info["step_costs"][0];
    assert_eq!(
        (&table["target"], &table["concurrency"]),
        (&"tiny-qwen3".into(), &2.into())
    );
    let drafting = &table["drafting"][0];
    assert_eq!(drafting["arm"], "dspark:schedule=adaptive", "{table}");
    assert!(drafting["ns"].as_u64().is_some_and(|ns| ns > 0), "{table}");
    let points = table["points"].as_array().unwrap();
    // Two sequences of up to eight rows.
    assert_eq!(
        (&points[0][0], &points[points.len() - 1][0]),
        (&1.into(), &16.into())
    );
    assert!(
        points
            .iter()
            .all(|p| p[1].as_u64().is_some_and(|ns| ns > 0)),
        "{table}"
    );
}

#[test]
fn a_method_without_a_drafter_is_skipped_and_said_so() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3", "qwen3-4b");
    let models = ["--checkpoints", "models", "--targets", "qwen3-4b"];
    let args = short(&[&models[..], &["--methods", "dflash"]].concat());
    let output = desk.run(&args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(err.contains("note: vanilla is measured too"), "{err}");
    let why = "dflash has no drafter for qwen3-4b: no folder qwen3-4b-dflash/";
    assert!(
        out.contains(&format!("[1] dflash on mini-maths: {why}")),
        "{out}"
    );
    let records = by_method(&desk);
    assert_eq!(records["vanilla"].len(), 6);
    assert_eq!(records["dflash"].len(), 3, "one record a cell");
    assert!(
        records["dflash"]
            .iter()
            .all(|r| matches!(r.outcome, Outcome::Skipped { .. }))
    );
}

#[test]
fn a_plan_says_what_would_run_and_writes_nothing() {
    let desk = Desk::new();
    let args = "plan --methods draft_model --sampling greedy --concurrency 1,8";
    let output = desk.run(&args.split(' ').collect::<Vec<_>>());
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(out.contains("  method  vanilla (no weights)\n"), "{out}");
    assert!(
        out.contains("  method  draft_model from embedded tiny-qwen3-draft\n"),
        "{out}"
    );
    assert!(
        out.contains("setting   greedy, thinking off, concurrency 8: 2 methods on mini-maths, mini-code, mini-chat\n"),
        "{out}"
    );
    assert!(out.contains("cells     12\n"), "{out}");
    assert_eq!(desk.tree(), Vec::<PathBuf>::new());
}

#[test]
fn weights_that_are_not_numbers_fail_their_cells_and_the_exit_code() {
    let desk = Desk::new();
    let model = desk.copy_model("tiny-qwen3-draft", "tiny-qwen3-draft");
    let weights = model.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // All ones is NaN in bf16, f16 and f32.
    bytes[8 + len..].fill(0xFF);
    fs::write(&weights, bytes).unwrap();
    let output = desk.run(&short(&[
        "--checkpoints",
        "models",
        "--methods",
        "draft_model",
    ]));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(out.contains("- [1]"), "{out}");
    assert!(out.contains("[1] draft_model on mini-maths: "), "{out}");
    assert!(
        err.contains("failed: tiny-qwen3 / draft_model / mini-maths"),
        "{err}"
    );
    let records = by_method(&desk);
    assert!(
        records["vanilla"]
            .iter()
            .all(|r| matches!(r.outcome, Outcome::Ok(_)))
    );
    assert!(
        records["draft_model"]
            .iter()
            .all(|r| matches!(r.outcome, Outcome::Failed { .. }))
    );
}

#[test]
fn generate_shows_rounds_and_paints_accepted_drafts_only_when_asked() {
    let desk = Desk::new();
    let args = [
        "generate",
        "--method",
        "draft_model",
        "--max-new",
        "24",
        "What is 3 + 4?",
    ];
    let plain = desk.run(&args);
    let out = text(&plain.stdout);
    assert_eq!(plain.status.code(), Some(0), "{}", text(&plain.stderr));
    assert!(out.contains("\ntau ") && out.contains(" tokens/s"), "{out}");
    assert!(!out.contains('\x1b'), "{out}");
    let painted = [&args[..], &["--rounds", "--color", "always"]].concat();
    let out = text(&desk.run(&painted).stdout);
    assert!(out.contains("round   1  drafted  7  accepted "), "{out}");
    assert!(out.contains("\x1b[32m"), "{out}");
    assert_eq!(
        desk.tree(),
        Vec::<PathBuf>::new(),
        "generate writes nothing"
    );
}

#[test]
fn help_and_list_tell_a_newcomer_what_there_is() {
    let desk = Desk::new();
    let help = text(&desk.run(&["--help"]).stdout);
    for word in ["Examples:", "generate", "--checkpoints", "Exit code"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    let list = text(&desk.run(&["list"]).stdout);
    for word in ["tiny-qwen3", "qwen3-8b", "vanilla", "dflash", "mini-chat"] {
        assert!(list.contains(word), "{word} is not in {list}");
    }
}

#[test]
fn a_selftest_counts_what_known_drafters_get_accepted() {
    let desk = Desk::new();
    // Its times, and with them the exit code, are this moment's.
    let output = desk.run(&["selftest"]);
    let out = text(&output.stdout);
    let known: Vec<&str> = out
        .lines()
        .filter(|l| l.contains("a drafter that is"))
        .collect();
    assert_eq!(known.len(), 6, "{out}");
    assert!(known.iter().all(|l| l.starts_with("ok ")), "{out}");
    assert_eq!(output.status.success(), out.ends_with("pass\n"), "{out}");
    assert!(desk.tree().is_empty(), "it left something behind");
    desk.refuses(
        &["selftest", "--target", "tiny-qwen"],
        &["tiny-qwen", "tiny-qwen3"],
    );
}
