//! Target models: one configurable decoder, its weights and its slot KV cache.
//!
//! [`Decoder`] runs every family listed in [`FAMILIES`] and implements [`decode::Target`]. Drafters share its parts:
//! [`Layer`], [`Attention`], [`Mlp`], [`SlotCache`], [`Rope`], and for their files [`Source`], [`Gguf`], [`Weights`],
//! [`Fields`].

mod cache;
mod config;
mod decoder;
mod error;
mod fields;
mod gguf;
mod layer;
mod mlp;
mod random;
mod rope;
mod source;
mod spec;
mod weights;

pub use cache::{CacheDims, Level, Plan, Rows, SlotCache};
pub use config::{DecoderConfig, HeadKind, full_attention_only, refuse_other_forward_passes};
pub use decoder::{Decoder, DecoderOptions};
pub use error::LoadError;
pub use fields::Fields;
pub use gguf::{Gguf, GgufTarget, GgufType, GgufWriter};
pub use layer::{Attention, AttentionDims, CacheAt, Layer, LayerDims};
pub use mlp::{ExpertWeights, Experts, Gated, Mlp, MlpDims};
pub use rope::{Rope, RopeConfig};
pub use source::Source;
pub use spec::{FAMILIES, Family, Files, MlpKind, QkNorm, RopeKind, TARGETS, TargetSpec, target};
pub use weights::{Precision, Weights};
