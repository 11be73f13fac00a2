//! What commands that load models and time them share.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use models::Precision;

use crate::assets::{ModelPaths, WeightsAt};

/// How weight matrices are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeArg {
    /// As they are computed with
    F32,
    /// Rounded to bf16: half the bytes a step has to read
    Bf16,
}

impl DtypeArg {
    fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
        }
    }
}

/// Flags that `run`, `plan` and `generate` share.
#[derive(Args, Clone, Debug)]
pub(crate) struct MachineArgs {
    /// Folder with models in Hugging Face layout, looked at before the models inside the binary: `<target>/`, and
    /// for drafters the folders that `draftbench list` names
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoints: Option<PathBuf>,
    /// The target's own files, in place of `<target>/` under --checkpoints: a GGUF file or a folder in Hugging Face
    /// layout. Only with one target. random:CONFIG makes up weights for a config.json, or a folder that holds one, for
    /// costs: the tokenizer's files lie beside it, and every drafting method needs --acceptance
    #[arg(long, value_name = "PATH", value_parser = weights_at)]
    pub(crate) weights: Option<WeightsAt>,
    /// How weight matrices are kept in memory; activations and sums are f32 [default: f32]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<DtypeArg>,
    /// Threads that compute [default: one a core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u32>,
}

fn weights_at(text: &str) -> Result<WeightsAt, Infallible> {
    Ok(text.to_owned().into())
}

impl MachineArgs {
    /// Where models lie.
    pub(crate) fn models(&self) -> ModelPaths {
        ModelPaths {
            checkpoints: self.checkpoints.clone(),
            weights: self.weights.clone(),
            dtype: self.dtype.map(DtypeArg::precision),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// Target model that the overhead is measured on; the smaller, the harder
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// Also measure what this machine reads and computes at most
    #[arg(long = "machine")]
    pub(crate) limits: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CostArgs {
    /// Target model
    #[arg(long, value_name = "ID", default_value = "tiny-qwen3")]
    pub(crate) target: String,
    /// Rows of one sequence in a step, as a verify pass has them
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    pub(crate) rows: Vec<usize>,
    /// Sequences with one row each in a step
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 8])]
    pub(crate) sequences: Vec<usize>,
    /// Positions that every sequence holds already
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) context: usize,
    /// Tokens of the prompt that is timed
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) prompt: usize,
    /// Times that everything is done
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) repeats: usize,
    /// Also write all times here, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}
