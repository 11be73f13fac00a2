//! Whether a run may take the place of a saved one: four layers, from what has no noise to what has most.
//!
//! L0 reads the candidate alone and is exact. So is L1 but for right answers; it holds them, and vanilla's text,
//! against the reference's. L2 and L3 hold the candidate against the reference, paired by prompt; they fail only if a
//! whole interval lies below what the [`Policy`] allows. Intervals of a layer are wide enough to hold *together* with
//! the policy's confidence, however many pools it judges.

mod acceptance;
mod history;
mod junit;
mod known;
mod lossless;
mod policy;
mod reference;
mod right;
mod show;
mod throughput;
#[cfg(test)]
mod trial;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::paired::{Effect, Figure};
use crate::run_data::RunData;

pub use history::{
    Change, HISTORY_SCHEMA, HistoryError, HistoryLine, Point, changes, parse_history,
};
pub use policy::{
    AcceptancePolicy, Drafters, HistoryPolicy, LosslessnessPolicy, Policy, PolicyError,
    ThroughputPolicy, VanillaText,
};
pub use reference::{REFERENCE_SCHEMA, ReferenceError, parse_reference, reference_lines};

/// Version of the JSON that a report becomes.
pub const REPORT_SCHEMA: u32 = 1;

/// What a gate says; a later one is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As good as the reference, as far as the policy asks.
    Pass,
    /// The data cannot tell.
    Inconclusive,
    /// The two runs are no pair.
    Incomparable,
    /// Worse, or wrong.
    Fail,
}

impl Verdict {
    /// 0 pass, 1 fail, 2 incomparable, 3 inconclusive.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 1,
            Self::Incomparable => 2,
            Self::Inconclusive => 3,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Inconclusive => "inconclusive",
            Self::Incomparable => "incomparable",
            Self::Fail => "fail",
        })
    }
}

/// A layer's number and matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerId {
    /// L0: what is known of any run.
    KnownAnswers,
    /// L1: greedy text is vanilla's, and vanilla's the reference's.
    Losslessness,
    /// L2: acceptance length.
    Acceptance,
    /// L3: time.
    Throughput,
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KnownAnswers => "L0 known answers",
            Self::Losslessness => "L1 losslessness",
            Self::Acceptance => "L2 acceptance",
            Self::Throughput => "L3 throughput",
        })
    }
}

/// Whether a layer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Its verdict counts.
    Binding,
    /// It is only told.
    Advisory,
}

/// What a gate found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: u32,
    /// The worst of the layers that decide.
    pub verdict: Verdict,
    /// The saved run.
    pub reference: String,
    /// The run that is judged.
    pub candidate: String,
    /// The control of times.
    pub null: Option<String>,
    /// From L0 to L3.
    pub layers: Vec<Layer>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// Which.
    pub id: LayerId,
    /// Whether it decides.
    pub weight: Weight,
    /// The worst of its checks.
    pub verdict: Verdict,
    /// What it looked at.
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Why, in a line.
    pub detail: String,
    /// By how much the candidate differs, where that was measured.
    pub effect: Option<(Figure, Effect)>,
}

impl Check {
    fn new(name: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            verdict,
            detail: detail.into(),
            effect: None,
        }
    }
}

impl Layer {
    fn new(id: LayerId, weight: Weight, mut checks: Vec<Check>) -> Self {
        if checks.is_empty() {
            checks.push(Check::new(
                "-",
                Verdict::Inconclusive,
                "there is nothing to judge",
            ));
        }
        Self {
            id,
            weight,
            verdict: checks
                .iter()
                .map(|c| c.verdict)
                .max()
                .unwrap_or(Verdict::Inconclusive),
            checks,
        }
    }

    /// A layer that cannot be judged, since the records contradict themselves.
    fn unjudged(id: LayerId) -> Self {
        let why = "not judged, since records contradict themselves";
        Self::new(
            id,
            Weight::Advisory,
            vec![Check::new("-", Verdict::Inconclusive, why)],
        )
    }
}

/// Why a gate says nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// A method was measured and vanilla was not.
    #[error(
        "{label}: {cell} has answers and its vanilla cell has none; measure again, `draftbench run` always measures vanilla too"
    )]
    NoVanilla {
        /// The run.
        label: String,
        /// The method's cell.
        cell: String,
    },
    /// Acceptance of some arms was given.
    #[error(
        "{label}: {cell}: its acceptance is synthetic, given instead of measured, and no gate judges it; judge a run without such methods"
    )]
    Synthetic {
        /// The run.
        label: String,
        /// The first such cell.
        cell: Box<crate::Cell>,
    },
    /// The reference cannot be trusted.
    #[error(
        "{label}: is no reference, since its records contradict themselves; measure it again. The first: {fault}"
    )]
    BadReference {
        /// The reference.
        label: String,
        /// The first fault.
        fault: String,
    },
    /// The null control is of a third program.
    #[error(
        "--null {label}: was measured by program {program:?}, which is neither the reference's nor the candidate's; measure one of the two again with its own program"
    )]
    ForeignNull {
        /// The null control.
        label: String,
        /// Its program.
        program: String,
    },
    /// The null control is the run that it should control.
    #[error(
        "--null {label}: is the same run as {base}, and controls nothing; measure that one once more"
    )]
    NullIsItself {
        /// The null control.
        label: String,
        /// The run.
        base: String,
    },
}

/// The runs that a gate reads.
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// The saved run.
    pub reference: &'a RunData,
    /// The run that is judged.
    pub candidate: &'a RunData,
    /// A second run of the reference's program, or of the candidate's, on the same machine; without one, L3 is
    /// advisory.
    pub null: Option<&'a RunData>,
}

/// Judges the candidate.
///
/// # Errors
/// If a run holds arms of synthetic acceptance, the reference or the null control is of no use, or vanilla is missing in the candidate.
pub fn gate(input: GateInput<'_>, policy: &Policy) -> Result<Report, GateError> {
    let GateInput {
        reference,
        candidate,
        null,
    } = input;
    let runs = [reference, candidate].into_iter().chain(null);
    for run in runs {
        let cells = run.synthetic.iter().chain(run.cells.keys());
        if let Some(cell) = cells.into_iter().find(|cell| cell.is_synthetic()) {
            return Err(GateError::Synthetic {
                label: run.label.clone(),
                cell: Box::new(cell.clone()),
            });
        }
    }
    if let Some(fault) = reference.faults.first() {
        return Err(GateError::BadReference {
            label: reference.label.clone(),
            fault: fault.clone(),
        });
    }
    known::vanilla_is_there(candidate)?;
    let control = null
        .map(|null| throughput::control(input, null))
        .transpose()?;
    let known = Layer::new(
        LayerId::KnownAnswers,
        Weight::Binding,
        known::checks(candidate),
    );
    let is_sound = candidate.faults.is_empty();
    let judged = |id: LayerId, weight: Weight, checks: &dyn Fn() -> Vec<Check>| match is_sound {
        true => Layer::new(id, weight, checks()),
        false => Layer::unjudged(id),
    };
    let weight = match control {
        Some(_) => Weight::Binding,
        None => Weight::Advisory,
    };
    let layers = vec![
        known,
        judged(LayerId::Losslessness, Weight::Binding, &|| {
            lossless::checks(reference, candidate, policy)
        }),
        judged(LayerId::Acceptance, Weight::Binding, &|| {
            acceptance::checks(reference, candidate, policy)
        }),
        judged(LayerId::Throughput, weight, &|| {
            throughput::checks(reference, candidate, control, policy)
        }),
    ];
    let binding = layers.iter().filter(|l| l.weight == Weight::Binding);
    Ok(Report {
        schema: REPORT_SCHEMA,
        verdict: binding
            .map(|l| l.verdict)
            .max()
            .unwrap_or(Verdict::Inconclusive),
        reference: reference.label.clone(),
        candidate: candidate.label.clone(),
        null: null.map(|n| n.label.clone()),
        layers,
        notes: notes(input),
    })
}

fn notes(input: GateInput<'_>) -> Vec<String> {
    let (reference, candidate) = (input.reference, input.candidate);
    let mut notes = Vec::new();
    let (a, b) = (&reference.identity, &candidate.identity);
    if a.run == b.run {
        notes.push(format!(
            "the candidate is the reference's own run, {}",
            a.run
        ));
    }
    if a.program != b.program {
        notes.push(format!("program: was {}, is {}", a.program, b.program));
    }
    if input.null.is_none() {
        notes.push("without a null control (--null) times are told and decide nothing".to_owned());
    }
    let before = reference.pools();
    let new = candidate
        .pools()
        .into_iter()
        .filter(|p| !before.contains(p));
    let new: Vec<String> = new.map(|p| p.to_string()).collect();
    if !new.is_empty() {
        notes.push(format!(
            "not in the reference, and not judged by L2 and L3: {}",
            new.join("; ")
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
