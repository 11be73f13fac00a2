//! The compared decoding methods, one file each.
//!
//! A method is a [`Method`] row in [`METHODS`] and a type that implements [`decode::Drafter`].

mod block;
pub mod dcoco;
mod dflash;
mod domino;
mod draft_model;
mod draft_vocab;
mod dspark;
mod eagle3;
mod error;
mod llama_cpp;
mod options;
mod trunk;
mod vanilla;

use decode::Drafter;
use models::Source;

pub use block::BlockDrafter;
pub use dcoco::Dcoco;
pub use dflash::{Argmax, DFlash};
pub use domino::{Domino, DominoDrafts, DominoHead, DominoShape, DraftStep};
pub use draft_model::DraftModel;
pub use dspark::{DSpark, MarkovKind, MarkovShape, Sequence, Sequential};
pub use eagle3::{DraftTree, Drafting, Eagle3, Eagle3Config, FusionNorm, StateForm};
pub use error::{Error, Result};
pub use llama_cpp::{LlamaCppDrafter, SpecType, to_llama_cpp};
pub use options::{Arm, COMMON_OPTIONS, Options, PRESETS, method_names};
pub use trunk::{Alignment, TrunkConfig};
pub use vanilla::Vanilla;

/// Every method, in the column order of every table.
pub static METHODS: &[Method] = &[
    vanilla::METHOD,
    draft_model::METHOD,
    eagle3::METHOD,
    dflash::METHOD,
    dspark::METHOD,
    domino::METHOD,
    dcoco::METHOD,
];

/// A decoding method.
#[derive(Debug)]
pub struct Method {
    /// What the command line calls it.
    pub id: &'static str,
    /// What a table calls it.
    pub title: &'static str,
    /// Suffix of the drafter's checkpoint folder, `<target id>-<suffix>`; `None` if the method has no weights.
    pub checkpoint: Option<&'static str>,
    /// Options it takes beside [`COMMON_OPTIONS`], each with what it does.
    pub options: &'static [(&'static str, &'static str)],
    load: fn(&Load<'_>) -> Result<Box<dyn Drafter>>,
}

/// What a drafter must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetFacts {
    /// How errors name the target.
    pub id: String,
    /// Hidden size H.
    pub hidden: usize,
    /// Vocabulary size V.
    pub vocab: usize,
    /// Decoder layers.
    pub n_layers: usize,
}

/// How to build a drafter.
#[derive(Debug)]
pub struct Load<'a> {
    /// The drafter's files; ignored by a method without weights.
    pub source: Option<&'a Source>,
    /// The target it will draft for.
    pub target: &'a TargetFacts,
    /// Sequences at once.
    pub slots: usize,
    /// Positions a slot holds, one verify pass included.
    pub capacity: usize,
    /// How weight matrices are kept in memory.
    pub precision: models::Precision,
    /// Most draft tokens a round; `None` is the method's own choice. A block method still runs its trained block
    /// and hands on the first ones.
    pub max_draft: Option<usize>,
    /// What was asked of the method.
    pub options: &'a Options,
}

impl Method {
    /// Builds the drafter.
    ///
    /// # Errors
    /// If files are missing or wrong, or made for another target, or `max_draft` is out of range.
    pub fn load(&self, load: &Load<'_>) -> Result<Box<dyn Drafter>> {
        (self.load)(load)
    }
}

/// Finds a method by id.
///
/// # Errors
/// [`Error::UnknownMethod`], which lists the known ids.
pub fn method(id: &str) -> Result<&'static Method> {
    METHODS.iter().find(|m| m.id == id).ok_or_else(|| {
        let known: Vec<&str> = method_names().collect();
        Error::UnknownMethod {
            id: id.into(),
            known: known.join(", "),
        }
    })
}

impl<'a> Load<'a> {
    /// The drafter's files, or an error that names what is missing.
    fn files(&self, method: &'static str) -> Result<&'a Source> {
        self.source.ok_or_else(|| Error::NoDrafter {
            method,
            target: self.target.id.clone(),
        })
    }

    /// Refuses a cache longer than what the drafter was trained for.
    fn check_positions(&self, source: &Source, max_positions: usize) -> Result<()> {
        if self.capacity <= max_positions {
            return Ok(());
        }
        Err(Error::TooShort {
            file: source.label("config.json"),
            max_positions,
            capacity: self.capacity,
        })
    }

    /// Draft tokens a round, between 1 and `most`.
    fn gamma(&self, most: usize) -> Result<usize> {
        let gamma = self.max_draft.unwrap_or(most);
        if gamma == 0 || gamma > most {
            return Err(Error::MaxDraft { got: gamma, most });
        }
        Ok(gamma)
    }
}
