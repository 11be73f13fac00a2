//! What a group's numbers depend on, and the id made of it: settings, prompts, weights, engine.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use models::{DecoderConfig, Precision, Source};
use rayon::prelude::*;
use reports::{ArrivalKey, Cell, SamplingKey, Thinking};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arms::DrafterPlan;
use crate::data;
use crate::engine::passes;
use crate::group::Group;
use crate::plan::Plan;

/// Files of a model folder that a result depends on, by their ending.
const ENDINGS: [&str; 3] = ["json", "safetensors", "jinja"];

/// Everything that a group's records depend on, timings apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Content {
    /// Target id.
    pub(crate) target: String,
    /// Suite id.
    pub(crate) suite: String,
    /// How tokens are chosen.
    pub(crate) sampling: SamplingKey,
    /// Thinking switch.
    pub(crate) thinking: Thinking,
    /// Sequences at once.
    pub(crate) concurrency: u32,
    /// When requests come.
    #[serde(default, skip_serializing_if = "ArrivalKey::is_closed")]
    pub(crate) arrivals: ArrivalKey,
    /// Arms in column order, those that are skipped included.
    pub(crate) methods: Vec<String>,
    /// Prompts taken from the suite.
    pub(crate) prompts: usize,
    /// Their turns, each of which is an answer.
    pub(crate) turns: usize,
    /// Answers to each prompt.
    pub(crate) samples: u32,
    /// Most tokens of an answer.
    pub(crate) max_new: usize,
    /// Seed of all streams.
    pub(crate) seed: u64,
    /// SHA-256 of the prompts taken and their references, in the order they are asked, as canonical JSON.
    pub(crate) suite_sha256: String,
    /// SHA-256 of the target's files.
    pub(crate) target_sha256: String,
    /// SHA-256 of each drafter's files by arm; null where the drafter is absent.
    pub(crate) drafters_sha256: BTreeMap<String, Option<String>>,
    /// How weight matrices are kept.
    #[serde(default, skip_serializing_if = "is_f32")]
    pub(crate) dtype: Precision,
    /// What decodes, and its version.
    pub(crate) engine: String,
}

fn is_f32(dtype: &Precision) -> bool {
    *dtype == Precision::F32
}

impl Content {
    /// SHA-256 over canonical JSON: keys sorted, no spaces.
    pub(crate) fn id(&self) -> String {
        let value = serde_json::to_value(self).expect("a content has string keys");
        sha256_of_json(&value)
    }

    /// Coordinates of one of its cells.
    pub(crate) fn cell(&self, method: &str) -> Cell {
        Cell {
            target: self.target.clone(),
            suite: self.suite.clone(),
            sampling: self.sampling,
            thinking: self.thinking,
            concurrency: self.concurrency,
            arrivals: self.arrivals,
            method: method.to_owned(),
        }
    }

    /// How errors name the group.
    pub(crate) fn title(&self) -> String {
        let title = format!(
            "{} / {} / {} / thinking {} / concurrency {}",
            self.target, self.suite, self.sampling, self.thinking, self.concurrency
        );
        match self.arrivals {
            ArrivalKey::Closed => title,
            open => format!("{title} / {open}"),
        }
    }

    /// Tokens that it decodes at most.
    pub(crate) fn most_tokens(&self) -> u64 {
        let absent = self.drafters_sha256.values().filter(|d| d.is_none());
        let n_arms = self.methods.len() - absent.count();
        let n_answers = self.turns as u64 * u64::from(self.samples) * n_arms as u64;
        n_answers * u64::from(passes(self.concurrency, self.arrivals)) * self.max_new as u64
    }

    /// Seconds that it takes at most at so many tokens a second; in open loop at least until the last request has come.
    pub(crate) fn most_secs(&self, rate: u64) -> u64 {
        let tokens = self.most_tokens();
        let decoding = tokens.div_ceil(rate.max(1));
        let Some(per_sec) = self.arrivals.per_sec() else {
            return decoding;
        };
        let n_answers = tokens / (self.max_new as u64).max(1);
        decoding.max((n_answers as f64 / per_sec).ceil() as u64)
    }

    /// What is different now, key by key.
    pub(crate) fn changes(&self, now: &Self) -> Vec<String> {
        let flat = |content: &Self| {
            let mut out = BTreeMap::new();
            if let Ok(Value::Object(map)) = serde_json::to_value(content) {
                for (key, value) in map {
                    match value {
                        Value::Object(inner) => {
                            let inner = inner.into_iter();
                            out.extend(inner.map(|(k, v)| (format!("{key} of {k}"), v)));
                        }
                        value => drop(out.insert(key, value)),
                    }
                }
            }
            out
        };
        let (before, now) = (flat(self), flat(now));
        let keys: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let differs = |key: &&String| before.get(*key) != now.get(*key);
        let said = |value: Option<&Value>| match value {
            None | Some(Value::Null) => "absent".to_owned(),
            Some(Value::String(text)) if text.len() == 64 => format!("{}...", &text[..12]),
            Some(value) => value.to_string(),
        };
        keys.into_iter()
            .filter(differs)
            .map(|key| {
                let (before, now) = (said(before.get(key)), said(now.get(key)));
                format!("{key} was {before} and is {now}")
            })
            .collect()
    }
}

/// Hashes of what a plan needs, each computed once.
#[derive(Debug, Default)]
pub(crate) struct Hashes {
    models: BTreeMap<String, String>,
    suites: BTreeMap<String, String>,
}

impl Hashes {
    /// What one group of a plan depends on.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn content(&mut self, plan: &Plan, group: &Group) -> Result<Content> {
        let target = &plan.targets[group.target];
        let mut drafters = BTreeMap::new();
        for arm in &group.arms {
            match &target.drafters[*arm] {
                DrafterPlan::Ready(_, None) => {}
                DrafterPlan::Ready(arm, Some(source)) => {
                    drafters.insert(arm.key().to_owned(), Some(self.model(source)?));
                }
                DrafterPlan::Skipped(arm, _) => drop(drafters.insert(arm.key().to_owned(), None)),
            }
        }
        let key = |arm: &usize| plan.arms[*arm].key().to_owned();
        Ok(Content {
            target: target.spec.id.to_owned(),
            suite: group.suite.to_owned(),
            sampling: group.setting.sampling,
            thinking: group.setting.thinking,
            concurrency: group.setting.concurrency,
            arrivals: group.setting.arrivals,
            methods: group.arms.iter().map(key).collect(),
            prompts: plan.library.prompts(group.suite).len(),
            turns: plan.library.n_turns(group.suite),
            samples: group.samples,
            max_new: plan.limits.max_new,
            seed: plan.limits.seed,
            suite_sha256: self.suite(group.suite, &plan.library),
            target_sha256: self.model(&target.source)?,
            drafters_sha256: drafters,
            dtype: target.precision,
            engine: concat!("local ", env!("CARGO_PKG_VERSION")).to_owned(),
        })
    }

    fn model(&mut self, source: &Source) -> Result<String> {
        let place = source.place();
        if let Some(known) = self.models.get(&place) {
            return Ok(known.clone());
        }
        let hash = model_sha256(source)?;
        self.models.insert(place, hash.clone());
        Ok(hash)
    }

    fn suite(&mut self, id: &str, library: &data::Library) -> String {
        if let Some(known) = self.suites.get(id) {
            return known.clone();
        }
        let prompts = library.prompts(id).iter();
        let prompts: Value = prompts
            .map(|p| serde_json::json!([p.id.to_string(), p.turns, p.reference]))
            .collect();
        let hash = sha256_of_json(&prompts);
        self.suites.insert(id.to_owned(), hash.clone());
        hash
    }
}

/// SHA-256 over the names and hashes of a model's files.
fn model_sha256(source: &Source) -> Result<String> {
    let mut lines: Vec<String> = match source {
        Source::Random(files) => vec![format!("random weights for {}\n", model_sha256(files)?)],
        Source::Embedded { files, .. } => files
            .par_iter()
            .filter(|(name, _)| is_content(name))
            .map(|(name, bytes)| format!("{name} {}\n", datasets::sha256_bytes(bytes)))
            .collect(),
        Source::Dir(_) => model_files(source)?
            .par_iter()
            .map(|(name, path)| {
                let hash = datasets::sha256_file(path)
                    .with_context(|| format!("{}: cannot be read", path.display()))?;
                Ok(format!("{name} {hash}\n"))
            })
            .collect::<Result<_>>()?,
        // The file holds all of them, whatever it is named.
        Source::Gguf(gguf) => {
            let path = gguf.path();
            let hash = datasets::sha256_file(path)
                .with_context(|| format!("{}: cannot be read", path.display()))?;
            vec![format!("gguf {hash}\n")]
        }
    };
    lines.sort();
    Ok(datasets::sha256_bytes(lines.concat().as_bytes()))
}

fn is_content(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    ENDINGS.contains(&ending)
}

/// Names and paths of the files of a model folder, sorted; none for a model of another kind.
fn model_files(source: &Source) -> Result<Vec<(String, PathBuf)>> {
    let Source::Dir(dir) = source else {
        return Ok(Vec::new());
    };
    let what = || format!("{}: cannot be listed", dir.display());
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).with_context(what)? {
        let path = entry.with_context(what)?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
        if let Some(name) = name.filter(|name| path.is_file() && is_content(name)) {
            out.push((name, path));
        }
    }
    out.sort();
    Ok(out)
}

/// Bytes of a model's weight files; of a GGUF file, those of its tensors once they are f32, and so of random weights, as
/// far as one row meets them and they are a target's.
///
/// # Errors
/// If a folder cannot be listed.
pub(crate) fn weight_file_bytes(source: &Source) -> Result<u64> {
    let is_weights = |name: &str| name.ends_with(".safetensors");
    match source {
        Source::Embedded { files, .. } => {
            let weights = files.iter().filter(|(name, _)| is_weights(name));
            Ok(weights.map(|(_, bytes)| bytes.len() as u64).sum())
        }
        Source::Dir(_) => {
            let mut sum = 0;
            for (_, path) in model_files(source)?.iter().filter(|(n, _)| is_weights(n)) {
                let meta = fs::metadata(path);
                sum += meta
                    .with_context(|| format!("{}: cannot be read", path.display()))?
                    .len();
            }
            Ok(sum)
        }
        Source::Gguf(gguf) => Ok(gguf.f32_bytes()),
        Source::Random(files) => {
            let config = DecoderConfig::load(files).ok();
            Ok(config.map_or(0, |config| 4 * config.weights_per_row() as u64))
        }
    }
}

/// SHA-256 of a value's canonical JSON, hexadecimal.
pub(crate) fn sha256_of_json(value: &Value) -> String {
    datasets::sha256_bytes(sorted(value).to_string().as_bytes())
}

/// The value with the keys of every map in byte-wise order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(map) => {
            let map: BTreeMap<&String, Value> = map.iter().map(|(k, v)| (k, sorted(v))).collect();
            map.into_iter().map(|(k, v)| (k.clone(), v)).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_does_not_change_a_hash() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let a = value(r#"{"b": [1, {"d": 2, "c": 3}], "a": null}"#);
        let b = value(r#"{"a": null, "b": [1, {"c": 3, "d": 2}]}"#);
        assert_eq!(sha256_of_json(&a), sha256_of_json(&b));
        assert_eq!(
            sorted(&a).to_string(),
            r#"{"a":null,"b":[1,{"c":3,"d":2}]}"#
        );
    }

    #[test]
    fn a_changed_file_changes_the_hash_and_a_note_beside_it_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let source = Source::Dir(dir.path().to_owned());
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        let first = model_sha256(&source).unwrap();
        fs::write(dir.path().join("README.md"), "hello").unwrap();
        assert_eq!(model_sha256(&source).unwrap(), first);
        fs::write(dir.path().join("config.json"), "{ }").unwrap();
        assert_ne!(model_sha256(&source).unwrap(), first);
    }
}
