//! What `draftbench export` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use models::GgufType;

#[derive(Subcommand, Debug)]
pub(crate) enum ExportCommand {
    /// Write a trained DFlash or DSpark drafter as the GGUF file that llama.cpp drafts with
    Gguf(ExportGgufArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ExportGgufArgs {
    /// The drafter's checkpoint: a folder with config.json and model.safetensors
    #[arg(value_name = "DRAFTER")]
    pub(crate) drafter: PathBuf,
    /// The GGUF file that llama.cpp runs as the target, in any type: its tokenizer is copied, its sizes are checked
    #[arg(long, value_name = "FILE")]
    pub(crate) target: PathBuf,
    /// The GGUF file to write; must not exist yet
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// How weight matrices are stored; vectors are f32
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value = "bf16")]
    pub(crate) matrices: MatrixArg,
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MatrixArg {
    F32,
    /// As checkpoints have them
    Bf16,
    F16,
    /// 8 bits and a scale for 32 numbers of a row; f32 where a row is no multiple of 32
    #[value(name = "q8_0")]
    Q8,
}

impl MatrixArg {
    pub(crate) fn gguf(self) -> GgufType {
        match self {
            Self::F32 => GgufType::F32,
            Self::Bf16 => GgufType::Bf16,
            Self::F16 => GgufType::F16,
            Self::Q8 => GgufType::Q8_0,
        }
    }
}
