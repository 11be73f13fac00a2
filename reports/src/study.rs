//! The study: what records say about channels, training, selection, K, gamma and cost, as tables and plots.

mod plot;
mod png;
mod pool;
mod sheet;
mod sheets;

use crate::coverage::CoverageRecord;
use crate::record::Record;

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

/// Makes what the records of `target` and its coverage records allow; a table without an arm to show is left out.
///
/// Records of several runs may be given together, as long as no cell is in two of them.
pub fn study(records: &[Record], coverage: &[CoverageRecord], target: &str) -> Study {
    let coverage: Vec<CoverageRecord> = coverage
        .iter()
        .filter(|r| r.target == target)
        .cloned()
        .collect();
    let pools = pool::pools(records, target);
    Study {
        sheets: sheets::sheets(&pools, &coverage),
        plots: plot::plots(&pools, &coverage),
    }
}

/// The tables of coverage records alone: by position, and the oracle path by K.
pub fn coverage_sheets(records: &[CoverageRecord]) -> Vec<Sheet> {
    sheets::coverage_sheets(records)
}
