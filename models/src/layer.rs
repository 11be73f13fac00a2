//! The decoder layer and its attention, shared by targets and drafters.

use candle_core::{Result, Tensor};

use crate::cache::{Plan, SlotCache};
use crate::error;
use crate::mlp::{Mlp, MlpDims};
use crate::rope::Rope;
use crate::spec::QkNorm;
use crate::weights::Weights;

/// Sizes of one attention block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDims {
    /// Width of what queries, keys and values are projected from.
    pub input: usize,
    /// Width of the output, H.
    pub hidden: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of one head, D.
    pub head_dim: usize,
    /// Epsilon of the head norms.
    pub rms_eps: f32,
    /// Whether queries and keys are normalised.
    pub qk_norm: QkNorm,
}

/// Sizes of one decoder layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerDims {
    /// Attention; its epsilon also serves the layer's own norms.
    pub attention: AttentionDims,
    /// Feed-forward block.
    pub mlp: MlpDims,
}

/// Grouped attention over a slot cache, without biases.
#[derive(Debug)]
pub struct Attention {
    dims: AttentionDims,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    /// Weights of the query norm and the key norm.
    norms: Option<(Tensor, Tensor)>,
}

impl Attention {
    /// Takes `{prefix}q_proj.weight` and so on.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn load(weights: &mut Weights, prefix: &str, dims: AttentionDims) -> error::Result<Self> {
        let mut take =
            |name: &str, shape: &[usize]| weights.take(&format!("{prefix}{name}.weight"), shape);
        let (q, kv) = (
            dims.n_heads * dims.head_dim,
            dims.n_kv_heads * dims.head_dim,
        );
        Ok(Self {
            dims,
            q: take("q_proj", &[q, dims.input])?,
            k: take("k_proj", &[kv, dims.input])?,
            v: take("v_proj", &[kv, dims.input])?,
            o: take("o_proj", &[dims.hidden, q])?,
            norms: match dims.qk_norm {
                QkNorm::Off => None,
                QkNorm::PerHead => Some((
                    take("q_norm", &[dims.head_dim])?,
                    take("k_norm", &[dims.head_dim])?,
                )),
            },
        })
    }

    /// Queries of `x` `[N, input]`, normalised and rotated: `[N, Hq, D]`.
    ///
    /// # Errors
    /// If shapes do not fit or a position is beyond the table.
    pub fn project_q(&self, x: &Tensor, positions: &[u32], rope: &Rope) -> Result<Tensor> {
        let norm = self.norms.as_ref().map(|(q_norm, _)| q_norm);
        self.rotated(&kernels::linear(x, &self.q)?, norm, positions, rope)
    }

    /// Keys (normalised and rotated) and values of `x` `[N, input]`: both `[N, Hkv * D]`, as the cache keeps them.
    ///
    /// # Errors
    /// If shapes do not fit or a position is beyond the table.
    pub fn project_kv(
        &self,
        x: &Tensor,
        positions: &[u32],
        rope: &Rope,
    ) -> Result<(Tensor, Tensor)> {
        let norm = self.norms.as_ref().map(|(_, k_norm)| k_norm);
        let k = self.rotated(&kernels::linear(x, &self.k)?, norm, positions, rope)?;
        Ok((k.flatten_from(1)?, kernels::linear(x, &self.v)?))
    }

    /// Writes the rows' keys and values to the planned cache rows, then lets each row see what the plan says.
    /// `x` `[N, input]` to `[N, H]`.
    ///
    /// # Errors
    /// If shapes do not fit or a planned row is outside the cache.
    pub fn forward(&self, x: &Tensor, at: &mut CacheAt<'_>) -> Result<Tensor> {
        let positions = &at.plan.positions;
        let (k, v) = self.project_kv(x, positions, at.rope)?;
        at.cache.append(at.layer, &k, &v, &at.plan.dst)?;
        let q = self.project_q(x, positions, at.rope)?;
        let (k, v) = at.cache.tensors(at.layer);
        let scale = 1.0 / (self.dims.head_dim as f32).sqrt();
        let mixed = kernels::attend(&q, k, v, &at.plan.visible, scale)?;
        kernels::linear(&mixed, &self.o)
    }

    fn rotated(
        &self,
        x: &Tensor,
        norm: Option<&Tensor>,
        positions: &[u32],
        rope: &Rope,
    ) -> Result<Tensor> {
        let (n, width) = x.dims2()?;
        let d = self.dims.head_dim;
        let x = x.reshape((n, width / d, d))?;
        match norm {
            Some(w) => rope.rotate(&kernels::rms_norm(&x, w, self.dims.rms_eps)?, positions),
            None => rope.rotate(&x, positions),
        }
    }
}

/// Where a layer keeps its keys and values during one forward.
#[derive(Debug)]
pub struct CacheAt<'a> {
    /// The cache of all layers.
    pub cache: &'a mut SlotCache,
    /// Index of the layer in the cache.
    pub layer: usize,
    /// Rows of this forward.
    pub plan: &'a Plan,
    /// Angles for every position of the plan.
    pub rope: &'a Rope,
}

/// Norm, attention, norm, feed-forward, each pair around a residual.
#[derive(Debug)]
pub struct Layer {
    input_norm: Tensor,
    attention: Attention,
    mlp_norm: Tensor,
    mlp: Mlp,
    rms_eps: f32,
}

impl Layer {
    /// Takes `{prefix}input_layernorm.weight`, `{prefix}self_attn.*`, `{prefix}post_attention_layernorm.weight` and
    /// `{prefix}mlp.*`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn load(weights: &mut Weights, prefix: &str, dims: LayerDims) -> error::Result<Self> {
        let hidden = dims.attention.hidden;
        let mut norm =
            |name: &str| weights.take(&format!("{prefix}{name}_layernorm.weight"), &[hidden]);
        Ok(Self {
            input_norm: norm("input")?,
            mlp_norm: norm("post_attention")?,
            attention: Attention::load(weights, &format!("{prefix}self_attn."), dims.attention)?,
            mlp: Mlp::load(weights, &format!("{prefix}mlp."), hidden, dims.mlp)?,
            rms_eps: dims.attention.rms_eps,
        })
    }

    /// Residual stream `[N, H]` in, residual stream `[N, H]` out.
    ///
    /// # Errors
    /// If shapes do not fit or a planned row is outside the cache.
    pub fn forward(&self, x: &Tensor, at: &mut CacheAt<'_>) -> Result<Tensor> {
        let normed = kernels::rms_norm(x, &self.input_norm, self.rms_eps)?;
        let x = (x + self.attention.forward(&normed, at)?)?;
        let normed = kernels::rms_norm(&x, &self.mlp_norm, self.rms_eps)?;
        &x + self.mlp.forward(&normed)?
    }

    /// The attention block, for drafters that write keys and values of other rows than those they feed.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }
}
