//! Log-probabilities of a few tokens a row, straight from logits.

use super::rows::{max, softmax_in_place, sum};
use super::view::{slice, view};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use kernels::exp;

/// `log softmax(logits)` at the given columns: `logits` `[N, V]` contiguous, `ids` `[N * M]` -> `[N, M]`.
///
/// The gradient is exact, the normaliser's part included. A row whose results nobody uses costs a pass forward and
/// none backward.
///
/// # Errors
/// If there are not M ids a row or one is outside the vocabulary.
pub(crate) fn log_probs_at(logits: &Tensor, ids: &[u32]) -> Result<Tensor> {
    let (n_rows, vocab) = logits.dims2()?;
    if n_rows == 0 || !ids.len().is_multiple_of(n_rows) {
        candle_core::bail!(
            "{} ids do not make the same number for each of {n_rows} rows",
            ids.len()
        );
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        candle_core::bail!("token {id} is outside a vocabulary of {vocab}");
    }
    logits.apply_op1(LogProbs { ids: ids.to_vec() })
}

struct LogProbs {
    ids: Vec<u32>,
}

impl CustomOp1 for LogProbs {
    fn name(&self) -> &'static str {
        "log_probs_at"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, vocab) = layout.shape().dims2()?;
        let width = self.ids.len() / n_rows;
        let logits = slice(logits, layout)?;
        let mut out = Vec::with_capacity(self.ids.len());
        let mut powers = vec![0f32; vocab];
        for (row, ids) in logits.chunks_exact(vocab).zip(self.ids.chunks_exact(width)) {
            let top = max(row);
            for (power, x) in powers.iter_mut().zip(row) {
                *power = exp(x - top);
            }
            let total = top + sum(&powers).ln();
            out.extend(ids.iter().map(|id| row[*id as usize] - total));
        }
        Ok((CpuStorage::F32(out), Shape::from((n_rows, width))))
    }

    // d/dx_v sum_m g_m (x_m - log sum exp x) = g at v, minus softmax_v times the sum of g.
    fn bwd(&self, logits: &Tensor, _out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (n_rows, vocab) = logits.dims2()?;
        let width = self.ids.len() / n_rows;
        let grad = grad.contiguous()?;
        let (xs, gs) = (view(logits)?, view(&grad)?);
        let mut out = vec![0f32; n_rows * vocab];
        let rows = out
            .chunks_exact_mut(vocab)
            .zip(xs.slice().chunks_exact(vocab));
        let grads = gs
            .slice()
            .chunks_exact(width)
            .zip(self.ids.chunks_exact(width));
        for ((out, x), (g, ids)) in rows.zip(grads) {
            if g.iter().all(|g| *g == 0.0) {
                continue;
            }
            let total: f32 = g.iter().sum();
            out.copy_from_slice(x);
            softmax_in_place(out);
            out.iter_mut().for_each(|p| *p *= -total);
            for (g, id) in g.iter().zip(ids) {
                out[*id as usize] += g;
            }
        }
        Ok(Some(Tensor::from_vec(
            out,
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
    fn the_values_are_those_of_a_log_softmax() -> Result<()> {
        let ids = [3u32, 0, 0, 6, 2, 2, 5, 1, 4, 4, 4, 6];
        assert_same_gradients(
            &[(random(&[4, 7], 9)? * 3.0)?],
            |v| log_probs_at(&v[0], &ids),
            |v| {
                let top = v[0].max_keepdim(D::Minus1)?.detach();
                let shifted = v[0].broadcast_sub(&top)?;
                let log_total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
                let ids = Tensor::new(&ids, &Device::Cpu)?.reshape((4, 3))?;
                shifted.broadcast_sub(&log_total)?.gather(&ids, 1)
            },
        )
    }

    #[test]
    fn ids_that_do_not_fit_are_refused() -> Result<()> {
        assert!(log_probs_at(&random(&[2, 7], 9)?, &[1, 7]).is_err());
        assert!(log_probs_at(&random(&[2, 7], 9)?, &[1, 2, 3]).is_err());
        Ok(())
    }
}
