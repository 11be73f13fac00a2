//! `draftbench run`: the matrix from plan to table, group by group, each sealed when it is complete.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use reports::{Cell, Outcome, Record, SCHEMA};
use serde_json::Value;

use crate::arms::{DrafterPlan, TargetPlan};
use crate::cli::RunArgs;
use crate::conclude;
use crate::data_talk::Conversation;
use crate::engine::{self, Arm, Job, Measured, Sink};
use crate::equality::Ledger;
use crate::execute::Sandbox;
use crate::folder::RunFolder;
use crate::group::Group;
use crate::interrupt::Interrupt;
use crate::lease::{self, Lease};
use crate::matrix::Report;
use crate::output::{Ending, Verdict};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::provenance::Caller;
use crate::run_info::{self, Loaded, RunInfo};
use crate::schedule::{self, CostTable};
use crate::seal::{Kept, Part};
use crate::stage::{self, NoneFits, Stage};
use crate::start::{self, Start};
use crate::verdicts::{Judge, Runs};

/// Runs the matrix, or what is left of it, and prints the table.
///
/// # Errors
/// For bad input, before anything is written; later only if the folder cannot be written to, somebody else works in
/// it, or a target fails without `--keep-going`.
pub(crate) fn run(args: &RunArgs, caller: &Caller) -> Ending {
    let start = start::start(args, caller)?;
    let sandbox = args.execute_code.then(Sandbox::open).transpose()?;
    let folder = RunFolder::at(&start.out);
    let mut info = RunInfo::new(
        start.run.clone(),
        &start.plan,
        &start.file,
        start.shard,
        caller,
    )?;
    if let Some(sandbox) = &sandbox {
        info.execute(sandbox)?;
    }
    if let Some(before) = &start.before {
        if !folder.is_complete() {
            check_execution(before, &info, &start.out)?;
        }
        info.go_on(before)?;
    }
    if folder.is_complete() {
        if args.execute_code {
            eprintln!(
                "note: --execute-code: the run is complete, and answers are judged only when they are given"
            );
        }
        let before = start.before.as_ref().unwrap_or(&Value::Null);
        if before["complete"] == false {
            // The process before ended between the records and this.
            info.complete = true;
            folder.describe(&info)?;
        }
        // Or between that and this.
        folder.tidy()?;
        info.complete = true;
        // Who only reads the table is no part of the run, nor is this machine.
        let machine = run_info::machines(before).join("; and ");
        return finish(&start, &folder, &info, (None, machine));
    }
    let keep_going = match args.keep_going {
        true => KeepGoing::Yes,
        false => KeepGoing::No,
    };
    let mut work = Work::new(&start, &folder, info, keep_going, sandbox.as_ref())?;
    let ending = work.all();
    work.recorder.progress.finish();
    if ending? == Measured::Stopped {
        return Ok(work.interrupted());
    }
    let (mut info, ledger) = (work.info, Some(work.recorder.ledger));
    info.n_failed_groups = count_failed(&start, &folder);
    if info.n_failed_groups == 0 {
        let skipped = conclude::skipped_records(&start.file, &info.run);
        folder.assemble(&start.file, &start.mine, &skipped)?;
        info.complete = true;
        folder.describe(&info)?;
        folder.tidy()?;
    } else {
        folder.describe(&info)?;
    }
    let machine = info.machine.line(start.plan.dtype().name());
    finish(&start, &folder, &info, (ledger, machine))
}

/// Whether answers' code is run as in the sitting before: if not, some answers of a cell would count as right or wrong
/// and others would not.
fn check_execution(before: &Value, now: &RunInfo, dir: &Path) -> Result<()> {
    let before = before["sittings"].as_array().and_then(|s| s.last());
    let before = before.map_or(&Value::Null, |sitting| &sitting["execute_code"]);
    let now = now.executes();
    ensure!(
        before.is_null() || !now.is_null(),
        "--resume {}: was begun with --execute-code; give it again, or answers of one cell would be judged in part",
        dir.display()
    );
    if before.is_null() != now.is_null() {
        eprintln!(
            "note: --execute-code was not given before: answers that are there stay unjudged"
        );
    } else if before != &now {
        eprintln!("note: --execute-code: code was run by {before} before, and is by {now} now");
    }
    Ok(())
}

/// What a target that cannot be loaded does to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepGoing {
    /// Its groups fail.
    Yes,
    /// The run ends before it begins.
    No,
}

/// A run under way.
struct Work<'a> {
    start: &'a Start,
    folder: &'a RunFolder,
    info: RunInfo,
    recorder: Recorder,
    /// Nothing if the code of answers must not be run.
    sandbox: Option<&'a Sandbox>,
    /// Indices into the plan's groups of those that are not sealed.
    pending: Vec<usize>,
    /// The stage of the first target, loaded to find bad input early, or why it could not be.
    ready: Option<Result<Stage>>,
}

impl<'a> Work<'a> {
    /// Checks everything, then makes the folder.
    fn new(
        start: &'a Start,
        folder: &'a RunFolder,
        info: RunInfo,
        keep_going: KeepGoing,
        sandbox: Option<&'a Sandbox>,
    ) -> Result<Self> {
        let (plan, mut ledger) = (&start.plan, Ledger::default());
        let mut pending = Vec::new();
        for (at, idx) in start.mine.iter().enumerate() {
            let planned = &start.file.groups[*idx];
            match folder.sealed_records(*idx, planned)? {
                Some(records) => records.iter().for_each(|r| ledger.add_stored(r)),
                None => {
                    lease::check(&folder.lease(*idx, planned), &planned.content.title())?;
                    pending.push(at);
                }
            }
        }
        let ready = load_each(plan, &pending, keep_going, none_fits(start))?;
        let executes =
            sandbox.map(
                |sandbox| match plan.suites.iter().any(|id| plan.library.has_tests(id)) {
                    true => format!("answers' code is run by {sandbox}"),
                    false => "--execute-code: no suite of this run has tests".to_owned(),
                },
            );
        plan.notes
            .iter()
            .chain(&executes)
            .for_each(|note| eprintln!("note: {note}"));
        let n_answers = pending.iter().map(|at| plan.n_answers(&plan.groups[*at]));
        let n_sealed = plan.groups.len() - pending.len();
        let recorder = Recorder {
            part: None,
            ledger,
            progress: Progress::new(n_answers.sum(), n_sealed, plan.groups.len()),
            interrupt: Interrupt::listen()?,
        };
        match start.before {
            None => folder.create(&info, &start.file)?,
            Some(_) => folder.describe(&info)?,
        }
        Ok(Self {
            start,
            folder,
            info,
            recorder,
            sandbox,
            pending,
            ready,
        })
    }

    /// Every pending group, target by target.
    fn all(&mut self) -> Result<Measured> {
        for target_idx in targets_of(&self.start.plan, &self.pending) {
            let stage = match self.ready.take() {
                Some(stage) => stage,
                None => stage::prepare(&self.start.plan, target_idx, none_fits(self.start)),
            };
            let stage = match stage {
                Ok(mut stage) => self.profile(target_idx, &mut stage).map(|()| stage),
                Err(err) => Err(err),
            };
            match stage {
                Ok(mut stage) => {
                    let target = self.start.plan.targets[target_idx].spec.id.to_owned();
                    let ns = stage.load_ns;
                    self.info.loads.push(Loaded { target, ns });
                    self.folder.describe(&self.info)?;
                    for at in self.groups_of(target_idx) {
                        if self.group(at, &mut stage)? == Measured::Stopped {
                            return Ok(Measured::Stopped);
                        }
                    }
                }
                Err(err) => self.fail(target_idx, &err)?,
            }
        }
        Ok(Measured::Whole)
    }

    fn groups_of(&self, target_idx: usize) -> Vec<usize> {
        let groups = &self.start.plan.groups;
        let its = self.pending.iter().copied();
        its.filter(|at| groups[*at].target == target_idx).collect()
    }

    /// Times steps at every concurrency at which an arm's scheduler asks what they cost, unless an earlier sitting
    /// did. What cannot be timed is left out with a note, and fails the cells that need it.
    fn profile(&mut self, target_idx: usize, stage: &mut Stage) -> Result<()> {
        let plan = &self.start.plan;
        let before = self.info.step_costs.clone();
        for at in self.groups_of(target_idx) {
            let group = &plan.groups[at];
            let asking = |a: &&(usize, Arm)| group.arms.contains(&a.0) && a.1.schedule.needs_cost();
            let arms: Vec<usize> = stage.arms.iter().filter(asking).map(|a| a.0).collect();
            for arm_idx in arms {
                let Err(err) = self.profile_arm(group, arm_idx, stage) else {
                    continue;
                };
                let (key, why) = (plan.arms[arm_idx].key(), crate::chain(&err));
                let note = format!("note: {key}: its steps could not be timed: {why}");
                self.recorder.progress.say(&note);
                // A profile that broke off leaves its context behind.
                for slot in (0..group.setting.concurrency as usize).map(decode::Slot) {
                    decode::Target::keep(&mut stage.target, slot, 0, &[])?;
                }
            }
        }
        if self.info.step_costs != before {
            self.folder.describe(&self.info)?;
        }
        Ok(())
    }

    /// Adds to the table of the group's concurrency what it lacks for one arm.
    fn profile_arm(&mut self, group: &Group, arm_idx: usize, stage: &mut Stage) -> Result<()> {
        let plan = &self.start.plan;
        let target = &plan.targets[group.target];
        let (sampling, concurrency) = (group.setting.sampling, group.setting.concurrency);
        let asks = stage.asks(group.suite, group.setting, 1);
        let prompts: Vec<&[u32]> = asks.iter().map(|ask| ask.tokens.as_slice()).collect();
        let Some(middle) = prompts.get(prompts.len() / 2) else {
            return Ok(());
        };
        if self.cost(target, concurrency).is_none() {
            let most = stage.arms.iter().map(|a| a.1.drafter.max_draft() + 1).max();
            let (id, most) = (target.spec.id, most.unwrap_or(1));
            let table = schedule::profile(id, &mut stage.target, concurrency, middle, most)?;
            self.info.step_costs.push(table);
        }
        let its = |t: &&mut CostTable| t.target == target.spec.id && t.concurrency == concurrency;
        let table = self.info.step_costs.iter_mut().find(its);
        let arm = stage.arms.iter_mut().find(|a| a.0 == arm_idx);
        let (Some(table), Some((_, arm))) = (table, arm) else {
            return Ok(());
        };
        if table.drafting_of(&arm.method, sampling).is_none() {
            let together = &prompts[..prompts.len().min(concurrency as usize)];
            let settings = (sampling, plan.limits.max_new);
            let rest = schedule::drafting(&mut stage.target, arm, together, settings)?;
            table.drafting.push(rest);
        }
        Ok(())
    }

    fn cost(&self, target: &TargetPlan, concurrency: u32) -> Option<&CostTable> {
        let mut tables = self.info.step_costs.iter();
        tables.find(|t| t.target == target.spec.id && t.concurrency == concurrency)
    }

    /// Measures a group, or what is left of it, and seals it.
    fn group(&mut self, at: usize, stage: &mut Stage) -> Result<Measured> {
        let plan = &self.start.plan;
        let group = &plan.groups[at];
        let idx = self.start.mine[at];
        let planned = &self.start.file.groups[idx];
        let title = planned.content.title();
        let lease = Lease::take(&self.folder.lease(idx, planned), &title)?;
        self.folder.forget_failure(idx, planned)?;
        let (part, kept) = Part::open(&self.folder.part(idx, planned))?;
        self.recorder.begin(part, &title, &kept);
        if kept.n_batches == 0 {
            for record in absent_arms(plan, group, &self.info.run) {
                self.recorder.take(record, &[])?;
            }
            self.skip_unfit(group, stage)?;
        }
        let asks = stage.asks(group.suite, group.setting, group.samples);
        let target = &plan.targets[group.target];
        let cost = self.cost(target, group.setting.concurrency).cloned();
        let stop_tokens = decode::Target::stop_tokens(&stage.target).to_vec();
        let judge = Judge::new(self.sandbox.map(|sandbox| sandbox as &dyn Runs));
        let talk = Conversation {
            judge: &judge,
            renderer: &stage.renderer,
            thinking: stage::switch(group.setting.thinking),
            stop_tokens: &stop_tokens,
            fit: &stage.fit,
        };
        let job = Job {
            talk: &talk,
            run: &self.info.run,
            cost: cost.as_ref(),
            cell: plan.cell(group, ""),
            asks: &asks,
            max_new: plan.limits.max_new,
            seed: plan.limits.seed,
            tokens: plan.tokens,
            n_done: kept.n_batches,
            lost: &failed_methods(&kept),
        };
        let its = stage.arms.iter_mut().filter(|a| group.arms.contains(&a.0));
        let mut arms: Vec<&mut Arm> = its.map(|a| &mut a.1).collect();
        let ending = engine::measure(&mut stage.target, &mut arms, &job, &mut self.recorder)?;
        if let Some(trouble) = judge.trouble() {
            self.recorder
                .progress
                .say(&format!("note: {title}: {trouble}"));
        }
        let part = self.recorder.part.take();
        if ending == Measured::Whole {
            ensure!(
                lease.is_ours(),
                "{title}: another worker took it over while this one stood still; run --resume again when it is done"
            );
            let part = part.context("the recorder was given a part file")?;
            part.seal(&self.folder.sealed(idx, planned))?;
            self.recorder.progress.leave();
        }
        Ok(ending)
    }

    /// Records the prompts that are too long for the target, for every arm that would have answered them. They stand
    /// before the first batch's mark, so a resumed group has them once.
    fn skip_unfit(&mut self, group: &Group, stage: &Stage) -> Result<()> {
        let unfit = stage.unfit(group.suite, group.setting);
        if let Some((prompt, why)) = unfit.first() {
            let (suite, n, id) = (group.suite, unfit.len(), &prompt.id);
            self.recorder.progress.say(&format!(
                "note: suite {suite}: {n} prompts are left out, the first since prompt {id} {why}"
            ));
        }
        let its = stage.arms.iter().filter(|a| group.arms.contains(&a.0));
        for (arm, (prompt, why)) in its.flat_map(|arm| unfit.iter().map(move |one| (arm, one))) {
            let cell = self.start.plan.cell(group, &arm.1.method);
            let record = Record {
                prompt: Some(prompt.clone()),
                ..whole_cell(&self.info.run, cell, Outcome::Skipped { why: why.clone() })
            };
            self.recorder.take(record, &[])?;
        }
        Ok(())
    }

    /// Fails the groups of a target that cannot be loaded or profiled; resuming tries them again.
    fn fail(&mut self, target_idx: usize, err: &anyhow::Error) -> Result<()> {
        let why = crate::chain(err);
        for at in self.groups_of(target_idx) {
            let idx = self.start.mine[at];
            let planned = &self.start.file.groups[idx];
            let record = |method: &String| {
                let why = why.clone();
                whole_cell(
                    &self.info.run,
                    planned.content.cell(method),
                    Outcome::Failed { why },
                )
            };
            let records: Vec<Record> = planned.content.methods.iter().map(record).collect();
            self.folder.fail(idx, planned, &records)?;
            let title = planned.content.title();
            self.recorder
                .progress
                .say(&format!("failed: {title}: {why}"));
        }
        Ok(())
    }

    /// Says what is kept and how to go on.
    fn interrupted(&self) -> Verdict {
        let (start, dir) = (self.start, self.start.out.display());
        let sealed = start.mine.iter().filter(|idx| {
            let planned = &start.file.groups[**idx];
            self.folder.sealed(**idx, planned).is_file()
        });
        eprintln!(
            "interrupted: {} of {} groups are sealed, and the complete batches of the one at hand are kept; go on with: draftbench run --resume {dir}",
            sealed.count(),
            start.mine.len()
        );
        Verdict::Interrupted
    }
}

/// Targets of some groups, in order.
fn targets_of(plan: &Plan, groups: &[usize]) -> Vec<usize> {
    let mut out: Vec<usize> = groups.iter().map(|at| plan.groups[*at].target).collect();
    out.dedup();
    out
}

fn none_fits(start: &Start) -> NoneFits {
    match start.shard {
        None => NoneFits::Refused,
        Some(_) => NoneFits::Skipped,
    }
}

/// Loads every target that is needed once, last to first, so that bad input is found before a run begins; gives back
/// the first, which is measured first.
fn load_each(
    plan: &Plan,
    pending: &[usize],
    keep_going: KeepGoing,
    none_fits: NoneFits,
) -> Result<Option<Result<Stage>>> {
    let mut ready: Option<Result<Stage>> = None;
    for target_idx in targets_of(plan, pending).into_iter().rev() {
        drop(ready.take());
        let stage = stage::prepare(plan, target_idx, none_fits);
        ready = Some(match keep_going {
            KeepGoing::Yes => stage,
            KeepGoing::No => Ok(stage?),
        });
    }
    Ok(ready)
}

/// Arms of a group that cannot run on its target.
fn absent_arms(plan: &Plan, group: &Group, run: &str) -> Vec<Record> {
    let drafters = &plan.targets[group.target].drafters;
    let skipped = group.arms.iter().filter_map(|arm| match &drafters[*arm] {
        DrafterPlan::Skipped(arm, why) => {
            let why = why.clone();
            let cell = plan.cell(group, arm.key());
            Some(whole_cell(run, cell, Outcome::Skipped { why }))
        }
        DrafterPlan::Ready(..) => None,
    });
    skipped.collect()
}

fn failed_methods(kept: &Kept) -> Vec<String> {
    let failed = kept.records.iter();
    let failed = failed.filter(|r| matches!(r.outcome, Outcome::Failed { .. }));
    failed.map(|r| r.cell.method.clone()).collect()
}

pub(crate) fn whole_cell(run: &str, cell: Cell, outcome: Outcome) -> Record {
    Record {
        schema: SCHEMA,
        run: run.to_owned(),
        cell,
        prompt: None,
        outcome,
    }
}

fn count_failed(start: &Start, folder: &RunFolder) -> usize {
    if folder.is_complete() {
        return 0;
    }
    let is_failed = |idx: &&usize| {
        let path = folder.sealed(**idx, &start.file.groups[**idx]);
        !path.is_file()
    };
    start.mine.iter().filter(is_failed).count()
}

/// Prints table and verdict; the table is made from the files, so that what a reader sees is what was stored.
fn finish(
    start: &Start,
    folder: &RunFolder,
    info: &RunInfo,
    (ledger, machine): (Option<Ledger>, String),
) -> Ending {
    let records = folder.records(&start.file, &start.mine)?;
    let text = match start.plan.report {
        Report::Study if info.complete => conclude::study_text(&start.plan, &start.out)?,
        _ => conclude::table(
            &start.file,
            &records,
            machine,
            conclude::remarks(&start.plan),
        )?,
    };
    let mut foot = String::new();
    if info.n_failed_groups > 0 {
        foot = format!(
            "{} groups failed and are not sealed; when the cause is gone: draftbench run --resume {}\n",
            info.n_failed_groups,
            start.out.display()
        );
    }
    foot.push_str(&format!("records: {}\n", start.out.display()));
    conclude::verdict(&records, ledger, text, &foot)
}

/// Stores records, compares texts, shows progress.
struct Recorder {
    /// The file of the group at hand.
    part: Option<Part>,
    ledger: Ledger,
    progress: Progress,
    interrupt: Interrupt,
}

impl Recorder {
    fn begin(&mut self, part: Part, title: &str, kept: &Kept) {
        self.part = Some(part);
        kept.records.iter().for_each(|r| self.ledger.add_stored(r));
        let is_answer = |r: &&Record| matches!(r.outcome, Outcome::Ok(_));
        let n_kept = kept.records.iter().filter(is_answer).count();
        self.progress.enter(title.to_owned(), n_kept as u64);
    }

    fn part(&mut self) -> Result<&mut Part> {
        self.part.as_mut().context("no group is being measured")
    }
}

impl Sink for Recorder {
    fn take(&mut self, record: Record, tokens: &[u32]) -> Result<()> {
        self.part()?.append(&record)?;
        match (&record.outcome, &record.prompt) {
            (Outcome::Ok(_), Some(prompt)) => {
                self.ledger.add(&record.cell, prompt, tokens);
                self.progress.take(&record);
            }
            (Outcome::Failed { why }, _) => {
                let cell = &record.cell;
                self.progress.say(&format!("failed: {cell}: {why}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn batch_done(&mut self, n_batches: usize) -> Result<()> {
        self.part()?.mark(n_batches)
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.is_asked()
    }
}
