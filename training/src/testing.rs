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

/// What the goldens of block drafters were made with: the same weights in any language, a target of 6 layers, width 16
/// and 40 tokens, a trunk of 2 layers with blocks of 4, and one text.
pub(crate) mod golden {
    use crate::anchors::DraftPack;
    use crate::config::{Family, NetConfig};
    use crate::error::Result;
    use crate::lm::CausalLm;
    use crate::params::Params;
    use crate::trunk::TrunkConfig;
    use baselines::Alignment;
    use candle_core::{Device, Tensor};

    /// Prompt of 7, answer on rows 7..=12, one token behind it.
    pub(crate) const SEQUENCE: [u32; 14] = [3, 17, 5, 9, 22, 11, 7, 0, 28, 13, 30, 2, 19, 6];
    pub(crate) const ANCHORS: [usize; 3] = [7, 9, 11];

    /// The reference's integer hash; a tensor's seed is its rank among all names. `others` are names that the reference
    /// has and `params` has not.
    pub(crate) fn fill(params: &Params, first_seed: u64, others: &[&str]) -> Result<()> {
        const MASK32: u64 = 0xffff_ffff;
        for (rank, (name, var)) in params.iter().enumerate() {
            let is_norm = name.ends_with("norm.weight") || name.contains("layernorm");
            let (base, scale) = if is_norm { (1.0, 0.2) } else { (0.0, 0.5) };
            let skipped = others.iter().filter(|other| **other < name).count();
            let seed = first_seed + (rank + skipped) as u64;
            let value = |i: u64| {
                let mut x = (i * 2_654_435_761 + seed * 40_503 + 12_345) & MASK32;
                x ^= x >> 16;
                x = (x * 2_246_822_519) & MASK32;
                x ^= x >> 13;
                x = (x * 3_266_489_917) & MASK32;
                x ^= x >> 16;
                (base + scale * (x as f64 / 4_294_967_296.0 - 0.5)) as f32
            };
            let values: Vec<f32> = (0..var.elem_count() as u64).map(value).collect();
            var.set(&Tensor::from_vec(values, var.dims(), &Device::Cpu)?)?;
        }
        Ok(())
    }

    pub(crate) fn drafter(alignment: Alignment) -> TrunkConfig {
        TrunkConfig {
            num_hidden_layers: 2,
            intermediate_size: 24,
            block_rows: 4,
            alignment,
            target_layer_ids: vec![1, 3],
            draft_vocab_size: None,
        }
    }

    pub(crate) fn target() -> Result<CausalLm> {
        let config = NetConfig {
            architecture: Family::Qwen3ForCausalLM,
            vocab_size: 40,
            hidden_size: 16,
            intermediate_size: 24,
            num_hidden_layers: 6,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 8,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            max_position_embeddings: 64,
            tie_word_embeddings: false,
            experts: None,
        };
        let lm = CausalLm::new(&config, 0)?;
        fill(&lm.params, 1000, &[])?;
        Ok(lm)
    }

    pub(crate) fn pack() -> DraftPack {
        let mut pack = DraftPack::default();
        pack.push(&SEQUENCE[..7], &SEQUENCE[7..]);
        pack.is_answer[13] = false;
        pack
    }
}
