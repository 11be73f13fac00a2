//! One transformer layer, shared by targets and drafters.

use crate::config::NetConfig;
use crate::error::Result;
use crate::moe::Moe;
use crate::ops::{AttentionShape, RopeTable, Segment, attention, linear, rms_norm, rope, swiglu};
use crate::params::{Init, Params};
use candle_core::Tensor;
use std::sync::Arc;

/// Standard deviation of new matrices; those that write to the residual stream are divided by `sqrt(2 layers)`.
const INIT_STD: f64 = 0.02;

/// Makes the tensors of one module under a common prefix.
pub(crate) struct Maker<'a> {
    pub(crate) params: &'a mut Params,
    pub(crate) prefix: String,
    pub(crate) seed: u64,
}

impl Maker<'_> {
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        out: usize,
        inner: usize,
        std: f64,
    ) -> Result<Tensor> {
        let name = format!("{}{name}.weight", self.prefix);
        self.params
            .add(&name, &[out, inner], Init::Normal(std), self.seed)
    }

    pub(crate) fn norm(&mut self, name: &str, width: usize) -> Result<Tensor> {
        let name = format!("{}{name}.weight", self.prefix);
        self.params.add(&name, &[width], Init::One, self.seed)
    }
}

/// Rows of a pass: who sees whom, and where each row stands.
#[derive(Clone)]
pub(crate) struct Rows {
    pub(crate) segments: Arc<[Segment]>,
    /// Positions of the query rows.
    pub(crate) positions: Arc<[u32]>,
    /// Positions of the key rows: those of the context first, then the query rows'.
    pub(crate) key_positions: Arc<[u32]>,
}

/// Attention and feed-forward with their norms.
pub(crate) struct Layer {
    input_norm: Tensor,
    attention: SelfAttention,
    post_norm: Tensor,
    feed_forward: FeedForward,
    eps: f64,
}

enum FeedForward {
    Dense(Mlp),
    Routed(Moe),
}

impl Layer {
    pub(crate) fn new(config: &NetConfig, maker: &mut Maker<'_>) -> Result<Self> {
        let hidden = config.hidden_size;
        let out_std = INIT_STD / (2.0 * config.num_hidden_layers as f64).sqrt();
        let feed_forward = match config.experts {
            None => FeedForward::Dense(Mlp::new(
                "mlp.",
                (hidden, config.intermediate_size),
                out_std,
                maker,
            )?),
            Some(experts) => FeedForward::Routed(Moe::new(experts, hidden, out_std, maker)?),
        };
        Ok(Self {
            input_norm: maker.norm("input_layernorm", hidden)?,
            attention: SelfAttention::new(config, out_std, maker)?,
            post_norm: maker.norm("post_attention_layernorm", hidden)?,
            feed_forward,
            eps: config.rms_norm_eps,
        })
    }

    /// `x`: `[N, H]`; `context`: `[C, H]` rows that are only looked at (a drafter's projected taps).
    /// Returns `[N, H]` and the balance loss of a routed layer.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        context: Option<&Tensor>,
        rows: &Rows,
        table: &Arc<RopeTable>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let normed = rms_norm(x, &self.input_norm, self.eps)?;
        let x = (x + self.attention.forward(&normed, context, rows, table)?)?;
        let normed = rms_norm(&x, &self.post_norm, self.eps)?;
        match &self.feed_forward {
            FeedForward::Dense(mlp) => Ok(((x + mlp.forward(&normed)?)?, None)),
            FeedForward::Routed(moe) => {
                let (out, balance) = moe.forward(&normed)?;
                Ok(((x + out)?, Some(balance)))
            }
        }
    }
}

struct SelfAttention {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    /// Norms of query and key heads.
    head_norms: Option<(Tensor, Tensor)>,
    shape: AttentionShape,
    eps: f64,
}

impl SelfAttention {
    fn new(config: &NetConfig, out_std: f64, maker: &mut Maker<'_>) -> Result<Self> {
        let shape = config.attention();
        let hidden = config.hidden_size;
        let (q_width, kv_width) = (
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
        );
        let head_norms = match config.architecture.norms_heads() {
            true => Some((
                maker.norm("self_attn.q_norm", shape.head_dim)?,
                maker.norm("self_attn.k_norm", shape.head_dim)?,
            )),
            false => None,
        };
        Ok(Self {
            q: maker.matrix("self_attn.q_proj", q_width, hidden, INIT_STD)?,
            k: maker.matrix("self_attn.k_proj", kv_width, hidden, INIT_STD)?,
            v: maker.matrix("self_attn.v_proj", kv_width, hidden, INIT_STD)?,
            o: maker.matrix("self_attn.o_proj", hidden, q_width, out_std)?,
            head_norms,
            shape,
            eps: config.rms_norm_eps,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        context: Option<&Tensor>,
        rows: &Rows,
        table: &Arc<RopeTable>,
    ) -> Result<Tensor> {
        let seen = match context {
            Some(context) => &Tensor::cat(&[context, x], 0)?,
            None => x,
        };
        let (mut q, mut k) = (linear(x, &self.q)?, linear(seen, &self.k)?);
        let v = linear(seen, &self.v)?;
        if let Some((q_norm, k_norm)) = &self.head_norms {
            q = norm_heads(&q, q_norm, self.eps)?;
            k = norm_heads(&k, k_norm, self.eps)?;
        }
        let q = rope(&q, table, &rows.positions)?;
        let k = rope(&k, table, &rows.key_positions)?;
        let mixed = attention([&q, &k, &v], self.shape, &rows.segments)?;
        Ok(linear(&mixed, &self.o)?)
    }
}

/// Norms every head of `x` `[N, heads * d]` by a weight `[d]`.
pub(crate) fn norm_heads(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let ((n_rows, width), d) = (x.dims2()?, weight.dim(0)?);
    // [N, heads * d] -> [N, heads, d]: the norm works on the last dimension.
    let heads = x.reshape((n_rows, width / d, d))?;
    Ok(rms_norm(&heads, weight, eps)?.reshape((n_rows, width))?)
}

/// The gated feed-forward block.
pub(crate) struct Mlp {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

impl Mlp {
    pub(crate) fn new(
        prefix: &str,
        (hidden, inner): (usize, usize),
        out_std: f64,
        maker: &mut Maker<'_>,
    ) -> Result<Self> {
        Ok(Self {
            gate: maker.matrix(&format!("{prefix}gate_proj"), inner, hidden, INIT_STD)?,
            up: maker.matrix(&format!("{prefix}up_proj"), inner, hidden, INIT_STD)?,
            down: maker.matrix(&format!("{prefix}down_proj"), hidden, inner, out_std)?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = swiglu(&linear(x, &self.gate)?, &linear(x, &self.up)?)?;
        Ok(linear(&inner, &self.down)?)
    }
}
