//! The decoder layer and its attention, shared by targets and drafters.

use candle_core::{Result, Tensor};

use crate::cache::{Plan, SlotCache, bytes};
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

impl AttentionDims {
    /// Widths of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        let kv = self.n_kv_heads * self.head_dim;
        [self.n_heads * self.head_dim, kv, kv]
    }
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
    /// Rows of the queries, keys and values, stacked: `[Hq * D + 2 * Hkv * D, input]`.
    qkv: Tensor,
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
        let [q, kv, _] = dims.widths();
        let mut take = |name: &str, rows: usize| {
            weights.take_matrix(&format!("{prefix}{name}_proj.weight"), [rows, dims.input])
        };
        let qkv = Tensor::cat(&[take("q", q)?, take("k", kv)?, take("v", kv)?], 0)?;
        let o = weights.take_matrix(&format!("{prefix}o_proj.weight"), [dims.hidden, q])?;
        let mut norm =
            |name: &str| weights.take(&format!("{prefix}{name}_norm.weight"), &[dims.head_dim]);
        Ok(Self {
            dims,
            qkv,
            o,
            norms: match dims.qk_norm {
                QkNorm::Off => None,
                QkNorm::PerHead => Some((norm("q")?, norm("k")?)),
            },
        })
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
        let [q, kv, _] = self.dims.widths();
        let rows = self.qkv.narrow(0, q, 2 * kv)?;
        let parts = kernels::linear_split(x, &rows, &[kv, kv])?;
        Ok((self.keys(&parts[0], positions, rope)?, parts[1].clone()))
    }

    fn keys(&self, k: &Tensor, positions: &[u32], rope: &Rope) -> Result<Tensor> {
        let norm = self.norms.as_ref().map(|(_, k_norm)| k_norm);
        self.rotated(k, norm, positions, rope)?.flatten_from(1)
    }

    /// Writes the rows' keys and values to the planned cache rows, then lets each row see what the plan says.
    /// `x` `[N, input]` to `[N, H]`.
    ///
    /// # Errors
    /// If shapes do not fit or a planned row is outside the cache.
    pub fn forward(&self, x: &Tensor, at: &mut CacheAt<'_>) -> Result<Tensor> {
        let positions = &at.plan.positions;
        let parts = kernels::linear_split(x, &self.qkv, &self.dims.widths())?;
        let k = self.keys(&parts[1], positions, at.rope)?;
        at.cache.append(at.layer, &k, &parts[2], &at.plan.dst)?;
        let norm = self.norms.as_ref().map(|(q_norm, _)| q_norm);
        let q = self.rotated(&parts[0], norm, positions, at.rope)?;
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
        let x = kernels::add(x, &self.attention.forward(&normed, at)?)?;
        let normed = kernels::rms_norm(&x, &self.mlp_norm, self.rms_eps)?;
        kernels::add(&x, &self.mlp.forward(&normed)?)
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        bytes(&self.attention.qkv) + bytes(&self.attention.o) + self.mlp.weight_bytes()
    }

    /// The attention block, for drafters that write keys and values of other rows than those they feed.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }
}
