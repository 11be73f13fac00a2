//! How a run begins: from what was typed, from a stored plan, or where an earlier sitting of it stopped.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::assets::ModelPaths;
use crate::cli::RunArgs;
use crate::data;
use crate::folder::{self, PLAN, RunFolder};
use crate::plan::{self, Plan, Request};
use crate::plan_file::{Places, PlanFile};
use crate::provenance::Caller;
use crate::shard::Shard;

/// A run that may begin.
pub(crate) struct Start {
    /// The groups of this run, and nothing else.
    pub(crate) plan: Plan,
    /// The plan that they are of.
    pub(crate) file: PlanFile,
    /// For each group of `plan` its place in `file`.
    pub(crate) mine: Vec<usize>,
    /// The part of the plan that `mine` is.
    pub(crate) shard: Option<Shard>,
    /// Folder of the run.
    pub(crate) out: PathBuf,
    /// Id of the run, if it is a new one.
    pub(crate) run: String,
    /// `run.json` of an earlier sitting.
    pub(crate) before: Option<Value>,
}

/// Finds out what to do, and that the folder is free or holds this very run.
///
/// # Errors
/// For bad input; nothing is written.
pub(crate) fn start(args: &RunArgs, caller: &Caller) -> Result<Start> {
    let run = plan::run_id();
    data::check(&args.select.data.dir)?;
    if let Some(dir) = &args.resume {
        if let Some((file, before)) = RunFolder::at(dir).begun()? {
            return resume(args, dir, file, before);
        }
        ensure!(
            args.plan.is_some(),
            "--resume {}: holds no {PLAN} of a run; name the folder of an interrupted run, or start it with --out",
            dir.display()
        );
    }
    let Some(path) = &args.plan else {
        let plan = plan::resolve(Request::typed(&args.select)?)?;
        let nothing = || match plan.skipped.first() {
            Some(skip) => format!("nothing can be run: {}", skip.why),
            None => "nothing is left to run: everything is excluded".to_owned(),
        };
        ensure!(!plan.groups.is_empty(), "{}", nothing());
        let out = args.out.clone().unwrap_or_else(|| plan::default_out(&run));
        plan::start_threads(&args.select.machine)?;
        folder::check(&out)?;
        let file = PlanFile::of(&plan)?;
        return Ok(Start {
            mine: (0..file.groups.len()).collect(),
            plan,
            file,
            shard: None,
            out,
            run,
            before: None,
        });
    };
    let file = PlanFile::read(path)?;
    let shard = shard(args, caller)?;
    let mine = pick(&file, shard);
    let out = match args.out.as_ref().or(args.resume.as_ref()) {
        Some(dir) => dir.clone(),
        None => plan::default_out(&run),
    };
    plan::start_threads(&args.select.machine)?;
    if args.resume.is_none() {
        folder::check(&out)?;
    }
    let plan = file.revive(&mine, places(args, &args.select.machine.models()))?;
    Ok(Start {
        plan,
        file,
        mine,
        shard,
        out,
        run,
        before: None,
    })
}

fn resume(args: &RunArgs, dir: &Path, file: PlanFile, before: Value) -> Result<Start> {
    ensure!(
        before["merged_from"].is_null(),
        "--resume {}: was merged from other runs; resume those and merge them again",
        dir.display()
    );
    let shard = match before["shard"].as_str() {
        None => None,
        Some(text) => Some(text.parse::<Shard>().context("run.json")?),
    };
    if let Some(path) = &args.plan {
        let asked = PlanFile::read(path)?;
        ensure!(
            asked.sha256 == file.sha256,
            "--resume {}: was begun with another plan than --plan {}; leave --plan out to go on with its own",
            dir.display(),
            path.display()
        );
    }
    if let Some(text) = &args.shard {
        let asked: Shard = text.parse()?;
        if shard != Some(asked) {
            let begun = shard.map_or("the whole plan".to_owned(), |s| format!("shard {s}"));
            bail!(
                "--resume {}: was begun as {begun}, not as --shard {asked}; leave --shard out",
                dir.display()
            );
        }
    }
    plan::start_threads(&args.select.machine)?;
    let mine = pick(&file, shard);
    let plan = file.revive(&mine, places(args, &args.select.machine.models()))?;
    Ok(Start {
        plan,
        file,
        mine,
        shard,
        out: dir.to_owned(),
        run: String::new(),
        before: Some(before),
    })
}

fn places<'a>(args: &'a RunArgs, models: &'a ModelPaths) -> Places<'a> {
    Places {
        models,
        data: &args.select.data.dir,
    }
}

/// What was typed, or what the batch system says.
fn shard(args: &RunArgs, caller: &Caller) -> Result<Option<Shard>> {
    match &args.shard {
        Some(text) => Ok(Some(text.parse()?)),
        None => Shard::from_environment(|name| caller.var(name)),
    }
}

fn pick(file: &PlanFile, shard: Option<Shard>) -> Vec<usize> {
    match shard {
        None => (0..file.groups.len()).collect(),
        Some(shard) => {
            let costs: Vec<u64> = file.groups.iter().map(|g| g.cost).collect();
            shard.pick(&costs)
        }
    }
}
