//! `draftbench analyse calibrate`: fits sequential temperatures to the confidences that runs recorded.

use std::fs;
use std::str::FromStr as _;

use anyhow::{Context as _, Result, ensure};
use reports::{Outcome, RatedRound, SamplingKey, fit_temperatures};

use crate::cli::CalibrateArgs;
use crate::folder::{RECORDS, stored_records};
use crate::output::{Ending, Verdict, say};

/// Writes the temperatures of one arm's drafter.
///
/// # Errors
/// If a run cannot be read, holds no confidences of the arm, cut its drafts, or the file cannot be written.
pub(crate) fn calibrate(args: &CalibrateArgs) -> Ending {
    let sampling = SamplingKey::from_str(&args.sampling).context("--sampling")?;
    ensure!(
        args.method.split(':').any(|o| o == "calibration=off"),
        "--method {:?}: its confidences are scaled already; run and name it with calibration=off",
        args.method
    );
    let rounds = rated(args, sampling)?;
    ensure!(
        !rounds.is_empty(),
        "the runs hold no {sampling} confidences of --method {:?} on --target {:?}",
        args.method,
        args.target
    );
    ensure!(
        rounds.iter().all(|r| r.confidence.len() == r.verified),
        "--method {:?} cut drafts in these runs, and nothing is known about those; run it without schedule=",
        args.method
    );
    let views: Vec<RatedRound<'_>> = rounds.iter().map(Round::view).collect();
    let temperatures = fit_temperatures(&views);
    let text = serde_json::json!({ "temperatures": temperatures }).to_string();
    if let Some(parent) = args.out.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("--out {}: cannot be made", args.out.display()))?;
    }
    fs::write(&args.out, text + "\n")
        .with_context(|| format!("--out {}: cannot be written", args.out.display()))?;
    let shown: Vec<String> = temperatures.iter().map(|t| format!("{t:.3}")).collect();
    say(&format!(
        "{} rounds, temperatures {}\n{}\n",
        rounds.len(),
        shown.join(" "),
        args.out.display()
    ))?;
    Ok(Verdict::Fine)
}

struct Round {
    confidence: Vec<f32>,
    verified: usize,
    accepted: usize,
}

impl Round {
    fn view(&self) -> RatedRound<'_> {
        RatedRound {
            confidence: &self.confidence,
            verified: self.verified,
            accepted: self.accepted,
        }
    }
}

fn rated(args: &CalibrateArgs, sampling: SamplingKey) -> Result<Vec<Round>> {
    let mut out = Vec::new();
    for run in &args.runs {
        let records = stored_records(run)?;
        let nothing = || {
            format!(
                "{}: holds no {RECORDS}; name the folder of a run",
                run.display()
            )
        };
        for record in records.with_context(nothing)? {
            let cell = &record.cell;
            let is_asked = cell.method == args.method && cell.target == args.target;
            if !is_asked || cell.sampling != sampling {
                continue;
            }
            let Outcome::Ok(answer) = record.outcome else {
                continue;
            };
            let rounds = answer.rounds;
            let confidences = rounds.confidence_ppm.iter().flatten();
            let counts = rounds.verified.iter().zip(&rounds.accepted);
            out.extend(
                confidences
                    .zip(counts)
                    .map(|(ppm, (verified, accepted))| Round {
                        confidence: ppm.iter().map(|c| *c as f32 / 1e6).collect(),
                        verified: *verified as usize,
                        accepted: *accepted as usize,
                    }),
            );
        }
    }
    Ok(out)
}
