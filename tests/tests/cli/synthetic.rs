//! `--acceptance synthetic:T`, and random weights.

use std::fs;

use reports::Outcome;

use crate::desk::{Desk, by_method, edit_json, fine, text};

const SMALL: &str = "--suites mini-maths --prompts 3 --max-new 32";

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[test]
fn a_length_that_is_given_costs_no_text_and_stands_apart() {
    let desk = Desk::new();
    let args = format!(
        "run {SMALL} --methods dflash,dspark:acceptance=real --acceptance synthetic:8 --sampling greedy,t1000 --out both"
    );
    let out = fine(&desk, &args);
    assert!(
        out.contains("6 greedy answers held against vanilla's, all equal"),
        "{out}"
    );
    let (measured, given) = out.split_once("\nsynthetic acceptance\n").unwrap();
    assert!(
        !measured.contains("synthetic") && measured.contains("dspark"),
        "{out}"
    );
    assert!(
        given.contains("was given, not measured") && given.contains("synthetic-8"),
        "{out}"
    );
    let records = reports::read_records(&desk.path("both/records.jsonl")).unwrap();
    let its = records
        .iter()
        .filter(|r| r.cell.method == "dflash:acceptance=synthetic-8");
    let mut n_skipped = 0;
    for record in its {
        match &record.outcome {
            Outcome::Ok(answer) => {
                let (_, before) = answer.rounds.committed.split_last().unwrap();
                assert!(before.iter().all(|n| *n == 8), "{before:?}");
            }
            Outcome::Skipped { why } => {
                assert!(
                    why.contains("known of greedy decoding alone, not of --sampling t1000"),
                    "{why}"
                );
                n_skipped += 1;
            }
            _ => {}
        }
    }
    assert_eq!(n_skipped, 1);

    let said = fine(&desk, "report both --out page");
    assert!(
        said.contains("2 cells of synthetic acceptance are set apart"),
        "{said}"
    );
    assert!(said.contains("**Synthetic acceptance**"), "{said}");
    let page = fs::read_to_string(desk.path("page/report.html")).unwrap();
    let (before, section) = page.split_once("<section id=\"synthetic\"").unwrap();
    let after = section.split_once("</section>").unwrap().1;
    assert!(section.contains("synthetic-8"));
    let shown = before.split_once("</style>").unwrap().1;
    assert!(!shown.contains("synthetic-8"));
    // Provenance says what was asked for.
    assert!(
        !after
            .split_once("id=\"provenance\"")
            .unwrap()
            .0
            .contains("synthetic-8")
    );
    let tex = fs::read_to_string(desk.path("page/tables.tex")).unwrap();
    assert!(
        tex.contains("dspark") && !tex.contains("synthetic"),
        "{tex}"
    );
}

#[test]
fn nothing_is_compared_or_judged_by_a_length_that_is_given() {
    let desk = Desk::new();
    let both = "--methods dspark,dspark:acceptance=synthetic-8 --sampling greedy";
    fine(&desk, &format!("run {SMALL} {both} --out both"));
    let alone = format!("run {SMALL} --methods dflash --acceptance synthetic:8 --out alone");
    fine(&desk, &format!("{alone} --sampling greedy"));
    fine(&desk, "report alone --out page");
    let compared = fine(&desk, "compare both both");
    assert!(
        compared.contains("both: left out 1 with synthetic acceptance"),
        "{compared}"
    );
    let nothing = ["alone: holds answers of synthetic acceptance alone"];
    desk.refuses_in_a_line(&words("compare alone alone"), &nothing);
    desk.refuses_in_a_line(&words("gate record alone --out a.jsonl"), &nothing);
    let given = [
        "both: tiny-qwen3 / dspark:acceptance=synthetic-8",
        "is synthetic",
    ];
    desk.refuses_in_a_line(&words("gate record both --out a.jsonl"), &given);
    desk.refuses_in_a_line(&words("gate --reference both --candidate both"), &given);
    assert!(!desk.path("a.jsonl").exists());
}

#[test]
fn lengths_and_methods_that_cannot_be_are_refused() {
    let desk = Desk::new();
    let refuses = |args: &str, texts: &[&str]| {
        desk.refuses_in_a_line(&words(&format!("run {SMALL} --out out {args}")), texts);
    };
    for typed in ["3", "synthetic:0.5", "synthetic:", "real"] {
        refuses(
            &format!("--methods dflash --sampling greedy --acceptance {typed}"),
            &[
                &format!("--acceptance {typed}: must read synthetic:T"),
                "from 1 to one more",
            ],
        );
    }
    refuses(
        "--methods dflash --sampling greedy --acceptance synthetic:8.5",
        &[
            "acceptance=synthetic-8.5",
            "between 1 and 8",
            "--acceptance",
        ],
    );
    refuses(
        "--methods eagle3:mode=tree --sampling greedy --acceptance synthetic:2",
        &[
            "eagle3:mode=tree",
            "its drafter proposes trees",
            "leave mode=tree out",
        ],
    );
    refuses(
        "--methods dspark:schedule=adaptive --sampling greedy --acceptance synthetic:2",
        &["schedule=", "leave one of the two out"],
    );
    refuses(
        "--methods dflash --sampling t1000 --acceptance synthetic:2",
        &["nothing can be run", "known of greedy decoding alone"],
    );
    refuses(
        "--methods vanilla --sampling greedy --acceptance synthetic:2",
        &["--acceptance synthetic:2: no method drafts"],
    );
    desk.refuses_in_a_line(
        &words("generate --method dflash:acceptance=synthetic-2 Hi"),
        &["acceptance=synthetic-T is for `draftbench run` alone"],
    );
}

/// Models whose folders lack their weights.
fn without_weights() -> Desk {
    let desk = Desk::new();
    for name in [
        "tiny-qwen3",
        "tiny-qwen3-dflash",
        "tiny-qwen3-eagle3",
        "tiny-qwen3-dcoco",
        "tiny-qwen3-domino",
    ] {
        let dir = desk.copy_model(name, name);
        fs::remove_file(dir.join("model.safetensors")).unwrap();
    }
    desk
}

const RANDOM: &str =
    "--weights random:models/tiny-qwen3/config.json --checkpoints models --sampling greedy";

#[test]
fn random_weights_run_where_every_acceptance_is_given() {
    let desk = without_weights();
    let methods =
        "dflash:weights=random,eagle3:weights=random,dcoco:weights=random,domino:weights=random";
    let run = format!("run {SMALL} {RANDOM}");
    let out = fine(
        &desk,
        &format!("{run} --methods {methods} --acceptance synthetic:2 --out out"),
    );
    assert!(
        out.contains("12 greedy answers held against vanilla's, all equal"),
        "{out}"
    );
    assert!(
        out.contains("weights: tiny-qwen3 random weights for models/tiny-qwen3"),
        "{out}"
    );
    let records = by_method(&desk);
    assert!(records.contains_key("dcoco:weights=random:acceptance=synthetic-2"));
    let plan = fs::read_to_string(desk.path("out/plan.json")).unwrap();
    assert!(plan.contains("\"weights\": \"random:/"), "{plan}");
}

#[test]
fn random_weights_are_refused_elsewhere_and_without_a_tokenizer() {
    let desk = without_weights();
    let run = format!("run {SMALL} {RANDOM}");
    let refuses = |args: &str, texts: &[&str]| desk.refuses_in_a_line(&words(args), texts);
    let mixed = "--methods dflash:weights=random,eagle3:acceptance=synthetic-2 --out no";
    refuses(
        &format!("{run} {mixed}"),
        &[
            "random weights show costs and no acceptance",
            "dflash:weights=random has none",
            "--acceptance synthetic:T",
        ],
    );
    refuses(
        &format!("{run} --methods vanilla --out no"),
        &["nothing drafts"],
    );
    refuses(
        &format!(
            "run {SMALL} --sampling greedy --checkpoints models --methods dflash:weights=random --out no"
        ),
        &["weights=random", "--acceptance synthetic:T"],
    );
    refuses(
        "generate --weights random:models/tiny-qwen3 Hi",
        &[
            "random weights for models/tiny-qwen3",
            "for `draftbench run` alone",
        ],
    );
    refuses(
        "run --weights random:models/none --methods dflash --acceptance synthetic:2 --out no",
        &[
            "--weights random:models/none",
            "neither a config.json nor a folder that holds one",
        ],
    );
    fs::remove_file(desk.path("models/tiny-qwen3/tokenizer.json")).unwrap();
    refuses(
        &format!("{run} --methods dflash --acceptance synthetic:2 --out no"),
        &["models/tiny-qwen3/tokenizer.json is missing", "vocab_size"],
    );
    edit_json(
        &desk.path("models/tiny-qwen3/config.json"),
        "attention_twist",
        3,
    );
    let twisted = desk.run(&words(&format!(
        "{run} --methods dflash --acceptance synthetic:2 --out no"
    )));
    assert!(text(&twisted.stderr).contains("attention_twist"));
    assert!(!desk.path("no").exists());
}
