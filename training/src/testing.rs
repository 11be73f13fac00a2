//! Sizes for tests.

use crate::config::{Experts, Family, NetConfig};

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
