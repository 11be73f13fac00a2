//! Where the command is run, and what is read back.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use candle_core::Tensor;
use reports::{Outcome, Record, read_records};
use tempfile::TempDir;
use tests::{Shapes, hash_weights};

/// A folder of its own for each test, in which the command is run.
pub(crate) struct Desk {
    dir: TempDir,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, &[])
    }

    /// As [`Desk::run`], with more variables of the environment.
    pub(crate) fn run_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = assert_cmd::Command::new(binary());
        command
            .current_dir(self.dir.path())
            // Suites that the user has fetched are not the tests' matter.
            .env("XDG_CACHE_HOME", self.path("cache"))
            // Where the tests are a workflow's step, its summary is not theirs.
            .env_remove("GITHUB_STEP_SUMMARY")
            .envs(variables.iter().copied())
            .args(args)
            .output()
            .unwrap()
    }

    /// Every path under the folder.
    pub(crate) fn tree(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![self.dir.path().to_owned()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path.clone());
                }
                found.push(path);
            }
        }
        found.sort();
        found
    }

    /// Copies an embedded model's files to `models/<name>/`.
    pub(crate) fn copy_model(&self, from: &str, name: &str) -> PathBuf {
        let to = self.path("models").join(name);
        fs::create_dir_all(&to).unwrap();
        let from = tests::workspace().join("assets/tiny").join(from);
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        to
    }

    /// Writes a model of hashed weights to `models/<name>/`.
    pub(crate) fn hashed_model(&self, name: &str, config: &serde_json::Value, shapes: &Shapes) {
        let dir = self.path("models").join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let weights: HashMap<String, Tensor> = hash_weights(shapes, 7).into_iter().collect();
        candle_core::safetensors::save(&weights, dir.join("model.safetensors")).unwrap();
    }

    /// Exit code 2, one line on standard error that holds every text, nothing on standard output, nothing left.
    pub(crate) fn refuses(&self, args: &[&str], texts: &[&str]) {
        let before = self.tree();
        let output = self.run(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert_eq!(out, "", "{args:?}");
        for text in texts {
            assert!(err.contains(text), "{args:?}: {text:?} is not in {err}");
        }
        assert!(err.starts_with("error: "), "{args:?}: {err}");
        assert_eq!(err.matches("error: ").count(), 1, "{args:?}: {err}");
        assert_eq!(self.tree(), before, "{args:?} left something behind");
    }

    /// As [`Desk::refuses`], and the message is a single line, which clap's own are not.
    pub(crate) fn refuses_in_a_line(&self, args: &[&str], texts: &[&str]) {
        self.refuses(args, texts);
        let err = text(&self.run(args).stderr);
        assert_eq!(err.trim_end().lines().count(), 1, "{args:?}: {err}");
    }
}

/// The command, built beside this test.
pub(crate) fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap();
    let binary = built.join(format!("draftbench{}", std::env::consts::EXE_SUFFIX));
    assert!(
        binary.is_file(),
        "{binary:?} is missing: cargo build makes it"
    );
    binary
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What the command printed, which must be fine.
pub(crate) fn fine(desk: &Desk, args: &str) -> String {
    let args: Vec<&str> = args.split(' ').collect();
    let output = desk.run(&args);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {err}");
    text(&output.stdout)
}

/// A short run into `out`, with more arguments.
pub(crate) fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let args = "run --prompts 2 --max-new 8 --out out --sampling greedy";
    args.split(' ').chain(more.iter().copied()).collect()
}

pub(crate) fn edit_json(path: &Path, key: &str, value: impl Into<serde_json::Value>) {
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    json[key] = value.into();
    fs::write(path, json.to_string()).unwrap();
}

/// Records of a run, those of warm-ups left out, by method.
pub(crate) fn by_method(desk: &Desk) -> BTreeMap<String, Vec<Record>> {
    let mut out: BTreeMap<String, Vec<Record>> = BTreeMap::new();
    let records = read_records(&desk.path("out/records.jsonl")).unwrap();
    let is_warm_up = |r: &Record| matches!(r.outcome, Outcome::Started(_));
    for record in records.into_iter().filter(|r| !is_warm_up(r)) {
        out.entry(record.cell.method.clone())
            .or_default()
            .push(record);
    }
    out
}
