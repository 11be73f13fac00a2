//! `draftbench gate`: whether a run may take the place of a saved one.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use reports::RunData;
use reports::gate::{
    GateInput, HistoryLine, Policy, Report, changes, gate as judge, parse_history, reference_lines,
};

use crate::cli::{GateArgs, GateCommand, GateRecordArgs, GateRunArgs};
use crate::compare::write;
use crate::data_env::Environment;
use crate::output::{Ending, Verdict, say};
use crate::{machine, saved};

/// Judges a candidate, or records a reference.
///
/// # Errors
/// If a run or the policy cannot be read, is of no use, or a file cannot be written.
pub(crate) fn act(args: &GateArgs, environment: &Environment) -> Ending {
    match &args.command {
        Some(GateCommand::Record(args)) => record(args),
        None => gate(&args.gate, environment),
    }
}

fn record(args: &GateRecordArgs) -> Ending {
    let run = saved::read(&args.run)?;
    let text = reference_lines(&run)?;
    ensure!(
        !args.out.exists(),
        "--out {}: is there already; choose another name or remove it",
        args.out.display()
    );
    write("--out", &args.out, &text)?;
    let (n, out, bytes) = (run.n_answers(), args.out.display(), text.len());
    say(&format!("{n} answers in {out}, {bytes} bytes\n"))?;
    Ok(Verdict::Fine)
}

fn gate(args: &GateRunArgs, environment: &Environment) -> Ending {
    let (Some(reference), Some(candidate)) = (&args.reference, &args.candidate) else {
        anyhow::bail!("gate needs --reference and --candidate, or the subcommand record");
    };
    let policy = policy(args.policy.as_deref())?;
    let (reference, candidate) = (saved::read(reference)?, saved::read(candidate)?);
    let null = args.null.as_deref().map(saved::read).transpose()?;
    let input = GateInput {
        reference: &reference,
        candidate: &candidate,
        null: null.as_ref(),
    };
    let mut report = judge(input, &policy)?;
    if let Some(path) = &args.history {
        add_history(path, &mut report, &candidate, &policy)?;
    }
    for (flag, path, text) in [
        ("--junit", &args.junit, report.junit()),
        ("--json", &args.json, report.json()),
    ] {
        if let Some(path) = path {
            write(flag, path, &text)?;
        }
    }
    let mut text = report.text();
    if let Some(summary) = &environment.step_summary {
        append("GITHUB_STEP_SUMMARY", summary, &report.markdown())?;
        text.push_str(&report.annotations());
    }
    say(&text)?;
    Ok(Verdict::Gate(report.verdict))
}

fn policy(path: Option<&Path>) -> Result<Policy> {
    let Some(path) = path else {
        return Ok(Policy::default());
    };
    let place = || format!("--policy {}", path.display());
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", place()))?;
    let policy: Policy = crate::matrix::from_toml(&text, &place())?;
    policy.checked().with_context(place)
}

/// Appends a line and adds to the report what the history shows.
fn add_history(
    path: &Path,
    report: &mut Report,
    candidate: &RunData,
    policy: &Policy,
) -> Result<()> {
    let label = path.display().to_string();
    let before = match path.exists() {
        true => fs::read_to_string(path)
            .with_context(|| format!("--history {label}: cannot be read"))?,
        false => String::new(),
    };
    let mut history = parse_history(&label, &before)?;
    let Some(line) = HistoryLine::new(report, candidate, machine::now().0) else {
        report.notes.push(
            "history: nothing is added, since the candidate's hardware class is unknown".to_owned(),
        );
        return Ok(());
    };
    append("--history", path, &line.line())?;
    let hardware = line.hardware.clone();
    history.push(line);
    let found = changes(&history, &hardware, &policy.history);
    report.notes.extend(found.iter().map(ToString::to_string));
    Ok(())
}

fn append(what: &str, path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{what} {}: cannot be written", path.display()))
}
