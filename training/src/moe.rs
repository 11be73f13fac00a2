//! Routed experts for training: every expert runs on every row, the router's weights mask the result.

use crate::config::Experts;
use crate::error::Result;
use crate::layer::{Maker, Mlp};
use crate::ops::linear;
use candle_core::{D, Tensor};

/// Router and experts of one layer.
pub(crate) struct Moe {
    router: Tensor,
    experts: Vec<Mlp>,
    per_token: usize,
}

impl Moe {
    pub(crate) fn new(
        config: Experts,
        hidden: usize,
        out_std: f64,
        maker: &mut Maker<'_>,
    ) -> Result<Self> {
        let router = maker.matrix("mlp.gate", config.num_experts, hidden, 0.02)?;
        let sizes = (hidden, config.moe_intermediate_size);
        let experts = (0..config.num_experts)
            .map(|e| Mlp::new(&format!("mlp.experts.{e}."), sizes, out_std, maker))
            .collect::<Result<_>>()?;
        Ok(Self {
            router,
            experts,
            per_token: config.num_experts_per_tok,
        })
    }

    /// `x`: `[N, H]`. Returns `[N, H]` and the balance loss, 1 when all experts are used alike.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        // [N, H] -> [N, E], softmax over all experts before the choice.
        let p = candle_nn::ops::softmax(&linear(x, &self.router)?, D::Minus1)?;
        let chosen = self.chosen(&p)?;
        let masked = (&p * &chosen)?;
        let weights = masked.broadcast_div(&masked.sum_keepdim(D::Minus1)?)?;
        let mut out: Option<Tensor> = None;
        for (e, expert) in self.experts.iter().enumerate() {
            // [N, H] * [N, 1]
            let part = expert
                .forward(x)?
                .broadcast_mul(&weights.narrow(1, e, 1)?)?;
            out = Some(match out {
                None => part,
                Some(sum) => (sum + part)?,
            });
        }
        let load = (chosen.mean(0)? / self.per_token as f64)?;
        let balance = ((load * p.mean(0)?)?.sum_all()? * self.experts.len() as f64)?;
        Ok((out.expect("a checked config has an expert"), balance))
    }

    /// 1 where an expert is among the best `per_token` of its row (lowest index first on a tie), else 0; no gradient.
    fn chosen(&self, p: &Tensor) -> Result<Tensor> {
        let rows = p.to_vec2::<f32>()?;
        let n_experts = self.experts.len();
        let mut mask = vec![0f32; rows.len() * n_experts];
        for (row, mask) in rows.iter().zip(mask.chunks_exact_mut(n_experts)) {
            let mut order: Vec<usize> = (0..n_experts).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            for &e in &order[..self.per_token] {
                mask[e] = 1.0;
            }
        }
        Ok(Tensor::from_vec(mask, (rows.len(), n_experts), p.device())?)
    }
}
