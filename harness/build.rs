//! Rebuilds the binary when a file that it embeds changes, and tells it which commit and which crates it was built from.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let home = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = home.join("..");
    let mut told =
        "cargo::rerun-if-changed=../assets/tiny\ncargo::rerun-if-changed=build.rs\n".to_owned();
    let commit = commit(&root, &mut told).unwrap_or_else(|| "unknown".to_owned());
    told.push_str(&format!(
        "cargo::rustc-env=DRAFTBENCH_GIT_COMMIT={commit}\n"
    ));

    let lock = root.join("Cargo.lock");
    told.push_str("cargo::rerun-if-changed=../Cargo.lock\n");
    let crates = crates(&fs::read_to_string(lock).unwrap_or_default());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("crates.txt"), crates).expect("cargo's own folder can be written to");
    std::io::stdout()
        .write_all(told.as_bytes())
        .expect("cargo reads a build script's output");
}

/// The commit that is checked out, read from git's files; every file that it is read from is added to `told`.
fn commit(root: &Path, told: &mut String) -> Option<String> {
    let mut read = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        told.push_str(&format!("cargo::rerun-if-changed={}\n", path.display()));
        Some(text.trim().to_owned())
    };
    let git = root.join(".git");
    // In a worktree `.git` is a file that names the folder, and that folder names the one it shares.
    let dir = match git.is_dir() {
        true => git,
        false => root.join(read(&git)?.strip_prefix("gitdir: ")?),
    };
    let common = match read(&dir.join("commondir")) {
        Some(shared) => dir.join(shared),
        None => dir.clone(),
    };
    let head = read(&dir.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else {
        return Some(head);
    };
    if let Some(hash) = read(&common.join(name)) {
        return Some(hash);
    }
    let packed = read(&common.join("packed-refs"))?;
    let line = packed
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")))?;
    Some(line.split(' ').next()?.to_owned())
}

/// `name version`, a line a crate of a lock file.
fn crates(lock: &str) -> String {
    let mut out = String::new();
    let value = |line: &str, key: &str| {
        let text = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        Some(text.strip_suffix('"')?.to_owned())
    };
    let mut name = None;
    for line in lock.lines() {
        if let Some(found) = value(line, "name") {
            name = Some(found);
        } else if let (Some(version), Some(name)) = (
            value(line, "version"),
            name.take_if(|_| line.starts_with("version")),
        ) {
            out.push_str(&format!("{name} {version}\n"));
        }
    }
    out
}
