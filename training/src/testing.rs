//! Sizes and helpers for tests.

use crate::config::{Experts, Family, NetConfig};
use crate::error::Result;
use crate::progress::{Progress, StepReport};
use candle_core::{Device, Tensor, safetensors};
use std::path::{Path, PathBuf};

/// Every family.
pub(crate) const SMALL: [Family; 3] = [
    Family::Qwen3ForCausalLM,
    Family::Qwen3MoeForCausalLM,
    Family::LlamaForCausalLM,
];

/// Two layers of width 12, ten tokens; the mixture has three experts, the Llama its own head.
pub(crate) fn small(architecture: Family) -> NetConfig {
    NetConfig {
        architecture,
        vocab_size: 10,
        hidden_size: 12,
        intermediate_size: 10,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 4,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 32,
        tie_word_embeddings: architecture != Family::LlamaForCausalLM,
        experts: (architecture == Family::Qwen3MoeForCausalLM).then_some(Experts {
            num_experts: 3,
            num_experts_per_tok: 2,
            moe_intermediate_size: 6,
        }),
    }
}

/// Keeps a copy of the checkpoint written after `steps` steps, as a kill at that moment would leave it.
pub(crate) struct CutAfter {
    pub(crate) steps: u64,
    pub(crate) work: PathBuf,
}

impl CutAfter {
    /// Puts the kept checkpoint back in place of the last one.
    pub(crate) fn restore(&self) {
        std::fs::rename(
            self.work.join("kept"),
            self.work.join("checkpoint.safetensors"),
        )
        .unwrap();
    }
}

impl Progress for CutAfter {
    fn step(&mut self, _report: &StepReport) {}
    fn note(&mut self, text: &str) {
        if text == format!("checkpoint at step {}", self.steps) {
            std::fs::copy(
                self.work.join("checkpoint.safetensors"),
                self.work.join("kept"),
            )
            .unwrap();
        }
    }
}

/// Weights and moments of two work folders must be equal, bit for bit.
pub(crate) fn assert_same_checkpoints(a: &Path, b: &Path) -> Result<()> {
    let read = |work: &Path| safetensors::load(work.join("checkpoint.safetensors"), &Device::Cpu);
    let (a, b) = (read(a)?, read(b)?);
    assert_eq!(a.len(), b.len());
    let mut names: Vec<&String> = a.keys().collect();
    names.sort();
    for name in names {
        let values = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        assert_eq!(values(&a[name])?, values(&b[name])?, "{name}");
    }
    Ok(())
}

/// The folder of recipes, asked of cargo at run time: a target directory shared by two clones may hold a test that was
/// compiled in the other one.
pub(crate) fn recipes() -> std::path::PathBuf {
    let compiled = env!("CARGO_MANIFEST_DIR").into();
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(compiled);
    std::path::Path::new(&package).join("recipes")
}
