//! Weighted cross-entropy against whole laws instead of single labels.

use super::rows::{dot, max, sum};
use super::view::slice;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use kernels::exp;
use std::sync::{Arc, Mutex};

/// Laws that rows of logits are compared with.
#[derive(Clone, Debug)]
pub(crate) struct Laws {
    /// Columns of a law.
    pub width: usize,
    /// `[laws, width]`, each row sums to 1.
    pub values: Arc<[f32]>,
}

/// `sum over rows of weight * -sum_j law_j log softmax(logits)_j`, as a scalar.
///
/// `logits`: `[N, width]` contiguous; `rows`: for each the number of its law and its weight. Rows of weight 0 cost
/// nothing and their law is not looked at. Weights are divided beforehand, as for
/// [`cross_entropy`](super::cross_entropy()).
///
/// # Errors
/// If the lengths differ or a law is not there.
pub(crate) fn soft_cross_entropy(
    logits: &Tensor,
    laws: &Laws,
    rows: Vec<(usize, f32)>,
) -> Result<Tensor> {
    logits.apply_op1(SoftCrossEntropy {
        laws: laws.clone(),
        rows,
        grad: Mutex::new(None),
    })
}

struct SoftCrossEntropy {
    laws: Laws,
    rows: Vec<(usize, f32)>,
    /// The gradient, written by the forward pass because the exponentials are at hand there.
    grad: Mutex<Option<Vec<f32>>>,
}

impl CustomOp1 for SoftCrossEntropy {
    fn name(&self) -> &'static str {
        "soft_cross_entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, width) = layout.shape().dims2()?;
        if self.rows.len() != n_rows || self.laws.width != width {
            candle_core::bail!(
                "{n_rows} rows of {width} need as many laws of that width, got {} of {}",
                self.rows.len(),
                self.laws.width
            );
        }
        let logits = slice(logits, layout)?;
        let mut grad = vec![0f32; logits.len()];
        let mut loss = 0f64;
        let pairs = logits.chunks_exact(width).zip(grad.chunks_exact_mut(width));
        for ((row, grad), &(law, weight)) in pairs.zip(&self.rows) {
            if weight == 0.0 {
                continue;
            }
            let Some(law) = self.laws.values.chunks_exact(width).nth(law) else {
                candle_core::bail!("law {law} is not there");
            };
            let top = max(row);
            for (dst, x) in grad.iter_mut().zip(row) {
                *dst = exp(x - top);
            }
            let total = sum(grad);
            // The law sums to 1, so -sum p (x - top - ln total) = top + ln total - p x.
            loss += f64::from(weight) * f64::from(top + total.ln() - dot(law, row));
            let scale = weight / total;
            for (dst, p) in grad.iter_mut().zip(law) {
                *dst = *dst * scale - weight * p;
            }
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
        let values = [
            0.5f32, 0.25, 0.25, 0.0, 0.0, 1.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4,
        ];
        let laws = Laws {
            width: 4,
            values: Arc::new(values),
        };
        let rows = vec![(2, 1.0), (0, 0.3), (9, 0.0), (2, 2.0), (1, 0.5)];
        assert_same_gradients(
            &[random(&[5, 4], 9)?],
            |v| soft_cross_entropy(&v[0], &laws, rows.clone())? * 3.0,
            |v| {
                let total = v[0].exp()?.sum_keepdim(D::Minus1)?.log()?;
                let log_p = v[0].broadcast_sub(&total)?;
                let row = |i: usize, w: f32| values[4 * i..4 * i + 4].iter().map(move |p| p * w);
                let weights: Vec<f32> = rows
                    .iter()
                    .flat_map(|(law, w)| row(if *w == 0.0 { 0 } else { *law }, *w))
                    .collect();
                let weights = Tensor::from_vec(weights, (5, 4), &Device::Cpu)?;
                (log_p * weights)?.sum_all()? * -3.0
            },
        )
    }

    #[test]
    fn a_law_that_is_not_there_is_an_error() -> Result<()> {
        let laws = Laws {
            width: 4,
            values: Arc::new([0.25; 4]),
        };
        assert!(soft_cross_entropy(&random(&[1, 4], 9)?, &laws, vec![(1, 1.0)]).is_err());
        Ok(())
    }
}
