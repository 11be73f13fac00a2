//! Record schema, metrics and tables.
//!
//! A [`Record`] is one answer in whole numbers: tokens, rounds, nanoseconds. Every ratio is computed in
//! [`CellStats`] from pooled records and has its definition written there. Nothing here knows a model or a clock.

mod acceptance;
mod arrival_key;
mod bootstrap;
mod calibration;
pub mod compare;
mod contrast;
mod coverage;
mod export;
pub mod gate;
mod latency;
mod levels;
mod load;
mod metrics;
mod page;
mod paired;
mod peers;
mod places;
mod plain;
mod plots;
mod predict;
mod published;
mod rank;
mod record;
mod report_sheets;
mod run_data;
mod sampling_key;
mod stats;
mod step_costs;
mod store;
mod study;
mod sums;
mod survival;
mod synthetic;
mod table;
mod training_log;

pub use acceptance::{AcceptanceSums, Convention};
pub use arrival_key::{ArrivalKey, ArrivalKeyError};
pub use calibration::{Calibration, Claim, RatedRound, fit_temperatures};
pub use compare::compare;
pub use contrast::{Contrast, FALSE_DISCOVERIES, Measure, contrasts};
pub use coverage::{
    COVERAGE_K, COVERAGE_SCHEMA, CoverageRecord, Share, SlotCoverage, gap_between, oracle_tau,
    rescued_overall, slot_coverage,
};
pub use export::{
    Column, Columns, ExportError, PaperBlock, PaperCell, PaperRow, PaperTable, PaperValue, Rank,
    Values, answer_columns, bencher_json, level_columns, openmetrics, paper_tables,
    vllm_bench_json,
};
pub use latency::{Latency, Plateau, percentile};
pub use levels::{Averages, Domain, Estimate, Level, LevelKey, LevelRow, levels};
pub use metrics::{CellStats, Equality, cells};
pub use page::{PageInput, page, page_and_plots};
pub use paired::{Effect, Figure};
pub use peers::{Peer, PeerTau};
pub use plots::{NamedPlot, report_plots};
pub use predict::{
    CostError, CostInput, Prediction, Projection, RoundParts, VerifyCost, predictions, project,
};
pub use published::{
    Beside, Fit, Published, PublishedAt, PublishedError, Quantity, fit, parse_published, published,
    stand_beside,
};
pub use record::{
    Answer, Cell, Ended, Grams, Outcome, Phases, PromptKey, Record, Rounds, SCHEMA, Startup,
    Thinking, Timeline,
};
pub use report_sheets::report_sheets;
pub use run_data::{GroupIdentity, Identity, PoolKey, RunData, RunDataError, Setting};
pub use sampling_key::{SamplingKey, SamplingKeyError};
pub use stats::{PairedSums, benjamini_hochberg, swap_test, wilson};
pub use step_costs::StepCosts;
pub use store::{StoreError, parse_records, read_records, read_records_unchecked};
pub use study::{
    Elsewhere, Plot, PlotError, PlotStyle, STUDY_IDS, Series, Sheet, Study, coverage_sheets,
    splice, study,
};
pub use survival::{Counted, PositionStats, Survival, survival};
pub use synthetic::{Apart, SYNTHETIC_NOTE, synthetic_sheet};
pub use table::{Layout, render};
pub use training_log::{TrainingLog, TrainingLogError, parse_training_log};
