//! Root-mean-square normalisation of the last dimension.
#![allow(
    unsafe_code,
    reason = "the sum of squares reads the row through pointers"
)]

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, slice_f32};
use crate::parallel;
use crate::simd::{Isa, Kernel, Simd};
use crate::tile::dots;

const OP: &str = "rms_norm";

/// `x / sqrt(mean(x^2) + eps) * w` over the last dimension: `x` `[.., H]` f32, `w` `[H]` f32 -> the shape of `x`.
///
/// # Errors
/// If an input is not f32, or `w` is not one vector as long as the last dimension of `x`.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f32) -> Result<Tensor> {
    let hidden = row_len(x, w)?;
    let (x, w) = (dense_f32(OP, "x", x)?, dense_f32(OP, "w", w)?);
    x.apply_op2(
        &w,
        RmsNorm {
            isa: Isa::detect(),
            hidden,
            eps,
        },
    )
}

/// The length of a row.
pub(crate) fn row_len(x: &Tensor, w: &Tensor) -> Result<usize> {
    let Some(&hidden) = x.dims().last() else {
        bail!("{OP}: x is a scalar, must have a last dimension to normalise");
    };
    if w.dims() != [hidden] {
        bail!(
            "{OP}: w has shape {:?}, must be [{hidden}] for x of shape {:?}",
            w.dims(),
            x.dims()
        );
    }
    Ok(hidden)
}

struct RmsNorm {
    isa: Isa,
    hidden: usize,
    eps: f32,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &Layout,
        w: &CpuStorage,
        w_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (slice_f32(OP, x, x_at)?, slice_f32(OP, w, w_at)?);
        let mut out = x.to_vec();
        if self.hidden > 0 {
            // Two passes over the row at about four values a nanosecond.
            let cost_ns = x.len() / 2;
            parallel::for_chunks(&mut out, self.hidden, cost_ns, |_, rows| {
                self.isa.run(Rows {
                    rows,
                    w,
                    eps: self.eps,
                });
            });
        }
        Ok((CpuStorage::F32(out), x_at.shape().clone()))
    }
}

/// Whole rows, normalised in place.
struct Rows<'a> {
    rows: &'a mut [f32],
    w: &'a [f32],
    eps: f32,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.rows.chunks_exact_mut(self.w.len()) {
            let at = row.as_ptr();
            // SAFETY: every pointer is the start of the row.
            let [[[squares, ..]]] = unsafe { dots(simd, [at], [[at; 4]], row.len()) };
            let scale = 1.0 / (squares / row.len() as f32 + self.eps).sqrt();
            for (value, weight) in row.iter_mut().zip(self.w) {
                *value = *value * scale * weight;
            }
        }
    }
}
