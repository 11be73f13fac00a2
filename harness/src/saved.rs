//! A saved run as `compare` and `gate` read it, and who measured it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use reports::gate::parse_reference;
use reports::{GroupIdentity, Identity, RunData, Setting, read_records_unchecked};
use serde_json::Value;

use crate::folder::{PLAN, RECORDS, RUN, RunFolder};
use crate::plan_file::{PlanFile, PlannedGroup};

/// Type that this program computes in.
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
    let other = || format!("{label}: was measured by another version; measure it again");
    let begun = RunFolder::at(place).begun().with_context(other)?;
    let records = place.join(RECORDS);
    let Some((plan, info)) = begun else {
        bail!(
            "{label}: holds no {RUN} with its {PLAN}, which say what was measured; name the whole folder of a run"
        );
    };
    ensure!(
        records.is_file(),
        "{label}: is not complete; go on with it by `draftbench run --resume {label}`"
    );
    let records = read_records_unchecked(&records)?;
    Ok(RunData::new(&label, identity(&plan, &info), &records)?)
}

fn identity(plan: &PlanFile, info: &Value) -> Identity {
    let sittings = info["sittings"].as_array().map_or(&[][..], Vec::as_slice);
    Identity {
        run: info["run"].as_str().unwrap_or("unknown").to_owned(),
        program: each(sittings, program).join(" and "),
        hardware: match each(sittings, hardware).as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        },
        dtype: Some(DTYPE.to_owned()),
        groups: plan.groups.iter().map(group).collect(),
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

fn group(planned: &PlannedGroup) -> GroupIdentity {
    let content = &planned.content;
    GroupIdentity {
        setting: Setting::of(&content.cell("")),
        suite_sha256: content.suite_sha256.clone(),
        target_sha256: content.target_sha256.clone(),
        drafters_sha256: content.drafters_sha256.clone(),
        max_new: content.max_new as u64,
        seed: content.seed,
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
