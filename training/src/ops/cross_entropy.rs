//! Weighted cross-entropy straight from logits.

use super::rows::{max, sum};
use super::view::slice;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use kernels::exp;
use std::sync::Mutex;

/// `sum over rows of weight * -log softmax(logits)[label]`, as a scalar.
///
/// `logits`: `[N, V]` contiguous; `labels`, `weights`: one a row. Rows of weight 0 cost nothing and their
/// label is not looked at. To get a mean, divide the weights beforehand by their sum over the whole batch;
/// then gradient accumulation over parts of the batch is exact.
///
/// # Errors
/// If the lengths differ or a label is outside the vocabulary.
pub(crate) fn cross_entropy(logits: &Tensor, labels: &[u32], weights: &[f32]) -> Result<Tensor> {
    logits.apply_op1(CrossEntropy {
        labels: labels.to_vec(),
        weights: weights.to_vec(),
        grad: Mutex::new(None),
    })
}

struct CrossEntropy {
    labels: Vec<u32>,
    weights: Vec<f32>,
    /// The gradient, written by the forward pass because the exponentials are at hand there.
    grad: Mutex<Option<Vec<f32>>>,
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, vocab) = layout.shape().dims2()?;
        if self.labels.len() != n_rows || self.weights.len() != n_rows {
            candle_core::bail!("{n_rows} rows need as many labels and weights");
        }
        let logits = slice(logits, layout)?;
        let mut grad = vec![0f32; logits.len()];
        let mut loss = 0f64;
        let rows = logits.chunks_exact(vocab).zip(grad.chunks_exact_mut(vocab));
        for ((row, grad), (&label, &weight)) in rows.zip(self.labels.iter().zip(&self.weights)) {
            if weight == 0.0 {
                continue;
            }
            let Some(&chosen) = row.get(label as usize) else {
                candle_core::bail!("label {label} is outside a vocabulary of {vocab}");
            };
            let top = max(row);
            for (dst, x) in grad.iter_mut().zip(row) {
                *dst = exp(x - top);
            }
            let total = sum(grad);
            loss += f64::from(weight) * f64::from(top + total.ln() - chosen);
            let scale = weight / total;
            for dst in grad.iter_mut() {
                *dst *= scale;
            }
            grad[label as usize] -= weight;
        }
        *self.grad.lock().expect("no panic while it is held") = Some(grad);
        Ok((CpuStorage::F32(vec![loss as f32]), Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let scale = grad.to_scalar::<f32>()?;
        let kept = self.grad.lock().expect("no panic while it is held").take();
        let Some(mut values) = kept else {
            candle_core::bail!("the gradient of a cross-entropy can be taken once");
        };
        if scale != 1.0 {
            values.iter_mut().for_each(|v| *v *= scale);
        }
        Ok(Some(Tensor::from_vec(
            values,
            logits.shape(),
            logits.device(),
        )?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;
    use candle_core::{D, Device};

    #[test]
    fn the_loss_equals_a_weighted_log_softmax() -> Result<()> {
        let labels = [3u32, 0, 6, 2];
        let weights = [1.0f32, 0.3, 0.0, 2.0];
        assert_same_gradients(
            &[random(&[4, 7], 9)?],
            |v| cross_entropy(&v[0], &labels, &weights)? * 3.0,
            |v| {
                let top = v[0].max_keepdim(D::Minus1)?.detach();
                let shifted = v[0].broadcast_sub(&top)?;
                let log_total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
                let log_p = shifted.broadcast_sub(&log_total)?;
                let ids = Tensor::new(&labels, &Device::Cpu)?.reshape((4, 1))?;
                let chosen = log_p.gather(&ids, 1)?.squeeze(1)?;
                chosen
                    .mul(&Tensor::new(&weights, &Device::Cpu)?)?
                    .sum_all()?
                    * -3.0
            },
        )
    }

    #[test]
    fn a_label_outside_the_vocabulary_is_an_error() -> Result<()> {
        assert!(cross_entropy(&random(&[1, 7], 9)?, &[7], &[1.0]).is_err());
        Ok(())
    }
}
