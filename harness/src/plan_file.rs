//! `plan.json`: a plan that other machines, or this one tomorrow, can run without deciding anything again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use models::{DecoderConfig, Precision};
use reports::Cell;
use serde::{Deserialize, Serialize};

use crate::arms::{DrafterPlan, TargetPlan};
use crate::assets::{ModelPaths, WeightsAt};
use crate::cli::DirArgs;
use crate::content::{Content, Hashes, sha256_of_json, weight_file_bytes};
use crate::engine::Tokens;
use crate::group::Group;
use crate::matrix::Matrix;
use crate::plan::{self, Absent, Plan, Request};

/// Version of the file's layout.
const SCHEMA: u32 = 1;
/// Memory bandwidth that the estimate of time assumes, bytes a second; a vanilla step reads every weight once.
const ASSUMED_BANDWIDTH: u64 = 8_000_000_000;
/// Prompt length that the estimate of memory assumes, in tokens.
const ASSUMED_PROMPT: usize = 1024;
/// Changes that an error tells.
const MAX_TOLD: usize = 4;

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanFile {
    schema: u32,
    /// SHA-256 over matrix, group ids, costs and skipped cells: what makes two plans the same.
    pub(crate) sha256: String,
    /// Name of the preset or file that it was made from.
    pub(crate) name: String,
    /// The folder of models when the plan was made; `--checkpoints` takes its place.
    pub(crate) checkpoints: Option<PathBuf>,
    /// The target's own files when the plan was made; `--weights` takes their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) weights: Option<WeightsAt>,
    /// How weight matrices are kept, f32 where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dtype: Option<Precision>,
    /// The folder of public suites when the plan was made; `--data-dir` takes its place.
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether records hold token ids.
    pub(crate) keep_tokens: bool,
    /// What was asked for.
    pub(crate) matrix: Matrix,
    /// What is measured, in this order.
    pub(crate) groups: Vec<PlannedGroup>,
    /// What cannot be.
    pub(crate) skipped: Vec<PlannedSkip>,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlannedGroup {
    /// SHA-256 of `content`.
    pub(crate) id: String,
    /// What its numbers depend on.
    pub(crate) content: Content,
    /// Tokens at most, times the target's weights in millions of bytes: what shards are balanced by.
    pub(crate) cost: u64,
    /// Left out where a run made its own plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) estimate: Option<Estimate>,
}

/// Where this machine has what a plan needs, as far as it was typed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// Models.
    pub(crate) models: &'a ModelPaths,
    /// Folder with public suites.
    pub(crate) data: &'a DirArgs,
}

/// A guess, from sizes alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Estimate {
    /// Vanilla tokens a second that it assumes.
    pub(crate) assumed_tokens_per_sec: u64,
    /// If every answer were as long as it may be and no draft helped.
    pub(crate) most_secs: u64,
    /// Weights of the target and all its drafters, and the target's cache; drafters' caches left out.
    pub(crate) memory_bytes: u64,
}

/// A group that cannot run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlannedSkip {
    /// Its cells, without the method.
    pub(crate) cell: Cell,
    /// Their methods.
    pub(crate) methods: Vec<String>,
    /// The reason.
    pub(crate) why: String,
}

impl PlanFile {
    /// The plan as a file, content ids computed.
    ///
    /// # Errors
    /// If a file of a model cannot be read.
    pub(crate) fn of(plan: &Plan) -> Result<Self> {
        let mut hashes = Hashes::default();
        let mut groups = Vec::new();
        for group in &plan.groups {
            let content = hashes.content(plan, group)?;
            let target = &plan.targets[group.target];
            let million = weight_file_bytes(&target.source)? / 1_000_000;
            groups.push(PlannedGroup {
                id: content.id(),
                cost: content.most_tokens() * million.max(1),
                content,
                estimate: None,
            });
        }
        let key = |arm: &usize| plan.arms[*arm].key().to_owned();
        let skipped = plan.skipped.iter().map(|skip| PlannedSkip {
            cell: skip.cell.clone(),
            methods: skip.arms.iter().map(key).collect(),
            why: skip.why.clone(),
        });
        let models = plan.request.models.absolute()?;
        let data_dir = &plan.request.data.data_dir;
        let mut file = Self {
            schema: SCHEMA,
            sha256: String::new(),
            name: plan.request.name.clone(),
            checkpoints: models.checkpoints,
            weights: models.weights,
            dtype: models.dtype,
            data_dir: data_dir.as_ref().map(std::path::absolute).transpose()?,
            keep_tokens: plan.tokens == Tokens::Kept,
            matrix: plan.request.matrix.clone(),
            groups,
            skipped: skipped.collect(),
        };
        file.sha256 = file.hash();
        Ok(file)
    }

    /// Adds time and memory; `rate` is vanilla's tokens a second, if stated.
    ///
    /// # Errors
    /// If a config or a weight file cannot be read.
    pub(crate) fn estimate(&mut self, plan: &Plan, rate: Option<u32>) -> Result<()> {
        for (planned, group) in self.groups.iter_mut().zip(&plan.groups) {
            let target = &plan.targets[group.target];
            let weights = f32_bytes(target)?;
            let own = ASSUMED_BANDWIDTH / weights.max(1);
            let rate = rate.map_or(own, u64::from).max(1);
            planned.estimate = Some(Estimate {
                assumed_tokens_per_sec: rate,
                most_secs: planned.content.most_secs(rate),
                memory_bytes: memory_bytes(plan, group)?,
            });
        }
        Ok(())
    }

    /// Reads a file and checks that nobody edited it.
    ///
    /// # Errors
    /// If it cannot be read, is of another version, or its hashes do not fit what it says.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("{}: cannot be read", path.display()))?;
        let what = || format!("{}: is no plan of this version", path.display());
        let file: Self = serde_json::from_str(&text).with_context(what)?;
        ensure!(
            file.schema == SCHEMA,
            "{}: schema is {}, this program reads {SCHEMA}; make the plan again",
            path.display(),
            file.schema
        );
        let is_whole = file.groups.iter().all(|g| g.id == g.content.id());
        ensure!(
            is_whole && file.sha256 == file.hash(),
            "{}: was edited, its hashes no longer fit; change the matrix and make the plan again with `draftbench plan --out`",
            path.display()
        );
        Ok(file)
    }

    /// The file's text.
    pub(crate) fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("a plan has string keys") + "\n"
    }

    fn hash(&self) -> String {
        let groups: Vec<_> = self.groups.iter().map(|g| (&g.id, g.cost)).collect();
        let skipped: Vec<_> = self.skipped.iter().map(|s| (&s.cell, &s.methods)).collect();
        sha256_of_json(&serde_json::json!({
            "schema": self.schema,
            "matrix": self.matrix,
            "keep_tokens": self.keep_tokens,
            "groups": groups,
            "skipped": skipped,
        }))
    }

    /// The plan again, with only the groups of `mine` (indices into the file's groups), in that order. Everything that
    /// they depend on is hashed anew and compared.
    ///
    /// # Errors
    /// If one of them cannot run here or depends on something that is no longer what it was.
    pub(crate) fn revive(&self, mine: &[usize], places: Places<'_>) -> Result<Plan> {
        let mut plan = plan::resolve(Request {
            name: self.name.clone(),
            matrix: self.matrix.clone(),
            models: places.models.or(&ModelPaths {
                checkpoints: self.checkpoints.clone(),
                weights: self.weights.clone(),
                dtype: self.dtype,
            }),
            data: DirArgs {
                data_dir: (places.data.data_dir.clone()).or_else(|| self.data_dir.clone()),
                cache: places.data.cache.clone(),
            },
            tokens: match self.keep_tokens {
                true => Tokens::Kept,
                false => Tokens::Hashed,
            },
            absent: Absent::Skipped,
            notes: Vec::new(),
        })?;
        let mut hashes = Hashes::default();
        let mut groups = Vec::new();
        for planned in mine.iter().map(|idx| &self.groups[*idx]) {
            let then = &planned.content;
            let is_same = |g: &&Group| plan.cell(g, "") == then.cell("");
            let Some(group) = plan.groups.iter().find(is_same) else {
                let skipped = plan.skipped.iter().find(|s| s.cell == then.cell(""));
                let why = skipped.map_or("the matrix no longer comes to it", |s| s.why.as_str());
                bail!("{}: planned, but cannot run here: {why}", then.title());
            };
            let changes = then.changes(&hashes.content(&plan, group)?);
            ensure!(
                changes.is_empty(),
                "{}: no longer what was planned: {}; put it back, or make the plan again and start a new run",
                then.title(),
                changes[..changes.len().min(MAX_TOLD)].join("; ")
            );
            groups.push(group.clone());
        }
        plan.groups = groups;
        Ok(plan)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// If there is such a file or the system refuses.
    pub(crate) fn write_new(&self, path: &Path) -> Result<()> {
        let what = || format!("--out {}: cannot be written", path.display());
        ensure!(
            !path.exists(),
            "--out {}: is there already; choose another name or remove it",
            path.display()
        );
        let part = path.with_extension("json.tmp");
        fs::write(&part, self.text())
            .and_then(|()| fs::rename(&part, path))
            .with_context(what)
    }
}

/// Bytes of a target's weights once they are f32, from its config's dtype.
fn f32_bytes(target: &TargetPlan) -> Result<u64> {
    let bytes = weight_file_bytes(&target.source)?;
    Ok(bytes * widening(&target.source))
}

/// How much wider f32 is than the weights on disk: `torch_dtype` or `dtype` of config.json, f32 where it says nothing.
/// Random weights are f32.
fn widening(source: &models::Source) -> u64 {
    if let models::Source::Random(_) = source {
        return 1;
    }
    let config = source.read("config.json").ok();
    let config = config.and_then(|c| serde_json::from_slice::<serde_json::Value>(&c).ok());
    let dtype = config
        .as_ref()
        .and_then(|c| c.get("torch_dtype").or(c.get("dtype")));
    match dtype.and_then(|d| d.as_str()) {
        Some("bfloat16" | "float16") => 2,
        _ => 1,
    }
}

/// All weights of the target and its drafters as they are kept, and the target's cache of as many slots as the group decodes.
fn memory_bytes(plan: &Plan, group: &Group) -> Result<u64> {
    let target = &plan.targets[group.target];
    let mut bytes = f32_bytes(target)?;
    for drafter in &target.drafters {
        if let DrafterPlan::Ready(_, Some(source)) = drafter {
            bytes += weight_file_bytes(source)? * widening(source);
        }
    }
    if target.precision == Precision::Bf16 {
        bytes /= 2;
    }
    let config = DecoderConfig::load(&target.source)?;
    let positions = (ASSUMED_PROMPT + plan.limits.max_new).min(config.max_positions);
    let row = config.n_layers * config.n_kv_heads * config.head_dim * 2 * 4;
    Ok(bytes + (positions * row) as u64 * u64::from(group.setting.concurrency))
}
