//! The same numbers for other programs and for papers. Writers return text or bytes; whoever calls writes the files.

mod bencher;
mod columns;
mod openmetrics;
mod packed;
mod paper;
mod rows;
mod vllm;

pub use bencher::bencher_json;
pub use columns::{Column, Columns, Values};
pub use openmetrics::openmetrics;
pub use packed::ExportError;
pub use paper::{PaperBlock, PaperCell, PaperRow, PaperTable, PaperValue, Rank, paper_tables};
pub use rows::{answer_columns, level_columns};
pub use vllm::vllm_bench_json;
