//! How far a draft law is from the label and from the target's law, straight from logits.

use super::rows::{max, softmax_in_place, sum};
use super::view::{slice, view};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use kernels::exp;
use std::sync::{Arc, Mutex};

/// What the two parts of a row's loss are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Parts {
    /// `-log q(label)`.
    pub(crate) cross_entropy: f32,
    /// `sum over the vocabulary of |q - p|`.
    pub(crate) distance: f32,
}

/// `sum over rows of weight * (cross_entropy * -log q(label) + distance * sum |q - p|)`, as a scalar, and each row's
/// overlap `sum of min(p, q)` in 0 to 1, without gradient: the chance that a draft drawn from q is accepted.
///
/// `logits`, `teacher`: `[N, V]` contiguous, q and p their softmax; `labels`, `weights`: one a row. The teacher gets
/// no gradient. Rows of weight 0 cost nothing and have an overlap of 0.
///
/// # Errors
/// If the shapes differ or a label is outside the vocabulary.
pub(crate) fn imitation(
    logits: &Tensor,
    teacher: &Tensor,
    labels: &[u32],
    weights: &[f32],
    parts: Parts,
) -> Result<(Tensor, Vec<f32>)> {
    let kept = Arc::new(Mutex::new(Kept::default()));
    let loss = logits.apply_op1(Imitation {
        teacher: teacher.detach(),
        labels: labels.to_vec(),
        weights: weights.to_vec(),
        parts,
        kept: Arc::clone(&kept),
    })?;
    let overlap = std::mem::take(&mut kept.lock().expect("no panic while it is held").overlap);
    Ok((loss, overlap))
}

struct Imitation {
    teacher: Tensor,
    labels: Vec<u32>,
    weights: Vec<f32>,
    parts: Parts,
    kept: Arc<Mutex<Kept>>,
}

/// Written by the forward pass, where the laws are at hand.
#[derive(Default)]
struct Kept {
    grad: Option<Vec<f32>>,
    overlap: Vec<f32>,
}

impl CustomOp1 for Imitation {
    fn name(&self) -> &'static str {
        "imitation"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, vocab) = layout.shape().dims2()?;
        if self.labels.len() != n_rows || self.weights.len() != n_rows {
            candle_core::bail!("{n_rows} rows need as many labels and weights");
        }
        if self.teacher.dims2()? != (n_rows, vocab) {
            let teacher = self.teacher.dims();
            candle_core::bail!("the teacher is {teacher:?}, the logits are {n_rows} x {vocab}");
        }
        let logits = slice(logits, layout)?;
        let teacher = view(&self.teacher)?;
        let mut grad = vec![0f32; logits.len()];
        let mut overlap = vec![0f32; n_rows];
        let mut scratch = vec![0f32; vocab];
        let mut loss = 0f64;
        for (row, weight) in self.weights.iter().enumerate() {
            if *weight == 0.0 {
                continue;
            }
            let span = row * vocab..(row + 1) * vocab;
            let label = self.labels[row] as usize;
            if label >= vocab {
                candle_core::bail!("label {label} is outside a vocabulary of {vocab}");
            }
            scratch.copy_from_slice(&teacher.slice()[span.clone()]);
            let mut pair = RowPair {
                logits: &logits[span.clone()],
                grad: &mut grad[span],
                scratch: &mut scratch,
            };
            let (cross_entropy, distance) = pair.losses(label, *weight, self.parts);
            loss += f64::from(*weight)
                * f64::from(
                    self.parts.cross_entropy * cross_entropy + self.parts.distance * distance,
                );
            overlap[row] = (1.0 - 0.5 * distance).clamp(0.0, 1.0);
        }
        *self.kept.lock().expect("no panic while it is held") = Kept {
            grad: Some(grad),
            overlap,
        };
        Ok((CpuStorage::F32(vec![loss as f32]), Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let scale = grad.to_scalar::<f32>()?;
        let mut kept = self.kept.lock().expect("no panic while it is held");
        let Some(mut values) = kept.grad.take() else {
            candle_core::bail!("the gradient of an imitation can be taken once");
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

/// One row of logits, where its gradient goes, and the teacher's logits, which are overwritten.
struct RowPair<'a> {
    logits: &'a [f32],
    grad: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl RowPair<'_> {
    /// `-log q(label)` and `sum |q - p|`; leaves the gradient of their weighted sum.
    fn losses(&mut self, label: usize, weight: f32, parts: Parts) -> (f32, f32) {
        let (q, p) = (&mut *self.grad, &mut *self.scratch);
        let top = max(self.logits);
        for (dst, x) in q.iter_mut().zip(self.logits) {
            *dst = exp(x - top);
        }
        let total = sum(q);
        let cross_entropy = top + total.ln() - self.logits[label];
        let scale = 1.0 / total;
        q.iter_mut().for_each(|v| *v *= scale);
        softmax_in_place(p);
        // p <- q - p, then q times its sign, which is the slope of |q - p| in q.
        for (p, q) in p.iter_mut().zip(q.iter()) {
            *p = q - *p;
        }
        let distance = {
            let mut lanes = [0f32; 8];
            for chunk in p.chunks(8) {
                for (lane, gap) in lanes.iter_mut().zip(chunk) {
                    *lane += gap.abs();
                }
            }
            lanes.iter().sum::<f32>()
        };
        for (gap, q) in p.iter_mut().zip(q.iter()) {
            let sign = f32::from(u8::from(*gap > 0.0)) - f32::from(u8::from(*gap < 0.0));
            *gap = q * sign;
        }
        let mean = sum(p);
        let (ce, l1) = (weight * parts.cross_entropy, weight * parts.distance);
        // d CE = q - onehot; d L1 = q * (sign - mean sign).
        for (q, signed) in q.iter_mut().zip(p.iter()) {
            *q = ce * *q + l1 * (signed - *q * mean);
        }
        q[label] -= ce;
        (cross_entropy, distance)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;
    use candle_core::{D, Device};

    fn log_softmax(logits: &Tensor) -> Result<Tensor> {
        let top = logits.max_keepdim(D::Minus1)?.detach();
        let shifted = logits.broadcast_sub(&top)?;
        let log_total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
        shifted.broadcast_sub(&log_total)
    }

    #[test]
    fn both_parts_equal_their_definitions() -> Result<()> {
        let labels = [3u32, 0, 6, 2];
        let weights = [1.0f32, 0.3, 0.0, 2.0];
        let teacher = (random(&[4, 11], 5)? * 3.0)?;
        for (cross_entropy, distance) in [(1.0, 0.0), (0.0, 1.0), (0.1, 0.9)] {
            let parts = Parts {
                cross_entropy,
                distance,
            };
            assert_same_gradients(
                &[(random(&[4, 11], 9)? * 3.0)?],
                |v| imitation(&v[0], &teacher, &labels, &weights, parts)?.0 * 3.0,
                |v| {
                    let log_q = log_softmax(&v[0])?;
                    let ids = Tensor::new(&labels, &Device::Cpu)?.reshape((4, 1))?;
                    let chosen = log_q.gather(&ids, 1)?.squeeze(1)?.neg()?;
                    let gap = (log_q.exp()? - log_softmax(&teacher)?.exp()?)?;
                    let gap = gap.abs()?.sum(D::Minus1)?;
                    let row =
                        ((chosen * f64::from(cross_entropy))? + (gap * f64::from(distance))?)?;
                    row.mul(&Tensor::new(&weights, &Device::Cpu)?)?.sum_all()? * 3.0
                },
            )?;
        }
        Ok(())
    }

    #[test]
    fn the_overlap_is_the_mass_both_laws_share() -> Result<()> {
        let law = |p: &[[f32; 3]; 2]| Tensor::new(p, &Device::Cpu)?.log();
        let q = law(&[[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]])?;
        let p = law(&[[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]])?;
        let parts = Parts {
            cross_entropy: 0.0,
            distance: 1.0,
        };
        let (loss, overlap) = imitation(&q, &p, &[0, 0], &[2.0, 1.0], parts)?;
        assert!((loss.to_scalar::<f32>()? - 1.0).abs() < 1e-6, "{loss}");
        assert!((overlap[0] - 0.75).abs() < 1e-6 && (overlap[1] - 1.0).abs() < 1e-6);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_an_error() -> Result<()> {
        let parts = Parts {
            cross_entropy: 1.0,
            distance: 1.0,
        };
        let (row, other) = (random(&[1, 7], 9)?, random(&[1, 8], 9)?);
        assert!(imitation(&row, &row, &[7], &[1.0], parts).is_err());
        assert!(imitation(&row, &other, &[0], &[1.0], parts).is_err());
        assert!(imitation(&row, &row, &[0, 0], &[1.0, 1.0], parts).is_err());
        Ok(())
    }
}
