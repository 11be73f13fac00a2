//! `run.json`: what was asked for, by which program, where, in how many sittings.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use reports::SCHEMA;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::Origin;
use crate::execute::Sandbox;
use crate::machine::{self, Machine};
use crate::plan::Plan;
use crate::plan_file::PlanFile;
use crate::provenance::{self, Caller};
use crate::schedule::CostTable;
use crate::shard::Shard;

/// The file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunInfo {
    schema: u32,
    /// Id of the run.
    pub(crate) run: String,
    version: &'static str,
    /// See [`provenance::GIT_COMMIT`].
    git_commit: &'static str,
    /// Hash of the plan; runs of one plan can be merged.
    plan_sha256: String,
    /// The part of the plan that this run does, as `I/N`; `None` is all.
    shard: Option<String>,
    started_unix_secs: u64,
    /// Whether every group is there; not so while the run is on, after an interruption, or where a group failed.
    pub(crate) complete: bool,
    asked: Asked,
    /// Groups of the run that could not be measured.
    pub(crate) n_failed_groups: usize,
    /// What verify passes cost, measured at start where a scheduler asks for it.
    pub(crate) step_costs: Vec<CostTable>,
    /// What it took to load each target with its drafters, each time.
    pub(crate) loads: Vec<Loaded>,
    /// This sitting's machine, which is among `sittings` too.
    #[serde(skip)]
    pub(crate) machine: Machine,
    /// One entry a process that worked on the run, oldest first.
    sittings: Vec<Value>,
    /// Versions of the crates that this program was built from.
    crates: BTreeMap<String, String>,
}

/// A target that was made ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// Its id.
    pub(crate) target: String,
    /// Time to render its prompts and to load it and its drafters.
    pub(crate) ns: u64,
}

/// One process that worked on a run.
#[derive(Clone, Debug, Serialize)]
struct Sitting {
    started_unix_secs: u64,
    version: &'static str,
    git_commit: &'static str,
    pid: u32,
    #[serde(flatten)]
    caller: Caller,
    machine: Machine,
}

#[derive(Clone, Debug, Serialize)]
struct Asked {
    preset: String,
    targets: Vec<AskedTarget>,
    methods: Vec<String>,
    suites: Vec<&'static str>,
    /// Where the prompts come from.
    data: Vec<Origin>,
    prompts: Option<u32>,
    /// How weight matrices are kept.
    dtype: &'static str,
    samples: u32,
    max_new: usize,
    seed: u64,
    notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct AskedTarget {
    id: &'static str,
    from: String,
}

impl RunInfo {
    /// The run as it begins.
    ///
    /// # Errors
    /// Never in practice: a sitting has string keys.
    pub(crate) fn new(
        run: String,
        plan: &Plan,
        file: &PlanFile,
        shard: Option<Shard>,
        caller: &Caller,
    ) -> Result<Self> {
        let now = machine::now().0;
        let targets = plan.targets.iter().map(|t| AskedTarget {
            id: t.spec.id,
            from: t.source.place(),
        });
        let machine = Machine::look();
        let sitting = Sitting {
            started_unix_secs: now,
            version: env!("CARGO_PKG_VERSION"),
            git_commit: provenance::GIT_COMMIT,
            pid: std::process::id(),
            caller: caller.clone(),
            machine: machine.clone(),
        };
        Ok(Self {
            schema: SCHEMA,
            run,
            version: env!("CARGO_PKG_VERSION"),
            git_commit: provenance::GIT_COMMIT,
            plan_sha256: file.sha256.clone(),
            shard: shard.map(|s| s.to_string()),
            started_unix_secs: now,
            complete: false,
            asked: Asked {
                preset: plan.request.name.clone(),
                targets: targets.collect(),
                methods: plan.arms.iter().map(|a| a.key().to_owned()).collect(),
                suites: plan.suites.clone(),
                data: plan.library.origins(),
                prompts: plan.request.matrix.prompts,
                dtype: plan.dtype().name(),
                samples: plan.limits.samples,
                max_new: plan.limits.max_new,
                seed: plan.limits.seed,
                notes: plan.notes.clone(),
            },
            n_failed_groups: 0,
            step_costs: Vec::new(),
            loads: Vec::new(),
            machine,
            sittings: vec![serde_json::to_value(sitting)?],
            crates: provenance::crates(),
        })
    }

    /// Says of this sitting how it runs the code of answers.
    ///
    /// # Errors
    /// Never in practice: a sandbox has string keys.
    pub(crate) fn execute(&mut self, sandbox: &Sandbox) -> Result<()> {
        if let Some(sitting) = self.sittings.last_mut() {
            sitting["execute_code"] = serde_json::to_value(sandbox)?;
        }
        Ok(())
    }

    /// How this sitting runs the code of answers; null if it does not.
    pub(crate) fn executes(&self) -> Value {
        let now = self.sittings.last();
        now.map_or(Value::Null, |sitting| sitting["execute_code"].clone())
    }

    /// Goes on with the run that `before` describes: its id, its start, its step costs, its loads, its sittings.
    ///
    /// # Errors
    /// If `before` is no description of a run.
    pub(crate) fn go_on(&mut self, before: &Value) -> Result<()> {
        let what = "run.json: is no description of a run";
        self.run = before["run"].as_str().context(what)?.to_owned();
        self.started_unix_secs = before["started_unix_secs"].as_u64().context(what)?;
        self.step_costs = serde_json::from_value(before["step_costs"].clone()).context(what)?;
        if let Some(loads) = before.get("loads") {
            self.loads = serde_json::from_value(loads.clone()).context(what)?;
        }
        let mut sittings = before["sittings"].as_array().context(what)?.clone();
        sittings.append(&mut self.sittings);
        self.sittings = sittings;
        Ok(())
    }
}

/// The machines of a stored run, as the foot of a table names them: cores and threads of each, once.
pub(crate) fn machines(run: &Value) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let dtype = run["asked"]["dtype"].as_str().unwrap_or("f32");
    for sitting in run["sittings"].as_array().into_iter().flatten() {
        let machine = &sitting["machine"];
        let cpu = machine["cpu"].as_str().unwrap_or("unknown processor");
        let line = format!(
            "{cpu}, {} cores, {} threads, {dtype} on the CPU",
            machine["cores"], machine["threads"]
        );
        if !out.contains(&line) {
            out.push(line);
        }
    }
    out
}
