//! Rules about the source that the compiler does not check. The tables below are those of ARCHITECTURE.md.

use std::fs;
use std::path::PathBuf;

/// Which crate of the workspace may depend on which. A new edge is a design change and its own commit.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("decode", &[]),
    ("kernels", &[]),
    ("reports", &[]),
    ("datasets", &[]),
    ("models", &["decode", "kernels"]),
    ("baselines", &["decode", "models", "kernels"]),
    ("suites", &["datasets"]),
    (
        "training",
        &["decode", "models", "baselines", "kernels", "datasets"],
    ),
    (
        "harness",
        &[
            "decode",
            "kernels",
            "models",
            "baselines",
            "training",
            "datasets",
            "suites",
            "reports",
        ],
    ),
];

/// Crates from outside that have one home, or a few.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("clap", &["harness"]),
    ("anyhow", &["harness"]),
    ("schemars", &["harness"]),
    ("signal-hook", &["harness"]),
    ("strsim", &["harness"]),
    ("indicatif", &["harness"]),
    ("include_dir", &["harness"]),
    ("comfy-table", &["reports"]),
    ("plotters", &["reports"]),
    ("dejavu", &["reports"]),
    ("minijinja", &["suites"]),
    ("parquet", &["datasets", "reports"]),
    ("ureq", &["harness"]),
    ("flate2", &["datasets", "reports"]),
    ("tokenizers", &["suites", "training", "harness"]),
    (
        "candle-core",
        &[
            "decode",
            "kernels",
            "models",
            "baselines",
            "training",
            "harness",
        ],
    ),
    ("rand_chacha", &["decode", "datasets", "training"]),
];

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 80;
const MAX_ARCHITECTURE_LINES: usize = 150;
/// Of all assets together: 30 MB.
const MAX_ASSET_BYTES: u64 = 30_000_000;

fn root() -> PathBuf {
    tests::workspace()
}

/// Files below a folder of the workspace, sorted, with their paths relative to the root.
fn files(folder: &str) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace is readable") {
            let path = entry.expect("an entry is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let relative = path.strip_prefix(root()).expect("found below the root");
                found.push((relative.to_string_lossy().into_owned(), path));
            }
        }
    }
    found.sort();
    found
}

fn folders() -> impl Iterator<Item = &'static str> {
    MAY_IMPORT.iter().map(|(name, _)| *name).chain(["tests"])
}

/// Every Rust file with its text.
fn sources() -> Vec<(String, String)> {
    folders()
        .flat_map(files)
        .filter(|(name, _)| name.ends_with(".rs"))
        .map(|(name, path)| {
            (
                name,
                fs::read_to_string(path).expect("a source file is UTF-8"),
            )
        })
        .collect()
}

/// Names under `[dependencies]` and `[build-dependencies]` of a member.
fn dependencies(member: &str) -> Vec<String> {
    let path = root().join(member).join("Cargo.toml");
    let text = fs::read_to_string(&path).expect("every member has a Cargo.toml");
    let manifest: toml::Table = text.parse().expect("cargo reads it too");
    ["dependencies", "build-dependencies"]
        .iter()
        .filter_map(|table| manifest.get(*table)?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn crates_import_only_what_the_table_allows() {
    let members: Vec<&str> = folders().collect();
    let mut wrong = Vec::new();
    for (member, allowed) in MAY_IMPORT {
        for name in dependencies(member) {
            if members.contains(&name.as_str()) && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{member} -> {name} is not in MAY_IMPORT"));
            }
            let home = ONLY_IN.iter().find(|(known, _)| *known == name);
            if home.is_some_and(|(_, homes)| !homes.contains(member)) {
                wrong.push(format!("{member} -> {name}, which has another home"));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_table_in_the_architecture_is_the_one_enforced() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md exists");
    let mut wrong = Vec::new();
    for (member, allowed) in MAY_IMPORT {
        let imports = if allowed.is_empty() {
            "-".to_owned()
        } else {
            allowed.join(", ")
        };
        let row = format!("| {member} | {imports} |");
        if !text.contains(&row) {
            wrong.push(format!("ARCHITECTURE.md lacks the row {row:?}"));
        }
    }
    if text.lines().count() > MAX_ARCHITECTURE_LINES {
        wrong.push(format!(
            "ARCHITECTURE.md has {} lines",
            text.lines().count()
        ));
    }
    assert_none(&wrong);
}

#[test]
fn files_and_functions_are_short() {
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let n_lines = text.lines().count();
        if n_lines > MAX_FILE_LINES {
            wrong.push(format!("{name}: {n_lines} lines, at most {MAX_FILE_LINES}"));
        }
        for (line, length) in functions(&text) {
            if length > MAX_FUNCTION_LINES {
                wrong.push(format!(
                    "{name}:{line}: a function of {length} lines, at most {MAX_FUNCTION_LINES}"
                ));
            }
        }
    }
    assert_none(&wrong);
}

/// First line and length of every function. rustfmt closes a function at the column where it opened it.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let opens = |line: &str| {
        let words = line
            .trim_start()
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        let words = words
            .trim_start_matches("const ")
            .trim_start_matches("unsafe ");
        words.starts_with("fn ")
    };
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate().filter(|(_, line)| opens(line)) {
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let one_line = line.trim_end().ends_with('}') || line.trim_end().ends_with(';');
        let end = lines[start..]
            .iter()
            .position(|l| *l == close)
            .filter(|_| !one_line);
        found.push((start + 1, end.map_or(1, |e| e + 1)));
    }
    found
}

#[test]
fn the_function_ruler_measures() {
    let text =
        "fn a() {\n    b();\n}\n\nimpl X {\n    pub fn c(&self) -> u8 {\n        1\n    }\n}\n";
    assert_eq!(functions(text), [(1, 3), (6, 3)]);
}

#[test]
fn device_code_and_unsafe_stay_home() {
    let cuda = concat!("feature = ", "\"cuda\"");
    let block = concat!("unsafe", " {");
    let safety = concat!("// SAFE", "TY:");
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let home = name.starts_with("kernels/");
        if text.contains(cuda) && !home && name != "models/src/device.rs" {
            wrong.push(format!("{name}: {cuda}"));
        }
        let lines: Vec<&str> = text.lines().collect();
        for i in (0..lines.len()).filter(|i| lines[*i].contains(block)) {
            if !home {
                wrong.push(format!("{name}:{}: unsafe code", i + 1));
            } else if !lines[i.saturating_sub(8)..=i]
                .iter()
                .any(|l| l.contains(safety))
            {
                wrong.push(format!(
                    "{name}:{}: an unsafe block without its reason",
                    i + 1
                ));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("#[ig", "nore"),
        concat!("should", "_panic"),
    ];
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        wrong.extend(
            marks
                .iter()
                .filter(|m| text.contains(**m))
                .map(|m| format!("{name}: {m}")),
        );
    }
    assert_none(&wrong);
}

#[test]
fn decode_reads_no_clock_and_no_file() {
    let forbidden = [
        "std::time",
        "std::fs",
        "std::env",
        "std::net",
        "println!",
        "Instant",
    ];
    let mut wrong = Vec::new();
    for (name, text) in sources()
        .into_iter()
        .filter(|(name, _)| name.starts_with("decode/src"))
    {
        wrong.extend(
            forbidden
                .iter()
                .filter(|f| text.contains(**f))
                .map(|f| format!("{name}: {f}")),
        );
    }
    assert_none(&wrong);
}

#[test]
fn assets_stay_small() {
    let size = |(_, path): &(String, PathBuf)| {
        let meta = fs::metadata(path).expect("an asset is readable");
        meta.len()
    };
    let total: u64 = files("assets").iter().map(size).sum();
    assert!(
        total > 0 && total <= MAX_ASSET_BYTES,
        "assets hold {total} bytes, at most {MAX_ASSET_BYTES}"
    );
}
