//! `draftbench run`: the matrix from plan to table.

use std::io;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use reports::{Cell, Layout, Outcome, Record, SCHEMA};
use serde::Serialize;

use crate::arms::{DrafterPlan, TargetPlan};
use crate::cli::RunArgs;
use crate::engine::{self, Arm, Job, Sink};
use crate::equality::Ledger;
use crate::folder::{self, RunFolder};
use crate::machine::{self, Machine};
use crate::output::{Ending, Verdict, say};
use crate::plan::{self, Plan, Setting};
use crate::preset::Report;
use crate::schedule::{self, CostTable};
use crate::stage::{self, Stage};
use crate::study;

/// Prints what a run would do.
///
/// # Errors
/// Those of [`plan::resolve`].
pub(crate) fn show_plan(args: &RunArgs) -> Ending {
    let plan = plan::resolve(args)?;
    folder::check(&plan.out)?;
    say(&plan.text())?;
    Ok(Verdict::Fine)
}

/// Runs the matrix, prints the table.
///
/// # Errors
/// For bad input, before anything is written; later only if the folder cannot be written to.
pub(crate) fn run(args: &RunArgs) -> Ending {
    let plan = plan::resolve(args)?;
    plan::start_threads(&args.machine)?;
    folder::check(&plan.out)?;
    let mut ready = check_targets(&plan)?;
    plan.notes.iter().for_each(|note| eprintln!("note: {note}"));

    let mut info = RunInfo::new(&plan);
    let folder = RunFolder::create(&plan.out, &info)?;
    let mut recorder = Recorder {
        folder,
        ledger: Ledger::default(),
        bar: progress_bar(count_answers(&plan)?),
        n_failed: 0,
    };
    for target in &plan.targets {
        let stage = match ready.take() {
            Some(stage) => Ok(stage),
            None => stage::prepare(&plan, target),
        };
        match stage {
            Ok(mut stage) => {
                let costs = step_costs(&plan, target, &mut stage);
                if !costs.is_empty() {
                    info.step_costs.extend(costs.iter().cloned());
                    recorder.folder.describe(&info)?;
                }
                measure_target(&plan, target, stage, &costs, &mut recorder)?;
            }
            Err(err) => fail_target(&plan, target, &err, &mut recorder)?,
        }
    }
    recorder.bar.finish_and_clear();
    info.complete = true;
    recorder.folder.describe(&info)?;
    conclude(&plan, &info, &recorder)
}

/// Loads every target once, last to first, so that bad input is found before a run begins; gives back the first,
/// which is measured first.
fn check_targets(plan: &Plan) -> Result<Option<Stage>> {
    let mut ready = None;
    for target in plan.targets.iter().rev() {
        drop(ready.take());
        ready = Some(stage::prepare(plan, target)?);
    }
    Ok(ready)
}

/// Profiles the engine at every concurrency at which an arm's scheduler asks what a step costs. What cannot be
/// measured is left out with a note, and fails the cells that need it.
fn step_costs(plan: &Plan, target: &TargetPlan, stage: &mut Stage) -> Vec<CostTable> {
    let mut tables: Vec<CostTable> = Vec::new();
    for group in &plan.groups {
        let Setting {
            sampling,
            concurrency,
            ..
        } = group.setting;
        let asks = stage.asks(group.suite, group.setting, 1);
        let prompts: Vec<&[u32]> = asks.iter().map(|ask| ask.tokens.as_slice()).collect();
        let together = &prompts[..prompts.len().min(concurrency as usize)];
        let most = stage.arms.iter().map(|a| a.1.drafter.max_draft() + 1).max();
        let its = stage.arms.iter_mut().filter(|a| group.arms.contains(&a.0));
        for (_, arm) in its.filter(|a| a.1.schedule.needs_cost()) {
            let mut measure = || -> Result<()> {
                let known = tables.iter().position(|t| t.concurrency == concurrency);
                let at = match (known, prompts.get(prompts.len() / 2)) {
                    (Some(at), _) => at,
                    (None, None) => return Ok(()),
                    (None, Some(prompt)) => {
                        let (id, most) = (target.spec.id, most.unwrap_or(1));
                        let engine = &mut stage.target;
                        tables.push(schedule::profile(id, engine, concurrency, prompt, most)?);
                        tables.len() - 1
                    }
                };
                if tables[at].drafting_of(&arm.method, sampling).is_none() {
                    let settings = (sampling, plan.limits.max_new);
                    let rest = schedule::drafting(&mut stage.target, arm, together, settings)?;
                    tables[at].drafting.push(rest);
                }
                Ok(())
            };
            if let Err(err) = measure() {
                let why = crate::chain(&err);
                eprintln!("note: {}: its steps could not be timed: {why}", arm.method);
                // A profile that broke off leaves its context behind.
                for slot in (0..concurrency as usize).map(decode::Slot) {
                    if let Err(stuck) = decode::Target::keep(&mut stage.target, slot, 0, &[]) {
                        eprintln!("note: slot {} could not be freed: {stuck}", slot.0);
                    }
                }
            }
        }
    }
    tables
}

fn measure_target(
    plan: &Plan,
    target: &TargetPlan,
    mut stage: Stage,
    costs: &[CostTable],
    recorder: &mut Recorder,
) -> Result<()> {
    for group in &plan.groups {
        let (setting, suite) = (group.setting, group.suite);
        for arm_idx in &group.arms {
            if let DrafterPlan::Skipped(arm, why) = &target.drafters[*arm_idx] {
                let cell = plan.cell(target.spec.id, group, arm.key());
                let why = why.clone();
                recorder.whole_cell(plan, cell, Outcome::Skipped { why })?;
            }
        }
        let asks = stage.asks(suite, setting, group.samples);
        let cell = plan.cell(target.spec.id, group, "");
        recorder.bar.set_message(format!(
            "{} {suite} {} thinking {} x{}",
            cell.target, cell.sampling, cell.thinking, cell.concurrency
        ));
        let known = costs.iter().find(|c| c.concurrency == setting.concurrency);
        let job = Job {
            run: &plan.run,
            cost: known,
            cell,
            asks: &asks,
            max_new: plan.limits.max_new,
            seed: plan.limits.seed,
            tokens: plan.tokens,
        };
        let its = stage.arms.iter_mut().filter(|a| group.arms.contains(&a.0));
        let mut arms: Vec<&mut Arm> = its.map(|a| &mut a.1).collect();
        engine::measure(&mut stage.target, &mut arms, &job, recorder)?;
    }
    Ok(())
}

/// A target that loaded before and does not any more.
fn fail_target(
    plan: &Plan,
    target: &TargetPlan,
    err: &anyhow::Error,
    recorder: &mut Recorder,
) -> Result<()> {
    for group in &plan.groups {
        for arm_idx in &group.arms {
            let cell = plan.cell(target.spec.id, group, plan.arms[*arm_idx].key());
            let why = crate::chain(err);
            recorder.whole_cell(plan, cell, Outcome::Failed { why })?;
        }
    }
    Ok(())
}

/// Prints table and verdict; the table is made from the file, so that what a reader sees is what was stored.
fn conclude(plan: &Plan, info: &RunInfo, recorder: &Recorder) -> Ending {
    let mut text = match plan.report {
        Report::Table => table(plan, info, recorder)?,
        Report::Study => study_text(plan)?,
    };
    let differences = recorder.ledger.differences();
    let n_compared = recorder.ledger.n_compared();
    if n_compared > 0 {
        text.push_str(&match differences.len() {
            0 => {
                format!("equality: {n_compared} greedy answers held against vanilla's, all equal\n")
            }
            n => format!("equality: {n} of {n_compared} greedy answers differ from vanilla's\n"),
        });
    }
    text.push_str(&format!("records: {}\n", plan.out.display()));
    // Differences go first: a reader of the table that closes the pipe must not hide them.
    for difference in differences {
        eprintln!("differs: {difference}");
    }
    let verdict = match recorder.n_failed > 0 || !differences.is_empty() {
        true => Verdict::Troubled,
        false => Verdict::Fine,
    };
    match say(&text) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(err.into()),
        _ => Ok(verdict),
    }
}

/// One table a setting, made from the file.
fn table(plan: &Plan, info: &RunInfo, recorder: &Recorder) -> Result<String> {
    let records = reports::read_records(&recorder.folder.records_path())?;
    let layout = Layout {
        methods: plan.arms.iter().map(|a| a.key().to_owned()).collect(),
        suites: plan.suites.iter().map(|s| (*s).to_owned()).collect(),
        machine: info.machine.line(),
        remarks: remarks(plan),
    };
    Ok(reports::render(&records, &layout))
}

/// The tables of the study of every target, which are also written to a folder.
fn study_text(plan: &Plan) -> Result<String> {
    let mut text = String::new();
    for target in &plan.targets {
        let study = study::read(std::slice::from_ref(&plan.out), target.spec.id)?;
        let out = plan.out.join("study").join(target.spec.id);
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

/// What a reader of the table should know besides its definitions.
fn remarks(plan: &Plan) -> Vec<String> {
    let warm_up =
        "Before each block of cells every method decodes one short batch unmeasured (warm-up).";
    let mut remarks = vec![warm_up.to_owned()];
    if plan
        .groups
        .iter()
        .any(|g| engine::passes(g.setting.concurrency) > 1)
    {
        let twice = "At concurrency above 1 every batch is answered twice, with the methods in both orders.";
        remarks.push(twice.to_owned());
    }
    remarks.extend(plan.targets.iter().filter_map(TargetPlan::weights));
    remarks
}

/// Stores records, compares texts, moves the bar.
struct Recorder {
    folder: RunFolder,
    ledger: Ledger,
    bar: ProgressBar,
    n_failed: usize,
}

impl Recorder {
    fn whole_cell(&mut self, plan: &Plan, cell: Cell, outcome: Outcome) -> Result<()> {
        let record = Record {
            schema: SCHEMA,
            run: plan.run.clone(),
            cell,
            prompt: None,
            outcome,
        };
        self.take(record, &[])
    }
}

impl Sink for Recorder {
    fn take(&mut self, record: Record, tokens: &[u32]) -> Result<()> {
        self.folder.append(&record)?;
        match (&record.outcome, &record.prompt) {
            (Outcome::Ok(_), Some(prompt)) => {
                self.ledger.add(&record.cell, prompt, tokens);
                self.bar.inc(1);
            }
            (Outcome::Failed { why }, _) => {
                self.n_failed += 1;
                let cell = &record.cell;
                self.bar.suspend(|| eprintln!("failed: {cell}: {why}"));
            }
            _ => {}
        }
        Ok(())
    }
}

fn count_answers(plan: &Plan) -> Result<u64> {
    let mut lengths = std::collections::BTreeMap::new();
    for id in &plan.suites {
        let n = suites::load(id)?.prompts.len();
        lengths.insert(*id, n.min(plan.limits.prompts));
    }
    Ok(plan.n_answers(|id| lengths.get(id).copied().unwrap_or(0)))
}

/// On standard error, and only on a terminal.
fn progress_bar(n_answers: u64) -> ProgressBar {
    let bar = ProgressBar::new(n_answers);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} answers, {eta} left  {msg}");
    bar.set_style(style.expect("the template is constant and parses"));
    bar
}

/// `run.json`: what was asked for, by which program, where.
#[derive(Debug, Serialize)]
struct RunInfo {
    schema: u32,
    run: String,
    version: &'static str,
    /// See [`machine::source_head`].
    source_head: Option<String>,
    started_unix_secs: u64,
    complete: bool,
    asked: Asked,
    machine: Machine,
    /// What steps cost, measured at start where a scheduler asks for it.
    step_costs: Vec<CostTable>,
}

#[derive(Debug, Serialize)]
struct Asked {
    preset: String,
    targets: Vec<AskedTarget>,
    methods: Vec<String>,
    suites: Vec<&'static str>,
    groups: Vec<AskedGroup>,
    prompts: usize,
    samples: u32,
    max_new: usize,
    seed: u64,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct AskedTarget {
    id: &'static str,
    from: String,
}

#[derive(Debug, Serialize)]
struct AskedGroup {
    suite: &'static str,
    sampling: reports::SamplingKey,
    thinking: reports::Thinking,
    concurrency: u32,
    methods: Vec<String>,
}

impl RunInfo {
    fn new(plan: &Plan) -> Self {
        let limits = plan.limits;
        let targets = plan.targets.iter().map(|t| AskedTarget {
            id: t.spec.id,
            from: t.source.place(),
        });
        let key = |arm_idx: &usize| plan.arms[*arm_idx].key().to_owned();
        let groups = plan.groups.iter().map(|g| AskedGroup {
            suite: g.suite,
            sampling: g.setting.sampling,
            thinking: g.setting.thinking,
            concurrency: g.setting.concurrency,
            methods: g.arms.iter().map(key).collect(),
        });
        Self {
            schema: SCHEMA,
            run: plan.run.clone(),
            version: env!("CARGO_PKG_VERSION"),
            source_head: machine::source_head(),
            started_unix_secs: machine::now().0,
            complete: false,
            asked: Asked {
                preset: plan.preset.clone(),
                targets: targets.collect(),
                methods: plan.arms.iter().map(|a| a.key().to_owned()).collect(),
                suites: plan.suites.clone(),
                groups: groups.collect(),
                prompts: limits.prompts,
                samples: limits.samples,
                max_new: limits.max_new,
                seed: limits.seed,
                notes: plan.notes.clone(),
            },
            machine: Machine::look(),
            step_costs: Vec::new(),
        }
    }
}
