//! The study: what records say about channels, training, selection, K, gamma and cost, as tables and plots.

pub(crate) mod plot;
mod png;
pub(crate) mod pool;
pub(crate) mod sheet;
mod sheets;

use std::collections::{BTreeMap, BTreeSet};

use crate::coverage::CoverageRecord;
use crate::peers::Peer;
use crate::record::{Outcome, Record};
use crate::step_costs::StepCosts;

pub use plot::{Plot, PlotError, PlotStyle, Series};
pub use sheet::{Sheet, splice};

/// Tables and plots of one target's runs.
#[derive(Clone, Debug)]
pub struct Study {
    /// In the order a reader wants them.
    pub sheets: Vec<Sheet>,
    /// In the same order.
    pub plots: Vec<Plot>,
}

/// What was measured of a target outside its runs.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere {
    /// What its steps cost by their rows.
    pub costs: Option<StepCosts>,
    /// What another program accepted of its drafters.
    pub peers: Vec<Peer>,
}

/// Names of all tables and plots, in their order; a plot has the name of its table, or one of its own.
pub const STUDY_IDS: [&str; 23] = [
    "methods",
    "sampled",
    "coverage",
    "channels",
    "training",
    "selection",
    "k",
    "gamma",
    "positions",
    "cost",
    "throughput",
    "calibration",
    "schedules",
    "suite-tau",
    "suite-speedup",
    "suite-tau-sampled",
    "suite-speedup-sampled",
    "concurrency",
    "repetition",
    "model",
    "signs",
    "llama",
    "missing",
];

/// Makes what the records of `target` and its coverage records allow; a table without an arm to show is left out.
///
/// Records of several runs may be given together, as long as no cell is in two of them.
pub fn study(
    records: &[Record],
    coverage: &[CoverageRecord],
    target: &str,
    elsewhere: &Elsewhere,
) -> Study {
    let coverage: Vec<CoverageRecord> = coverage
        .iter()
        .filter(|r| r.target == target)
        .cloned()
        .collect();
    let pools = pool::pools(records, target);
    let mut sheets = sheets::sheets(&pools, &coverage, elsewhere);
    sheets.extend(missing(records, target));
    Study {
        sheets,
        plots: plot::plots(&pools, &coverage),
    }
}

/// What was asked for and not answered, with the reason; `None` if there is none.
fn missing(records: &[Record], target: &str) -> Option<Sheet> {
    let mut found: BTreeSet<(String, String)> = BTreeSet::new();
    let mut left_out: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for record in records.iter().filter(|r| r.cell.target == target) {
        let method = &record.cell.method;
        match (&record.outcome, &record.prompt) {
            (Outcome::Ok(_) | Outcome::Started(_), _) => {}
            (Outcome::Failed { why }, _) => {
                found.insert((method.clone(), format!("failed: {why}")));
            }
            (Outcome::Skipped { .. }, Some(prompt)) => {
                let its = left_out.entry((method, &record.cell.suite)).or_default();
                its.insert(prompt.name());
            }
            (Outcome::Skipped { why }, None) => {
                found.insert((method.clone(), why.clone()));
            }
        }
    }
    for ((method, suite), prompts) in left_out {
        let n = prompts.len();
        let why = format!("{suite}: {n} prompts or turns left out, too long for the target");
        found.insert((method.to_owned(), why));
    }
    if found.is_empty() {
        return None;
    }
    let mut sheet = Sheet::new("missing", "Not measured", &["arm", "why"]);
    let rows = found.into_iter().map(|(method, why)| vec![method, why]);
    sheet.rows.extend(rows);
    Some(sheet)
}

/// The tables of coverage records alone: by position, and the oracle path by K.
pub fn coverage_sheets(records: &[CoverageRecord]) -> Vec<Sheet> {
    sheets::coverage_sheets(records)
}
