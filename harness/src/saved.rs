//! A saved run as `compare` and `gate` read it, and who measured it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use reports::gate::parse_reference;
use reports::{
    ArrivalKey, GroupIdentity, Identity, RunData, SamplingKey, Setting, Thinking,
    read_records_unchecked,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::folder::{PLAN, RECORDS, RUN};

/// How weight matrices were kept where a run does not say it.
const DTYPE: &str = "f32";

/// Reads the folder of a complete run, or a reference that `gate record` wrote.
///
/// # Errors
/// If it is neither, of another version, or holds no answer.
pub(crate) fn read(place: &Path) -> Result<RunData> {
    let label = place.display().to_string();
    if place.is_file() {
        let text = fs::read_to_string(place).with_context(|| format!("{label}: cannot be read"))?;
        return Ok(parse_reference(&label, &text)?);
    }
    ensure!(
        place.is_dir(),
        "{label}: is not there; name the folder of a run, or a file that `draftbench gate record` wrote"
    );
    for name in [RUN, PLAN] {
        ensure!(
            place.join(name).is_file(),
            "{label}: holds no {name}, which says what was measured; name the whole folder of a run"
        );
    }
    let (plan, info): (Plan, Value) = (json(&place.join(PLAN))?, json(&place.join(RUN))?);
    ensure!(
        info["complete"] == true,
        "{label}: lacks some of its groups; go on with it by `draftbench run --resume {label}`, or merge it with the runs that have them"
    );
    let records = place.join(RECORDS);
    ensure!(
        records.is_file(),
        "{label}: is not complete; go on with it by `draftbench run --resume {label}`"
    );
    let records = read_records_unchecked(&records)?;
    Ok(RunData::new(&label, identity(plan, &info), &records)?)
}

/// What is read of `plan.json`. Keys that another version added or lacks are passed over: to compare versions is what
/// this is for, and it runs nothing.
#[derive(Deserialize)]
struct Plan {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    content: Content,
}

#[derive(Deserialize)]
struct Content {
    target: String,
    suite: String,
    sampling: SamplingKey,
    thinking: Thinking,
    concurrency: u32,
    #[serde(default)]
    arrivals: ArrivalKey,
    max_new: u64,
    seed: u64,
    suite_sha256: String,
    target_sha256: String,
    drafters_sha256: BTreeMap<String, Option<String>>,
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let place = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{place}: cannot be read"))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{place}: does not say what was measured; measure it again with this version")
    })
}

fn identity(plan: Plan, info: &Value) -> Identity {
    let sittings = info["sittings"].as_array().map_or(&[][..], Vec::as_slice);
    Identity {
        run: info["run"].as_str().unwrap_or("unknown").to_owned(),
        program: each(sittings, program).join(" and "),
        hardware: match each(sittings, hardware).as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        },
        dtype: Some(info["asked"]["dtype"].as_str().unwrap_or(DTYPE).to_owned()),
        groups: plan.groups.into_iter().map(group).collect(),
    }
}

/// What sittings say of themselves, once each.
fn each(sittings: &[Value], of: fn(&Value) -> String) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for said in sittings.iter().map(of) {
        if !out.contains(&said) {
            out.push(said);
        }
    }
    out
}

fn program(sitting: &Value) -> String {
    let text = |key: &str| sitting[key].as_str().unwrap_or("unknown").to_owned();
    format!("{} {}", text("version"), text("git_commit"))
}

/// Processor, cores and threads; never a frequency, which changes by itself.
fn hardware(sitting: &Value) -> String {
    let machine = &sitting["machine"];
    let cpu = machine["cpu"].as_str().unwrap_or("unknown processor");
    format!(
        "{cpu}, {} cores, {} threads",
        machine["cores"], machine["threads"]
    )
}

fn group(planned: Group) -> GroupIdentity {
    let Content {
        target,
        suite,
        sampling,
        thinking,
        concurrency,
        arrivals,
        max_new,
        seed,
        suite_sha256,
        target_sha256,
        drafters_sha256,
    } = planned.content;
    GroupIdentity {
        setting: Setting {
            target,
            suite,
            sampling,
            thinking,
            concurrency,
            arrivals,
        },
        suite_sha256,
        target_sha256,
        drafters_sha256,
        max_new,
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_over_two_machines_is_of_no_hardware_class() {
        let sitting = |cores: u32| serde_json::json!({"version": "1", "git_commit": "c", "machine": {"cpu": "x", "cores": cores, "threads": 2}});
        let (one, other) = (sitting(2), sitting(4));
        assert_eq!(
            each(&[one.clone(), one.clone()], hardware),
            ["x, 2 cores, 2 threads"]
        );
        assert_eq!(each(&[one.clone(), other], hardware).len(), 2);
        assert_eq!(program(&one), "1 c");
    }
}
