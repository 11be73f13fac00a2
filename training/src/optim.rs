//! AdamW with a warm-up and cosine schedule.

use crate::check::{ABOVE_0, Check, NOT_BELOW_0, is_not_negative, is_positive};
use crate::error::Result;
use crate::params::Params;
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The `[optimizer]` table of a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// Highest learning rate.
    pub lr: f64,
    /// Part of `lr` that is left at the end.
    pub final_fraction: f64,
    /// Steps over which the rate rises from 0.
    pub warmup_steps: u64,
    /// Decay of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled decay of matrices; norms are left alone.
    pub weight_decay: f64,
    /// Largest global norm of a step's gradient.
    pub clip: f64,
}

impl OptimizerConfig {
    /// What the `[optimizer]` table must fulfil.
    pub(crate) fn checks(&self) -> Vec<Check> {
        vec![
            ("optimizer.lr", is_positive(self.lr), ABOVE_0),
            (
                "optimizer.final_fraction",
                (0.0..=1.0).contains(&self.final_fraction),
                "must be 0 to 1",
            ),
            (
                "optimizer.betas",
                self.betas.iter().all(|beta| (0.0..1.0).contains(beta)),
                "must be 0 or above and below 1",
            ),
            ("optimizer.eps", is_positive(self.eps), ABOVE_0),
            (
                "optimizer.weight_decay",
                is_not_negative(self.weight_decay),
                NOT_BELOW_0,
            ),
            ("optimizer.clip", is_positive(self.clip), ABOVE_0),
        ]
    }

    /// Rate of step `step` (from 0) when `progress` (0..=1) of the run is over: linear rise, then a cosine.
    pub fn rate(&self, step: u64, progress: f64) -> f64 {
        let rise = ((step + 1) as f64 / self.warmup_steps.max(1) as f64).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress.clamp(0.0, 1.0)).cos());
        self.lr * rise * (self.final_fraction + (1.0 - self.final_fraction) * cosine)
    }
}

/// Gradients summed over the parts of a batch, by tensor name.
#[derive(Default)]
pub(crate) struct Gradients {
    sums: BTreeMap<String, Vec<f32>>,
}

impl Gradients {
    /// Adds what `loss` sends to each tensor of `params`.
    pub(crate) fn add(&mut self, params: &Params, loss: &Tensor) -> Result<()> {
        self.absorb(params, loss.backward()?)
    }

    /// Adds gradients that were computed already.
    pub(crate) fn absorb(&mut self, params: &Params, mut grads: GradStore) -> Result<()> {
        for (name, var) in params.iter() {
            let Some(grad) = grads.remove(var.as_tensor()) else {
                continue;
            };
            let values: Vec<f32> = grad.flatten_all()?.to_vec1()?;
            match self.sums.get_mut(name) {
                Some(sum) => sum.iter_mut().zip(&values).for_each(|(s, x)| *s += x),
                None => {
                    self.sums.insert(name.to_owned(), values);
                }
            }
        }
        Ok(())
    }

    /// Adds the sums of another part of the batch.
    pub(crate) fn merge(&mut self, other: Self) {
        for (name, values) in other.sums {
            match self.sums.get_mut(&name) {
                Some(sum) => sum.iter_mut().zip(&values).for_each(|(s, x)| *s += x),
                None => {
                    self.sums.insert(name, values);
                }
            }
        }
    }

    /// Global norm over all tensors.
    pub(crate) fn norm(&self) -> f64 {
        let squares = |v: &Vec<f32>| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        self.sums.values().map(squares).sum::<f64>().sqrt()
    }

    #[cfg(test)]
    pub(crate) fn of(&self, name: &str) -> Option<&[f32]> {
        self.sums.get(name).map(Vec::as_slice)
    }
}

/// Moments of every tensor.
#[derive(Clone, Default)]
pub(crate) struct AdamW {
    /// Steps taken.
    pub(crate) step: u64,
    /// First and second moment by tensor name.
    pub(crate) moments: BTreeMap<String, [Vec<f32>; 2]>,
}

impl AdamW {
    /// One update at rate `lr`; returns the gradient's norm before clipping.
    pub(crate) fn update(
        &mut self,
        params: &Params,
        gradients: &Gradients,
        config: &OptimizerConfig,
        lr: f64,
    ) -> Result<f64> {
        self.step += 1;
        let norm = gradients.norm();
        let clip = (config.clip / norm.max(1e-12)).min(1.0) as f32;
        let [b1, b2] = config.betas;
        let correction1 = 1.0 - b1.powf(self.step as f64);
        let correction2 = 1.0 - b2.powf(self.step as f64);
        let rate = (lr / correction1) as f32;
        let root2 = correction2.sqrt() as f32;
        let (b1, b2, eps) = (b1 as f32, b2 as f32, config.eps as f32);
        for (name, var) in params.iter() {
            let Some(grad) = gradients.sums.get(name) else {
                continue;
            };
            let [first, second] = self
                .moments
                .entry(name.to_owned())
                .or_insert_with(|| [vec![0.0; grad.len()], vec![0.0; grad.len()]]);
            let decay = match var.dims().len() {
                2 => 1.0 - (lr * config.weight_decay) as f32,
                _ => 1.0,
            };
            let mut values: Vec<f32> = var.flatten_all()?.to_vec1()?;
            let moments = first.iter_mut().zip(second.iter_mut());
            for ((w, g), (m, v)) in values.iter_mut().zip(grad).zip(moments) {
                let g = g * clip;
                *m = b1 * *m + (1.0 - b1) * g;
                *v = b2 * *v + (1.0 - b2) * g * g;
                *w = *w * decay - rate * *m / (v.sqrt() / root2 + eps);
            }
            var.set(&Tensor::from_vec(values, var.dims(), &Device::Cpu)?)?;
        }
        Ok(norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;

    fn config() -> OptimizerConfig {
        OptimizerConfig {
            lr: 0.1,
            final_fraction: 0.1,
            warmup_steps: 10,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.0,
            clip: 1e9,
        }
    }

    #[test]
    fn the_rate_rises_then_falls_to_its_final_part() {
        let config = config();
        assert!((config.rate(0, 0.0) - 0.01).abs() < 1e-12);
        assert!((config.rate(9, 0.0) - 0.1).abs() < 1e-12);
        assert!((config.rate(500, 0.5) - 0.055).abs() < 1e-12);
        assert!((config.rate(999, 1.0) - 0.01).abs() < 1e-12);
    }

    #[test]
    fn the_first_step_moves_each_value_by_the_rate_against_its_gradient() -> Result<()> {
        let mut params = Params::default();
        let x = params.add("x", &[2], Init::One, 0)?;
        let slope = Tensor::new(&[3f32, -0.5], &Device::Cpu)?;
        let mut gradients = Gradients::default();
        gradients.add(&params, &(&x * &slope)?.sum_all()?)?;
        let mut optimizer = AdamW::default();
        optimizer.update(&params, &gradients, &config(), 0.1)?;
        let values = x.to_vec1::<f32>()?;
        // Adam's first step is the sign of the gradient times the rate, up to eps.
        assert!(
            (values[0] - 0.9).abs() < 1e-6 && (values[1] - 1.1).abs() < 1e-6,
            "{values:?}"
        );
        Ok(())
    }

    #[test]
    fn only_matrices_decay() -> Result<()> {
        let mut params = Params::default();
        let (matrix, norm) = (
            params.add("matrix", &[1, 1], Init::One, 0)?,
            params.add("norm", &[1], Init::One, 0)?,
        );
        let still = ((&matrix * 0.0)?.sum_all()? + (&norm * 0.0)?.sum_all()?)?;
        let mut gradients = Gradients::default();
        gradients.sums.insert("matrix".to_owned(), vec![0.0]);
        gradients.sums.insert("norm".to_owned(), vec![0.0]);
        assert_eq!(still.to_scalar::<f32>()?, 0.0);
        let config = OptimizerConfig {
            weight_decay: 0.5,
            ..config()
        };
        AdamW::default().update(&params, &gradients, &config, 0.1)?;
        assert_eq!(matrix.to_vec2::<f32>()?, [[0.95]]);
        assert_eq!(norm.to_vec1::<f32>()?, [1.0]);
        Ok(())
    }
}
