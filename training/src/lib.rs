//! Losses, anchor sampling and recipes that train the embedded targets and drafters.
//!
//! The library prints nothing and knows no command line: a [`Progress`] is told what happens.

pub mod anchors;
mod answers;
mod block;
mod check;
mod checkpoint;
mod config;
mod data;
mod dcoco;
mod dflash;
mod domino;
mod dspark;
mod eagle3;
mod error;
mod files;
mod layer;
mod lm;
mod log;
mod memory;
mod moe;
mod ops;
mod optim;
mod params;
mod parts;
mod progress;
pub mod recipe;
mod run;
mod sample;
mod states;
mod target;
#[cfg(test)]
mod testing;
mod tokenizer;
mod trunk;
mod vocab;

pub use answers::answer;
pub use dcoco::{ChannelNames, DcocoRecipeHead, load_dcoco_recipe, train_dcoco};
pub use dflash::{DflashHead, load_dflash_recipe, train_dflash};
pub use domino::{DominoTable, Learn, load_domino_recipe, train_domino};
pub use dspark::{ConfidenceInput, DsparkHead, load_dspark_recipe, train_dspark};
pub use eagle3::train_eagle3;
pub use error::{Error, Result};
pub use progress::{Progress, Silent, StepReport};
pub use target::train_target;
