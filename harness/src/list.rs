//! `draftbench list`.

use std::collections::BTreeSet;

use models::Files;

use crate::assets::{ModelPaths, Shelf};
use crate::output::{Ending, Verdict, say};
use crate::preset;

/// Prints every id that the other commands accept.
///
/// # Errors
/// If a suite does not load or standard output is closed.
pub(crate) fn list() -> Ending {
    let inside = Shelf::new(&ModelPaths::default())?;
    let mut out = String::from("targets\n");
    for spec in models::TARGETS {
        let files = match spec.files {
            Files::Embedded if inside.find(spec.id).is_some() => "inside the binary".to_owned(),
            Files::Embedded => {
                "meant to be inside the binary, but this build has no weights".to_owned()
            }
            Files::Checkpoint { repository } => {
                format!("--checkpoints or --weights, files of {repository}")
            }
        };
        out.push_str(&row(spec.id, &format!("{} ({files})", spec.title)));
    }
    out.push_str("methods\n");
    for method in baselines::METHODS {
        let needs = match method.checkpoint {
            None => "needs no weights".to_owned(),
            Some(suffix) => {
                let has =
                    |t: &&models::TargetSpec| inside.find(&format!("{}-{suffix}", t.id)).is_some();
                let ready: Vec<&str> = models::TARGETS.iter().filter(has).map(|t| t.id).collect();
                let inside = match ready.is_empty() {
                    true => "none".to_owned(),
                    false => ready.join(", "),
                };
                format!("weights in <target>-{suffix}/; inside the binary for: {inside}")
            }
        };
        out.push_str(&row(method.id, &format!("{} ({needs})", method.title)));
        for (name, what) in method.options {
            out.push_str(&row(&format!("  :{name}="), what));
        }
    }
    out.push_str("options of every method with a drafter, as METHOD:KEY=VALUE\n");
    for (name, what) in baselines::COMMON_OPTIONS {
        out.push_str(&row(&format!("  :{name}="), what));
    }
    if !baselines::PRESETS.is_empty() {
        out.push_str("methods by a shorter name\n");
    }
    for (name, spelled) in baselines::PRESETS {
        out.push_str(&row(name, spelled));
    }
    out.push_str("presets\n");
    for id in preset::ids() {
        let preset = preset::load(id)?;
        let arms: BTreeSet<&String> = preset.blocks.iter().flat_map(|b| &b.methods).collect();
        out.push_str(&row(
            id,
            &format!("{} ({} methods and vanilla)", preset.title, arms.len()),
        ));
    }
    out.push_str("suites\n");
    for id in suites::ids() {
        let suite = suites::load(id)?;
        let about = format!("{} ({} prompts)", suite.title, suite.prompts.len());
        out.push_str(&row(id, &about));
    }
    for id in suites::public_ids() {
        let public = suites::public(id)?;
        let about = format!("{} ({} prompts, --data-dir)", public.title, public.rows);
        out.push_str(&row(id, &about));
    }
    out.push_str("sets of suites\n");
    for set in suites::SETS {
        let about = format!("{} (cut by the rule {})", set.title, set.subset);
        out.push_str(&row(set.id, &about));
    }
    say(&out)?;
    Ok(Verdict::Fine)
}

fn row(id: &str, about: &str) -> String {
    format!("  {id:<24}{about}\n")
}
