//! The end of a run or of a merge: records that stand for what could not run, the table, the verdict.

use std::io;
use std::path::Path;

use anyhow::Result;
use reports::{Apart, ArrivalKey, Cell, Elsewhere, Layout, Outcome, Record, SYNTHETIC_NOTE};

use crate::arms::{ArmPlan, TargetPlan};
use crate::engine;
use crate::equality::Ledger;
use crate::output::{Ending, Verdict, say};
use crate::plan::{self, Plan};
use crate::plan_file::{PlanFile, PlannedSkip};
use crate::run::whole_cell;
use crate::study;

/// Records of the groups that could not run at all.
pub(crate) fn skipped_records(file: &PlanFile, run: &str) -> Vec<Record> {
    let of_group = |skip: &PlannedSkip| -> Vec<Record> {
        let record = |method: &String| {
            let (method, why) = (method.clone(), skip.why.clone());
            let cell = Cell {
                method,
                ..skip.cell.clone()
            };
            whole_cell(run, cell, Outcome::Skipped { why })
        };
        skip.methods.iter().map(record).collect()
    };
    file.skipped.iter().flat_map(of_group).collect()
}

/// One table a setting; arms of given acceptance follow in tables of their own.
///
/// # Errors
/// If the plan names an arm that this program does not know.
pub(crate) fn table(
    file: &PlanFile,
    records: &[Record],
    machine: String,
    remarks: Vec<String>,
) -> Result<String> {
    let arms = plan::arms(&file.matrix)?;
    let of_groups = file.groups.iter().map(|g| &g.content.suite);
    let mut suites: Vec<String> = Vec::new();
    for suite in of_groups.chain(file.skipped.iter().map(|s| &s.cell.suite)) {
        if !suites.contains(suite) {
            suites.push(suite.clone());
        }
    }
    let layout = Layout {
        methods: arms.iter().map(|a: &ArmPlan| a.key().to_owned()).collect(),
        suites,
        machine,
        remarks,
    };
    let apart = Apart::of(records.to_vec());
    if apart.synthetic.is_empty() {
        return Ok(reports::render(records, &layout));
    }
    let heading = format!("synthetic acceptance\n{SYNTHETIC_NOTE}\n\n");
    let given = reports::render(&apart.synthetic, &layout);
    if apart.measured.is_empty() {
        return Ok(heading + &given);
    }
    let measured = reports::render(&apart.measured, &layout);
    Ok(format!("{measured}\n{heading}{given}"))
}

/// The tables of the study of every target, which are also written to a folder.
///
/// # Errors
/// If the run cannot be read or the folder cannot be written to.
pub(crate) fn study_text(plan: &Plan, run: &Path) -> Result<String> {
    let mut text = String::new();
    for target in &plan.targets {
        let study = study::read(&[run.to_owned()], target.spec.id, &Elsewhere::default())?;
        let out = run.join("study").join(target.spec.id);
        if study.sheets.is_empty() {
            let id = target.spec.id;
            text.push_str(&format!(
                "{id}: no table, since the study reads answers with thinking off of drafting methods\n"
            ));
            continue;
        }
        study::write(&study, &out)?;
        study::write_page(&study, &out)?;
        for sheet in &study.sheets {
            text.push_str(&sheet.markdown());
            text.push('\n');
        }
        text.push_str(&format!("tables and plots: {}\n", out.display()));
    }
    Ok(text)
}

/// What a reader of a run's table should know besides its definitions.
pub(crate) fn remarks(plan: &Plan) -> Vec<String> {
    let settings = plan.groups.iter().map(|g| g.setting);
    let mut remarks = warm_up(settings.map(|s| (s.concurrency, s.arrivals)));
    remarks.extend(plan.targets.iter().filter_map(TargetPlan::weights));
    remarks
}

/// How answers were timed, at these concurrencies and arrivals.
pub(crate) fn warm_up(mut settings: impl Iterator<Item = (u32, ArrivalKey)>) -> Vec<String> {
    let warm_up = [
        "Before each block of cells every method decodes, unmeasured, a prompt of each class of length, 1, 2, 4 .. sequences",
        "  at once, and short batches until the median steps of three agree within 3 % (warm-up): at most ten, and of no more",
        "  tokens than the cell has, but three at least.",
    ];
    let mut remarks = warm_up.map(str::to_owned).to_vec();
    if settings.any(|(concurrency, arrivals)| engine::passes(concurrency, arrivals) > 1) {
        let twice = "At concurrency above 1 and in open loop every batch is answered twice, with the methods in both orders.";
        remarks.push(twice.to_owned());
    }
    remarks
}

/// Prints a text and whether greedy answers are vanilla's; the verdict on some records. `ledger` has compared them
/// already, token by token; without one their hashes are compared.
///
/// # Errors
/// If standard output fails for another reason than a reader that left.
pub(crate) fn verdict(
    records: &[Record],
    ledger: Option<Ledger>,
    mut text: String,
    foot: &str,
) -> Ending {
    let ledger = ledger.unwrap_or_else(|| {
        let mut ledger = Ledger::default();
        records.iter().for_each(|r| ledger.add_stored(r));
        ledger
    });
    let n_compared = ledger.n_compared();
    let differences = ledger.differences();
    if n_compared > 0 {
        text.push_str(&match differences.len() {
            0 => {
                format!("equality: {n_compared} greedy answers held against vanilla's, all equal\n")
            }
            n => format!("equality: {n} of {n_compared} greedy answers differ from vanilla's\n"),
        });
    }
    text.push_str(foot);
    // Differences go first: a reader of the table that closes the pipe must not hide them.
    for difference in differences {
        eprintln!("differs: {difference}");
    }
    let is_failed = |r: &Record| matches!(r.outcome, Outcome::Failed { .. });
    let verdict = match records.iter().any(is_failed) || !differences.is_empty() {
        true => Verdict::Troubled,
        false => Verdict::Fine,
    };
    match say(&text) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(err.into()),
        _ => Ok(verdict),
    }
}
