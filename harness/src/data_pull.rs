//! `draftbench data`: which public suites are there, whether they are the pinned ones, and fetching them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use datasets::public::converted_text;
use indicatif::{ProgressBar, ProgressStyle};
use suites::{Content, Public};

use crate::cli::{DataCommand, DirArgs};
use crate::data;
use crate::data_env::Environment;
use crate::data_hub::{Hub, HubFile, check_endpoint};
use crate::output::{Ending, Verdict, say};

/// What is pulled and checked if no suite is named.
const DEFAULT: &str = "dflash10";

/// Does what was typed.
///
/// # Errors
/// If a suite is unknown, is not the pinned one, or cannot be fetched.
pub(crate) fn act(command: &DataCommand, environment: &Environment) -> Ending {
    match command {
        DataCommand::List(dir) => list(dir),
        DataCommand::Check { suites, dir } => check(suites, dir),
        DataCommand::Pull { suites, dir } => pull(suites, dir, environment),
    }
}

fn list(args: &DirArgs) -> Ending {
    let dir = data::dir(args)?;
    let mut out = format!("public suites, looked for in {}\n", dir.display());
    for id in suites::public_ids() {
        let public = suites::public(id)?;
        let state = match public.read(&dir) {
            Ok(None) => "not there".to_owned(),
            Ok(Some(content)) => describe(&content),
            Err(err) => format!("unusable: {err}"),
        };
        out.push_str(&format!(
            "  {id:<16}{} rows, {}, {}, licence: {}\n  {:16}{state}\n",
            public.rows, public.repository, public.split, public.licence, ""
        ));
    }
    say(&out)?;
    Ok(Verdict::Fine)
}

fn describe(content: &Content) -> String {
    let remark = content
        .remark
        .as_ref()
        .map_or(String::new(), |why| format!(", {why}"));
    let rows = content.rows.len();
    format!(
        "{rows} rows in {}, sha256 {}{remark}",
        content.from.display(),
        content.sha256
    )
}

fn check(names: &[String], args: &DirArgs) -> Ending {
    let dir = data::dir(args)?;
    let all = asked(names)?;
    let mut wrong = 0;
    let mut out = String::new();
    for public in &all {
        match public.read(&dir) {
            Ok(Some(content)) => out.push_str(&format!("{}: {}\n", public.id, describe(&content))),
            Ok(None) => {
                wrong += 1;
                eprintln!(
                    "{}: {} holds none of {}",
                    public.id,
                    dir.display(),
                    public.names()
                );
            }
            Err(err) => {
                wrong += 1;
                eprintln!("{err}");
            }
        }
    }
    say(&out)?;
    if wrong > 0 {
        bail!(
            "{wrong} of {} suites are missing or not the pinned ones; `draftbench data pull` fetches them",
            all.len()
        );
    }
    Ok(Verdict::Fine)
}

fn pull(names: &[String], args: &DirArgs, environment: &Environment) -> Ending {
    check_endpoint(environment)?;
    let dir = data::dir(args)?;
    let hub = Hub::new(environment)?;
    for public in asked(names)? {
        let content = pull_one(&public, &hub, &dir)?;
        say(&format!("{}: {}\n", public.id, describe(&content)))?;
    }
    Ok(Verdict::Fine)
}

/// Fetches and converts one suite and stores it, if it is the pinned one.
fn pull_one(public: &Public, hub: &Hub, dir: &Path) -> Result<Content> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg} {bytes} of {total_bytes}, {eta} left");
    bar.set_style(style.expect("the template is constant and parses"));
    let mut files: Vec<PathBuf> = Vec::new();
    for path in &public.files {
        bar.set_message(format!("{} {path}", public.id));
        let file = HubFile {
            repository: &public.repository,
            revision: &public.revision,
            path,
        };
        let place = hub.fetch(file, &|there, all| {
            bar.set_length(all.unwrap_or(there));
            bar.set_position(there);
        });
        files.push(place.with_context(|| format!("suite {}", public.id))?);
    }
    bar.finish_and_clear();
    let place = dir.join(format!("{}.jsonl", public.id));
    let mut content = public.convert(&files)?;
    let refused = || format!("--data-dir {}: cannot be written to", dir.display());
    let part = dir.join(format!(".{}-{}.tmp", public.id, std::process::id()));
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(&part, converted_text(&content.rows)))
        .and_then(|()| fs::rename(&part, &place))
        .with_context(refused)?;
    content.from = place;
    Ok(content)
}

/// Public suites of the names; suites inside the binary are neither fetched nor checked.
fn asked(names: &[String]) -> Result<Vec<Public>> {
    let default = [DEFAULT.to_owned()];
    let names = if names.is_empty() { &default } else { names };
    let mut out = Vec::new();
    for wanted in data::expand(names)? {
        if suites::ids().contains(&wanted.id) {
            bail!(
                "suite {} is inside the binary; it needs no folder",
                wanted.id
            );
        }
        out.push(suites::public(wanted.id)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(path: &Path) -> DirArgs {
        DirArgs {
            data_dir: Some(path.to_owned()),
            cache: None,
        }
    }

    #[test]
    fn what_was_fetched_is_stored_only_if_it_is_the_pinned_set() {
        let home = tempfile::tempdir().unwrap();
        let environment = Environment {
            hf_home: Some(home.path().to_owned()),
            ..Environment::default()
        };
        let hub = Hub::new(&environment).unwrap();
        // As if fetched before: the hub's cache holds one row.
        let root = home.path().join("hub/datasets--HuggingFaceH4--MATH-500");
        let snapshot = root.join("snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(root.join("refs")).unwrap();
        fs::write(root.join("refs/main"), "abc").unwrap();
        let row = "{\"problem\": \"1+1?\", \"answer\": \"2\", \"unique_id\": \"a\"}\n";
        fs::write(snapshot.join("test.jsonl"), row).unwrap();
        let mut public = suites::public("math500").unwrap();
        let out = tempfile::tempdir().unwrap();
        let error = pull_one(&public, &hub, out.path()).unwrap_err().to_string();
        assert!(
            error.contains("holds 1 rows of sha256 ") && error.contains("pinned are 500"),
            "{error}"
        );
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
        // The same rows under their own pin.
        public.rows = 1;
        public.sha256 = None;
        let content = pull_one(&public, &hub, out.path()).unwrap();
        assert_eq!(content.from, out.path().join("math500.jsonl"));
        let text = fs::read_to_string(&content.from).unwrap();
        assert!(
            text.contains("\"reference\": {\"answer\": \"2\"}"),
            "{text}"
        );
    }

    #[test]
    fn names_that_cannot_be_fetched_are_refused() {
        for (name, why) in [("mini-chat", "inside the binary"), ("gsm9k", "is unknown")] {
            let error = asked(&[name.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(asked(&[]).unwrap().len(), 10);
        let nothing = tempfile::tempdir().unwrap();
        let error = check(&["gsm8k".to_owned()], &dir(nothing.path()))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("1 of 1 suites are missing"), "{error}");
    }
}
