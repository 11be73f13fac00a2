//! `draftbench analyse study`: tables, CSV files and plots of the study from the records of runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use reports::{Apart, Cell, CoverageRecord, Elsewhere, Outcome, Peer, Record, Study};

use crate::cli::StudyArgs;
use crate::cost;
use crate::coverage::COVERAGE;
use crate::folder::{RECORDS, stored_records};
use crate::output::{Ending, Verdict, say};

/// Writes the study of some runs.
///
/// # Errors
/// If a run cannot be read, holds nothing of the target, or a file cannot be written.
pub(crate) fn study(args: &StudyArgs) -> Ending {
    let mut study = read(&args.runs, &args.target, &elsewhere(args)?)?;
    ensure!(
        !study.sheets.is_empty(),
        "the runs hold no drafting method's answers of target {:?} with thinking off; choose one with --target",
        args.target
    );
    let due = due(&args.only)?;
    study.sheets.retain(|sheet| due.contains(&sheet.id));
    study.plots.retain(|plot| due.contains(&plot.id));
    ensure!(
        !study.sheets.is_empty(),
        "--only {}: the runs hold nothing for it",
        args.only.join(",")
    );
    let mut written = write(&study, &args.out)?;
    if args.only.is_empty() {
        written += write_page(&study, &args.out)?;
    }
    if let Some(doc) = &args.doc {
        fill(doc, &study, args, &due)?;
    }
    let tables: Vec<String> = study.sheets.iter().map(reports::Sheet::markdown).collect();
    say(&format!(
        "{}\n{written} files in {}\n",
        tables.join("\n"),
        args.out.display()
    ))?;
    Ok(Verdict::Fine)
}

/// Reads what was measured outside the runs.
fn elsewhere(args: &StudyArgs) -> Result<Elsewhere> {
    let costs = args.cost.as_deref();
    let costs = costs.map(|path| cost::read(path, &args.target));
    let peer = |typed: &String| {
        let place = format!("--peer {typed}");
        let (method, path) = typed
            .split_once('=')
            .with_context(|| format!("{place}: write the arm, =, and a file"))?;
        let text = fs::read_to_string(path).with_context(|| format!("{place}: cannot be read"))?;
        Peer::parse(method, &text)
            .with_context(|| format!("{place}: is not what tests/peers/llama_accept.py prints"))
    };
    Ok(Elsewhere {
        costs: costs.transpose()?,
        peers: args.peers.iter().map(peer).collect::<Result<_>>()?,
    })
}

/// Reads runs and makes the study of one target.
///
/// # Errors
/// If a run cannot be read.
pub(crate) fn read(runs: &[PathBuf], target: &str, elsewhere: &Elsewhere) -> Result<Study> {
    let mut records: Vec<Record> = Vec::new();
    let mut coverage: Vec<CoverageRecord> = Vec::new();
    for run in runs {
        let (answers, ranks) = (stored_records(run)?, run.join(COVERAGE));
        ensure!(
            answers.is_some() || ranks.is_file(),
            "{}: holds neither {RECORDS} nor {COVERAGE}; name the folder of a run",
            run.display()
        );
        if let Some(answers) = answers {
            let apart = Apart::of(answers);
            if let Some(line) = apart.line() {
                eprintln!("note: {}: {line}", run.display());
            }
            add_records(&mut records, apart.measured, run);
        }
        if ranks.is_file() {
            add_coverage(&mut coverage, read_coverage(&ranks)?);
        }
    }
    Ok(reports::study(&records, &coverage, target, elsewhere))
}

/// A cell of a later run takes the place of an earlier run's, unless the later one has no answer and the earlier has.
fn add_records(records: &mut Vec<Record>, mut new: Vec<Record>, run: &Path) {
    let is_answer = |r: &&Record| matches!(r.outcome, Outcome::Ok(_));
    let answered = |records: &[Record]| -> BTreeSet<Cell> {
        let cells = records.iter().filter(is_answer).map(|r| r.cell.clone());
        cells.collect()
    };
    let (before, now) = (answered(records), answered(&new));
    new.retain(|r| now.contains(&r.cell) || !before.contains(&r.cell));
    let cells: BTreeSet<&Cell> = new.iter().map(|r| &r.cell).collect();
    let n_before = records.len();
    records.retain(|r| !cells.contains(&r.cell));
    if records.len() < n_before {
        eprintln!(
            "note: {}: its cells take the place of those of an earlier run; ratios of times across runs are left out",
            run.display()
        );
    }
    records.extend(new);
}

/// As [`add_records`]; the unit is what one drafter ranks of one suite.
fn add_coverage(coverage: &mut Vec<CoverageRecord>, new: Vec<CoverageRecord>) {
    let of = |r: &CoverageRecord| (r.target.clone(), r.checkpoint.clone(), r.suite.clone());
    let its: BTreeSet<_> = new.iter().map(of).collect();
    coverage.retain(|r| !its.contains(&of(r)));
    coverage.extend(new);
}

/// Reads a `coverage.jsonl`.
///
/// # Errors
/// If it cannot be read or a line is no record of coverage.
pub(crate) fn read_coverage(path: &Path) -> Result<Vec<CoverageRecord>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let parse = |(idx, line): (usize, &str)| {
        let what = || format!("{} line {}", path.display(), idx + 1);
        let record: CoverageRecord = serde_json::from_str(line).with_context(what)?;
        match record.fault() {
            None => Ok(record),
            Some(why) => bail!("{}: {why}", what()),
        }
    };
    text.lines().enumerate().map(parse).collect()
}

/// The tables and plots asked for, all if none is named.
fn due(only: &[String]) -> Result<Vec<&'static str>> {
    if only.is_empty() {
        return Ok(reports::STUDY_IDS.to_vec());
    }
    let known = |id: &String| {
        let found = reports::STUDY_IDS.iter().find(|known| *known == id);
        found.copied().with_context(|| {
            format!(
                "--only {id:?} is no part of the study; known: {}",
                reports::STUDY_IDS.join(", ")
            )
        })
    };
    only.iter().map(known).collect()
}

/// Writes a CSV file a table, SVG and PNG a plot; returns the number of files.
///
/// # Errors
/// If a plot cannot be drawn or a file cannot be written.
pub(crate) fn write(study: &Study, out: &Path) -> Result<usize> {
    let refused = || format!("--out {}: cannot be written to", out.display());
    fs::create_dir_all(out).with_context(refused)?;
    for sheet in &study.sheets {
        fs::write(out.join(format!("{}.csv", sheet.id)), sheet.csv()).with_context(refused)?;
    }
    for plot in &study.plots {
        fs::write(out.join(format!("{}.svg", plot.id)), plot.svg()?).with_context(refused)?;
        fs::write(out.join(format!("{}.png", plot.id)), plot.png()?).with_context(refused)?;
    }
    Ok(study.sheets.len() + 2 * study.plots.len())
}

/// Writes `study.md`, every table with its plot; returns the number of files.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_page(study: &Study, out: &Path) -> Result<usize> {
    let mut page = String::new();
    for id in ids(study) {
        page.push_str(&section(study, id, Path::new("")));
        page.push('\n');
    }
    fs::write(out.join("study.md"), page)
        .with_context(|| format!("--out {}: cannot be written to", out.display()))?;
    Ok(1)
}

/// Tables first, then plots that have no table of their own.
fn ids(study: &Study) -> Vec<&'static str> {
    let mut ids: Vec<&str> = study.sheets.iter().map(|s| s.id).collect();
    for plot in &study.plots {
        if !ids.contains(&plot.id) {
            ids.push(plot.id);
        }
    }
    ids
}

/// A table and the plot that goes with it; `images` is where the plots lie, seen from the document.
fn section(study: &Study, id: &str, images: &Path) -> String {
    let mut text = String::new();
    if let Some(sheet) = study.sheets.iter().find(|s| s.id == id) {
        text.push_str(&sheet.markdown());
    }
    if let Some(plot) = study.plots.iter().find(|p| p.id == id) {
        let image = images.join(format!("{id}.svg"));
        text.push_str(&format!("\n![{}]({})\n", plot.title, image.display()));
    }
    text
}

/// Fills the marked places of a document and empties those of `due` that these runs have nothing for; a document that
/// is not there yet is made with a marked place for each table.
fn fill(doc: &Path, study: &Study, args: &StudyArgs, due: &[&'static str]) -> Result<()> {
    let mut text = match doc.exists() {
        true => fs::read_to_string(doc)
            .with_context(|| format!("--doc {}: cannot be read", doc.display()))?,
        false => skeleton(study, &args.target),
    };
    let images = images(doc, &args.out);
    let mut filled = 0;
    for id in ids(study) {
        match reports::splice(&text, id, &section(study, id, &images)) {
            Some(new) => {
                text = new;
                filled += 1;
            }
            None => eprintln!("note: --doc {}: has no place for {id}", doc.display()),
        }
    }
    for id in due.iter().filter(|id| !ids(study).contains(id)) {
        if let Some(new) = reports::splice(&text, id, "Nothing in these runs.\n") {
            text = new;
        }
    }
    ensure!(
        filled > 0,
        "--doc {}: holds no marked place; write <!-- generated: methods --> and <!-- end: methods --> where that table belongs",
        doc.display()
    );
    fs::write(doc, text).with_context(|| format!("--doc {}: cannot be written", doc.display()))
}

fn skeleton(study: &Study, target: &str) -> String {
    let mut text = format!("# The study on {target}\n");
    for id in ids(study) {
        text.push_str(&format!(
            "\n## {id}\n\n<!-- generated: {id} -->\n<!-- end: {id} -->\n"
        ));
    }
    text
}

/// The folder of plots as a document names it: relative if it lies below the document's own folder.
fn images(doc: &Path, out: &Path) -> PathBuf {
    let home = doc.parent().unwrap_or(Path::new(""));
    out.strip_prefix(home).unwrap_or(out).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_are_named_relative_to_the_document_where_they_lie_below_it() {
        let name = |doc: &str, out: &str| images(Path::new(doc), Path::new(out));
        assert_eq!(
            name("docs/study.md", "docs/study-tiny"),
            Path::new("study-tiny")
        );
        assert_eq!(name("study.md", "plots"), Path::new("plots"));
        assert_eq!(name("docs/study.md", "/tmp/x"), Path::new("/tmp/x"));
    }
}
