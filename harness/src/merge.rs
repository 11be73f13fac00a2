//! `draftbench merge`: runs of one plan's shards as one run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use reports::{Cell, Outcome, Record, SCHEMA};
use serde_json::{Value, json};

use crate::cli::MergeArgs;
use crate::conclude;
use crate::folder::{self, PLAN, RunFolder};
use crate::output::Ending;
use crate::plan;
use crate::plan_file::PlanFile;
use crate::provenance::{self, Caller};
use crate::run_info;

/// Missing groups that an error names.
const MAX_NAMED: usize = 4;

/// A run to be merged.
struct Part {
    dir: PathBuf,
    info: Value,
    records: Vec<Record>,
}

/// Writes the merged run and prints its table.
///
/// # Errors
/// If a folder holds no run, the runs are of different plans, two hold different records of one answer and are no
/// repeats, a group is missing without `--partial`, or the folder cannot be written to.
pub(crate) fn merge(args: &MergeArgs, caller: &Caller) -> Ending {
    folder::check(&args.out)?;
    let (file, parts) = read(&args.runs)?;
    let twice = match args.repeats {
        true => Twice::Repeats,
        false => Twice::Refused,
    };
    let mut groups = by_group(&file, &parts, twice)?;
    let missing: Vec<usize> = (0..file.groups.len())
        .filter(|idx| !groups.contains_key(idx))
        .collect();
    if !missing.is_empty() && !args.partial {
        let named = missing.iter().take(MAX_NAMED);
        let named: Vec<String> = named.map(|idx| file.groups[*idx].content.title()).collect();
        bail!(
            "{} of {} groups are in none of the runs, such as {}; resume the runs that lack them, or merge with --partial",
            missing.len(),
            file.groups.len(),
            named.join("; ")
        );
    }
    let run = plan::run_id();
    let mut records: Vec<Record> = Vec::new();
    for idx in 0..file.groups.len() {
        records.extend(groups.remove(&idx).into_iter().flatten());
    }
    records.extend(conclude::skipped_records(&file, &run));
    let out = RunFolder::at(&args.out);
    out.create(
        &describe(&run, &file, &parts, missing.is_empty(), caller),
        &file,
    )?;
    out.store(&records)?;
    out.tidy()?;

    let mut machines: Vec<String> = Vec::new();
    for line in parts.iter().flat_map(|p| run_info::machines(&p.info)) {
        if !machines.contains(&line) {
            machines.push(line);
        }
    }
    let contents = file.groups.iter().map(|g| &g.content);
    let mut remarks = conclude::warm_up(contents.map(|c| (c.concurrency, c.arrivals)));
    remarks.push(format!("merged from {} runs of one plan", parts.len()));
    let text = conclude::table(&file, &records, machines.join("; and "), remarks)?;
    let mut foot = String::new();
    if !missing.is_empty() {
        foot = format!(
            "{} of {} groups are missing\n",
            missing.len(),
            file.groups.len()
        );
    }
    foot.push_str(&format!("records: {}\n", args.out.display()));
    conclude::verdict(&records, None, text, &foot)
}

/// The plan and the runs.
fn read(dirs: &[PathBuf]) -> Result<(PlanFile, Vec<Part>)> {
    let mut first: Option<(PlanFile, &Path)> = None;
    let mut parts = Vec::new();
    for dir in dirs {
        let Some((file, info)) = RunFolder::at(dir).begun()? else {
            bail!(
                "{}: holds no {PLAN}; name the folders of runs",
                dir.display()
            );
        };
        match &first {
            None => first = Some((file, dir)),
            Some((other, other_dir)) => ensure!(
                other.sha256 == file.sha256,
                "{}: is of another plan ({}...) than {} ({}...); only runs of one plan can be merged",
                dir.display(),
                &file.sha256[..12],
                other_dir.display(),
                &other.sha256[..12]
            ),
        }
        parts.push(Part {
            dir: dir.clone(),
            info,
            records: folder::sealed_only(dir)?,
        });
    }
    let (file, _) = first.context("no run is named")?;
    Ok((file, parts))
}

/// What a group is that two runs have measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twice {
    /// A mistake.
    Refused,
    /// Two repeats, whose passes are numbered on.
    Repeats,
}

/// Records by the group's place in the plan. A run named twice is taken once.
fn by_group(file: &PlanFile, parts: &[Part], twice: Twice) -> Result<BTreeMap<usize, Vec<Record>>> {
    let mut out: BTreeMap<usize, (Vec<Record>, &Path)> = BTreeMap::new();
    let mut places: BTreeMap<Cell, usize> = BTreeMap::new();
    for (idx, group) in file.groups.iter().enumerate() {
        places.insert(group.content.cell(""), idx);
    }
    for part in parts {
        let mut own: BTreeMap<usize, Vec<Record>> = BTreeMap::new();
        for record in &part.records {
            let cell = Cell {
                method: String::new(),
                ..record.cell.clone()
            };
            // What could not run belongs to no group; the merged run says it once.
            if let Some(idx) = places.get(&cell) {
                own.entry(*idx).or_default().push(record.clone());
            }
        }
        for (idx, records) in own {
            match out.get_mut(&idx) {
                None => drop(out.insert(idx, (records, &part.dir))),
                Some((others, dir)) if twice == Twice::Repeats => {
                    add_repeat(others, records, [*dir, &part.dir])?;
                }
                Some((others, dir)) => {
                    if let Some(differing) = difference(others, &records) {
                        bail!(
                            "{} and {} hold different records of {differing}; they measured the same group twice: merge only one of them, or with --repeats",
                            dir.display(),
                            part.dir.display()
                        );
                    }
                }
            }
        }
    }
    Ok(out
        .into_iter()
        .map(|(idx, (records, _))| (idx, records))
        .collect())
}

/// Adds the records of other processes that measured the same group, each run once. What one of them could not answer
/// would void the others' numbers, so a repeat with a failure is left out where another has none.
///
/// # Errors
/// If two folders hold one run, and different records of it; `dirs` are theirs.
fn add_repeat(records: &mut Vec<Record>, more: Vec<Record>, dirs: [&Path; 2]) -> Result<()> {
    let mut runs = by_run(std::mem::take(records));
    for (run, its) in by_run(more) {
        let Some((_, known)) = runs.iter().find(|(id, _)| *id == run) else {
            runs.push((run, its));
            continue;
        };
        if let Some(differing) = difference(known, &its) {
            bail!(
                "{} and {} hold different records of {differing}, of one run {run}; merge only one of them",
                dirs[0].display(),
                dirs[1].display()
            );
        }
    }
    let is_whole = |its: &[Record]| {
        !its.iter()
            .any(|r| matches!(r.outcome, Outcome::Failed { .. }))
    };
    if runs.iter().any(|(_, its)| is_whole(its)) {
        let left_out = runs.iter().filter(|(_, its)| !is_whole(its));
        for (run, its) in left_out {
            let cell = its.first().map_or_else(String::new, |r| r.cell.to_string());
            eprintln!(
                "note: run {run} failed in the group of {cell}; its repeat of it is left out"
            );
        }
        runs.retain(|(_, its)| is_whole(its));
    }
    let mut first_pass = 0;
    for (_, its) in runs {
        let n_passes = its.iter().filter_map(|r| Some(r.prompt.as_ref()?.pass + 1));
        let n_passes = n_passes.max().unwrap_or(0);
        records.extend(its.into_iter().map(|mut record| {
            if let Some(prompt) = &mut record.prompt {
                prompt.pass += first_pass;
            }
            record
        }));
        first_pass += n_passes;
    }
    Ok(())
}

/// The records of each run, in the order of runs, passes numbered from 0 as the run itself did.
fn by_run(records: Vec<Record>) -> Vec<(String, Vec<Record>)> {
    let mut out: Vec<(String, Vec<Record>)> = Vec::new();
    for record in records {
        match out.iter_mut().find(|(run, _)| *run == record.run) {
            Some((_, its)) => its.push(record),
            None => out.push((record.run.clone(), vec![record])),
        }
    }
    for (_, its) in &mut out {
        let passes = its.iter().filter_map(|r| Some(r.prompt.as_ref()?.pass));
        let first = passes.min().unwrap_or(0);
        for prompt in its.iter_mut().filter_map(|r| r.prompt.as_mut()) {
            prompt.pass -= first;
        }
    }
    out
}

/// The first answer that two lists of one group do not agree on.
fn difference(a: &[Record], b: &[Record]) -> Option<String> {
    let name = |record: &Record| match &record.prompt {
        Some(prompt) => format!(
            "{}, prompt {}, sample {}",
            record.cell,
            prompt.name(),
            prompt.sample
        ),
        None => record.cell.to_string(),
    };
    let mut pairs = a.iter().zip(b);
    if let Some((record, _)) = pairs.find(|(a, b)| a != b) {
        return Some(name(record));
    }
    let longer = if a.len() > b.len() { a } else { b };
    longer.get(a.len().min(b.len())).map(name)
}

fn describe(run: &str, file: &PlanFile, parts: &[Part], complete: bool, caller: &Caller) -> Value {
    let of = |part: &Part| json!({ "dir": part.dir, "run": part.info });
    let all = |key: &str| -> Vec<&Value> {
        let lists = parts.iter().filter_map(|p| p.info[key].as_array());
        lists.flatten().collect()
    };
    json!({
        "schema": SCHEMA,
        "run": run,
        "version": env!("CARGO_PKG_VERSION"),
        "git_commit": provenance::GIT_COMMIT,
        "plan_sha256": file.sha256,
        "shard": null,
        "started_unix_secs": crate::machine::now().0,
        "complete": complete,
        "asked": parts.first().map(|p| p.info["asked"].clone()),
        "crates": provenance::crates(),
        "n_failed_groups": 0,
        "step_costs": all("step_costs"),
        "loads": all("loads"),
        "merged_by": caller,
        "merged_from": parts.iter().map(of).collect::<Vec<_>>(),
        "sittings": all("sittings"),
    })
}
