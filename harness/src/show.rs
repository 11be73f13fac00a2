//! `draftbench plan`: the plan for a person to read, with what is skipped, and an estimate.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::arms::DrafterPlan;
use crate::cli::PlanArgs;
use crate::group::Setting;
use crate::output::{Ending, Verdict, say};
use crate::plan::{self, Plan, Request};
use crate::plan_file::PlanFile;

/// Prints what a run would do, and writes it to a file where one is named.
///
/// # Errors
/// For bad input, or if the file cannot be written.
pub(crate) fn show(args: &PlanArgs) -> Ending {
    if let Some(out) = &args.out {
        ensure!(
            !out.exists(),
            "--out {}: is there already; choose another name or remove it",
            out.display()
        );
    }
    if let Some(rate) = args.assume_rate {
        plan::at_least_one("--assume-rate", rate)?;
    }
    let plan = plan::resolve(Request::typed(&args.select)?)?;
    let mut file = PlanFile::of(&plan)?;
    file.estimate(&plan, args.assume_rate)?;
    let mut text = text(&plan)?;
    text.push_str(&estimates(&plan, &file));
    if let Some(out) = &args.out {
        file.write_new(out)?;
        text.push_str(&format!("plan      {} {}\n", out.display(), file.sha256));
    }
    for note in &plan.notes {
        text.push_str(&format!("note      {note}\n"));
    }
    say(&text)?;
    Ok(Verdict::Fine)
}

fn text(plan: &Plan) -> Result<String> {
    let mut out = String::new();
    for target in &plan.targets {
        let place = target.source.place();
        writeln!(out, "target    {} from {place}", target.spec.id)?;
        for drafter in &target.drafters {
            match drafter {
                DrafterPlan::Ready(a, None) => writeln!(out, "  method  {} (no weights)", a.key()),
                DrafterPlan::Ready(a, Some(s)) => {
                    writeln!(out, "  method  {} from {}", a.key(), s.place())
                }
                DrafterPlan::Skipped(a, why) => {
                    writeln!(out, "  method  {} skipped: {why}", a.key())
                }
            }?;
        }
    }
    writeln!(out, "suites    {}", plan.suites.join(", "))?;
    for line in plan.library.lines() {
        writeln!(out, "  suite   {line}")?;
    }
    for (setting, n_arms, suites) in by_setting(plan) {
        writeln!(
            out,
            "setting   {setting}: {n_arms} methods on {}",
            suites.join(", ")
        )?;
    }
    for (why, coordinates) in by_reason(plan) {
        let (n_groups, first) = (coordinates.len(), &coordinates[0]);
        match n_groups {
            1 => writeln!(out, "skipped   {first}: {why}")?,
            _ => writeln!(out, "skipped   {n_groups} groups, {first} and so on: {why}")?,
        }
    }
    for (why, n_cells) in plan.excluded.iter().filter(|e| e.1 > 0) {
        writeln!(out, "excluded  {n_cells} cells: {why}")?;
    }
    let limits = plan.limits;
    let prompts = match plan.request.matrix.prompts {
        None => "all".to_owned(),
        Some(n) => n.to_string(),
    };
    writeln!(
        out,
        "limits    {prompts} prompts of a suite that no set counts, {} sampled answers a prompt, at most {} tokens, seed {}",
        limits.samples, limits.max_new, limits.seed
    )?;
    let n_cells: usize = plan.groups.iter().map(|g| g.arms.len()).sum();
    writeln!(out, "cells     {n_cells}")?;
    writeln!(out, "groups    {}", plan.groups.len())?;
    Ok(out)
}

/// Each setting with the number of its arms and their suites; suites with other arms are another entry.
fn by_setting(plan: &Plan) -> Vec<(Setting, usize, Vec<&'static str>)> {
    let mut out: Vec<(Setting, usize, Vec<&'static str>)> = Vec::new();
    for group in &plan.groups {
        let key = (group.setting, group.arms.len());
        match out.iter_mut().find(|o| (o.0, o.1) == key) {
            Some(entry) if entry.2.contains(&group.suite) => {}
            Some(entry) => entry.2.push(group.suite),
            None => out.push((key.0, key.1, vec![group.suite])),
        }
    }
    out
}

/// Reasons for skipped groups, each with the groups it holds for.
fn by_reason(plan: &Plan) -> Vec<(&str, Vec<String>)> {
    let mut out: Vec<(&str, Vec<String>)> = Vec::new();
    for skip in &plan.skipped {
        let cell = &skip.cell;
        let mut title = format!(
            "{} on {}, {}, thinking {}, concurrency {}",
            cell.target, cell.suite, cell.sampling, cell.thinking, cell.concurrency
        );
        if !cell.arrivals.is_closed() {
            title.push_str(&format!(", {}", cell.arrivals));
        }
        match out.iter_mut().find(|o| o.0 == skip.why) {
            Some(entry) => entry.1.push(title),
            None => out.push((&skip.why, vec![title])),
        }
    }
    out
}

/// A line a target.
fn estimates(plan: &Plan, file: &PlanFile) -> String {
    let mut out = String::new();
    for (target_idx, target) in plan.targets.iter().enumerate() {
        let its = file.groups.iter().zip(&plan.groups);
        let its = its.filter(|(_, g)| g.target == target_idx);
        let its: Vec<_> = its.filter_map(|(p, _)| p.estimate.as_ref()).collect();
        let Some(rate) = its.first().map(|e| e.assumed_tokens_per_sec) else {
            continue;
        };
        let secs: u64 = its.iter().map(|e| e.most_secs).sum();
        let bytes = its.iter().map(|e| e.memory_bytes).max().unwrap_or(0);
        out.push_str(&format!(
            "estimate  {}: at most {}, a guess from {rate} tokens a second for every method; memory about {} for weights and the target's cache\n",
            target.spec.id,
            span(secs),
            size(bytes)
        ));
    }
    out
}

/// A length of time in the unit that suits it.
pub(crate) fn span(secs: u64) -> String {
    match secs {
        0..120 => format!("{secs} s"),
        120..7200 => format!("{} min", secs.div_ceil(60)),
        7200..172_800 => format!("{:.1} h", secs as f64 / 3600.0),
        _ => format!("{:.1} days", secs as f64 / 86_400.0),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
