//! The known targets and the decoder families they belong to.

use crate::error::{LoadError, Result};

/// Whether queries and keys are normalised head by head before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// RMS norm over the head dimension, one weight vector for all heads.
    PerHead,
    /// None.
    Off,
}

/// What stands between the two norms of a layer's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// One gated block.
    Dense,
    /// Gated blocks of which a router picks a few for each row.
    Experts,
}

/// How rotary angles depend on the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// `theta^(-2i/D)` as it is.
    Default,
    /// Low frequencies divided, as Llama 3.1 does for long texts.
    Llama3,
}

/// What sets one decoder family apart from another. Whether the head is tied is the config's word in every family.
#[derive(Debug)]
pub struct Family {
    /// First entry of `architectures` in config.json.
    pub architecture: &'static str,
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Feed-forward block.
    pub mlp: MlpKind,
    /// Rope kinds that its checkpoints use.
    pub ropes: &'static [RopeKind],
}

/// Every family the decoder can run.
pub static FAMILIES: &[Family] = &[QWEN3, QWEN3_MOE, LLAMA];

const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    qk_norm: QkNorm::PerHead,
    mlp: MlpKind::Dense,
    ropes: &[RopeKind::Default],
};

const QWEN3_MOE: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    qk_norm: QkNorm::PerHead,
    mlp: MlpKind::Experts,
    ropes: &[RopeKind::Default],
};

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    qk_norm: QkNorm::Off,
    mlp: MlpKind::Dense,
    ropes: &[RopeKind::Default, RopeKind::Llama3],
};

/// Where a target's files are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Inside the binary; trained by this project.
    Embedded,
    /// A checkpoint directory that the user supplies.
    Checkpoint {
        /// The upstream repository, owner/name.
        repository: &'static str,
    },
}

/// A target that can be named on the command line.
#[derive(Debug)]
pub struct TargetSpec {
    /// Id in plans, records and on the command line.
    pub id: &'static str,
    /// Name in tables.
    pub title: &'static str,
    /// Its decoder family.
    pub family: &'static Family,
    /// Where its files are found.
    pub files: Files,
}

/// All targets, in the row order of every table.
pub static TARGETS: &[TargetSpec] = &[
    embedded("tiny-qwen3", "Tiny Qwen3", &QWEN3),
    embedded("tiny-llama", "Tiny Llama", &LLAMA),
    embedded("tiny-moe", "Tiny Qwen3-MoE", &QWEN3_MOE),
    checkpoint(
        "smollm2-135m",
        "SmolLM2-135M-Instruct",
        &LLAMA,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    checkpoint("qwen3-4b", "Qwen3-4B", &QWEN3, "Qwen/Qwen3-4B"),
    checkpoint("qwen3-8b", "Qwen3-8B", &QWEN3, "Qwen/Qwen3-8B"),
    checkpoint(
        "qwen3-coder-30b-a3b",
        "Qwen3-Coder-30B-A3B",
        &QWEN3_MOE,
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    ),
    checkpoint(
        "llama-3.1-8b-instruct",
        "Llama-3.1-8B-Instruct",
        &LLAMA,
        "meta-llama/Llama-3.1-8B-Instruct",
    ),
];

/// The target with this id.
///
/// # Errors
/// [`LoadError::UnknownTarget`], which lists the known ids.
pub fn target(id: &str) -> Result<&'static TargetSpec> {
    TARGETS.iter().find(|spec| spec.id == id).ok_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|spec| spec.id).collect();
        LoadError::UnknownTarget {
            id: id.to_owned(),
            known: known.join(", "),
        }
    })
}

const fn embedded(id: &'static str, title: &'static str, family: &'static Family) -> TargetSpec {
    TargetSpec {
        id,
        title,
        family,
        files: Files::Embedded,
    }
}

const fn checkpoint(
    id: &'static str,
    title: &'static str,
    family: &'static Family,
    repository: &'static str,
) -> TargetSpec {
    TargetSpec {
        id,
        title,
        family,
        files: Files::Checkpoint { repository },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_lists_the_known_ids() {
        let message = target("qwen3-5b").unwrap_err().to_string();
        assert!(message.contains("\"qwen3-5b\" is unknown"), "{message}");
        for spec in TARGETS {
            assert!(message.contains(spec.id), "{message}");
        }
    }

    #[test]
    fn ids_are_unique_and_families_are_listed() {
        for (i, spec) in TARGETS.iter().enumerate() {
            assert_eq!(target(spec.id).unwrap().title, spec.title);
            assert!(TARGETS[i + 1..].iter().all(|other| other.id != spec.id));
            let listed = |f: &Family| f.architecture == spec.family.architecture;
            assert!(FAMILIES.iter().any(listed));
        }
    }
}
