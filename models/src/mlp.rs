//! Feed-forward blocks: one gated block, or a few out of many chosen by a router.

use candle_core::{D, Device, Result, Tensor};

use crate::cache::bytes;
use crate::error;
use crate::weights::Weights;

/// Sizes of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpDims {
    /// One gated block.
    Dense {
        /// Inner width.
        intermediate: usize,
    },
    /// Routed gated blocks.
    Experts {
        /// Inner width of one expert.
        intermediate: usize,
        /// How many there are.
        n_experts: usize,
        /// How many a row goes through.
        n_active: usize,
        /// How their outputs are weighed.
        weights: ExpertWeights,
    },
}

/// How the chosen experts' router probabilities are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// Divided by their sum over the chosen ones.
    SumToOne,
    /// As the softmax over all experts gave them.
    AsRouted,
}

/// A feed-forward block.
#[derive(Debug)]
pub enum Mlp {
    /// One gated block.
    Dense(Gated),
    /// Routed gated blocks.
    Experts(Experts),
}

/// `down(silu(gate x) * up x)`, without biases.
#[derive(Debug)]
pub struct Gated {
    /// Rows of gate and up, stacked: `[2 * I, H]`.
    gate_up: Tensor,
    down: Tensor,
}

/// Gated blocks and the router that picks among them.
#[derive(Debug)]
pub struct Experts {
    router: Tensor,
    experts: Vec<Gated>,
    n_active: usize,
    weights: ExpertWeights,
}

impl Mlp {
    /// Takes `{prefix}gate_proj.weight` and so on, or `{prefix}gate.weight` and `{prefix}experts.{e}.*`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn load(
        weights: &mut Weights,
        prefix: &str,
        hidden: usize,
        dims: MlpDims,
    ) -> error::Result<Self> {
        match dims {
            MlpDims::Dense { intermediate } => {
                Gated::load(weights, prefix, hidden, intermediate).map(Self::Dense)
            }
            MlpDims::Experts {
                intermediate,
                n_experts,
                n_active,
                weights: expert_weights,
            } => Ok(Self::Experts(Experts {
                router: weights.take(&format!("{prefix}gate.weight"), &[n_experts, hidden])?,
                experts: (0..n_experts)
                    .map(|e| {
                        let prefix = format!("{prefix}experts.{e}.");
                        Gated::load(weights, &prefix, hidden, intermediate)
                    })
                    .collect::<error::Result<_>>()?,
                n_active,
                weights: expert_weights,
            })),
        }
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        let gated = |g: &Gated| bytes(&g.gate_up) + bytes(&g.down);
        match self {
            Self::Dense(one) => gated(one),
            Self::Experts(all) => all.experts.iter().map(gated).sum(),
        }
    }

    /// `[N, H]` to `[N, H]` f32; a row's result does not depend on the other rows.
    ///
    /// # Errors
    /// If the width is not H or a tensor operation fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(gated) => gated.forward(x),
            Self::Experts(experts) => experts.forward(x),
        }
    }
}

impl Gated {
    fn load(
        weights: &mut Weights,
        prefix: &str,
        hidden: usize,
        intermediate: usize,
    ) -> error::Result<Self> {
        let mut take = |name: &str, shape: [usize; 2]| {
            weights.take_matrix(&format!("{prefix}{name}_proj.weight"), shape)
        };
        let inner = [intermediate, hidden];
        Ok(Self {
            gate_up: Tensor::cat(&[take("gate", inner)?, take("up", inner)?], 0)?,
            down: take("down", [hidden, intermediate])?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.gate_up.dim(0)? / 2;
        let parts = kernels::linear_split(x, &self.gate_up, &[inner, inner])?;
        kernels::linear(&kernels::swiglu(&parts[0], &parts[1])?, &self.down)
    }
}

impl Experts {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let groups = self.route(x)?;
        let mut sum = x.zeros_like()?;
        // Experts in rising order, so that a row's sum has one order whatever rows it shares a group with.
        for (expert, group) in self.experts.iter().zip(groups) {
            if group.rows.is_empty() {
                continue;
            }
            let n_rows = group.rows.len();
            let rows = Tensor::from_vec(group.rows, n_rows, &Device::Cpu)?;
            let share = Tensor::from_vec(group.shares, (n_rows, 1), &Device::Cpu)?;
            let out = expert.forward(&x.index_select(&rows, 0)?)?;
            sum = sum.index_add(&rows, &out.broadcast_mul(&share)?, 0)?;
        }
        Ok(sum)
    }

    /// For each expert the rows that go through it and the weight of its output for each.
    fn route(&self, x: &Tensor) -> Result<Vec<Group>> {
        let scores = kernels::linear(x, &self.router)?;
        let law = candle_nn::ops::softmax(&scores, D::Minus1)?;
        let (ids, shares) = kernels::topk_rows(&law, self.n_active)?;
        let (ids, shares) = (ids.to_vec2::<u32>()?, shares.to_vec2::<f32>()?);
        let mut groups = vec![Group::default(); self.experts.len()];
        for (row, (ids, shares)) in ids.iter().zip(&shares).enumerate() {
            let whole = match self.weights {
                ExpertWeights::SumToOne => shares.iter().sum(),
                ExpertWeights::AsRouted => 1.0,
            };
            for (expert, share) in ids.iter().zip(shares) {
                let group = &mut groups[*expert as usize];
                group.rows.push(row as u32);
                group.shares.push(share / whole);
            }
        }
        Ok(groups)
    }
}

#[derive(Clone, Debug, Default)]
struct Group {
    rows: Vec<u32>,
    shares: Vec<f32>,
}
