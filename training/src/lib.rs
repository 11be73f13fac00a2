//! Losses, anchor sampling and recipes that train the embedded targets and drafters.
//!
//! The library prints nothing and knows no command line: a [`Progress`] is told what happens.

pub mod anchors;
pub mod answers;
mod check;
mod checkpoint;
pub mod config;
pub mod data;
mod dflash;
mod error;
mod files;
mod layer;
pub mod lm;
mod log;
mod moe;
pub mod ops;
pub mod optim;
pub mod params;
mod progress;
pub mod recipe;
mod run;
pub mod sample;
mod target;
#[cfg(test)]
mod testing;
pub mod tokenizer;
pub mod trunk;

pub use dflash::train_dflash;
pub use error::{Error, Result};
pub use progress::{Progress, Silent, StepReport};
pub use target::train_target;
