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
            // A copy and two passes over the row take about a quarter of a nanosecond for each value.
            let cost_ns = x.len() / 4;
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
            let [[squares]] = unsafe { dots(simd, [at], [at], row.len(), 0) };
            let scale = 1.0 / (squares / row.len() as f32 + self.eps).sqrt();
            for (value, weight) in row.iter_mut().zip(self.w) {
                *value = *value * scale * weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Result, Tensor};

    use super::{RmsNorm, rms_norm, row_len};
    use crate::reference;
    use crate::simd::Isa;
    use crate::testing::{
        ROUNDING, assert_refused, assert_within, bits, on_every_device, on_every_path, random,
        values,
    };

    const EPS: f32 = 1e-6;

    fn norm_on(isa: Isa, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        x.apply_op2_no_bwd(
            w,
            &RmsNorm {
                isa,
                hidden: row_len(x, w)?,
                eps: EPS,
            },
        )
    }

    /// The sum of H squares is off by at most H roundings, and its root by half as many; mean, eps, root, division,
    /// the two products and the rounding of the reference add seven.
    fn assert_near_reference(got: &Tensor, x: &Tensor, w: &Tensor) -> Result<()> {
        let want = reference::rms_norm(x, w, EPS)?;
        let magnitudes = values(&want)?;
        let roundings = w.elem_count() as f64 / 2.0 + 7.0;
        assert_within(got, &want, |i| {
            roundings * ROUNDING * f64::from(magnitudes[i].abs())
        })
    }

    #[test]
    fn every_path_agrees_with_the_reference() {
        on_every_path(|isa| {
            for hidden in [1, 7, 16, 33, 64, 192] {
                let (x, w) = (
                    random(&[3, 2, hidden], 1, &Device::Cpu)?,
                    random(&[hidden], 2, &Device::Cpu)?,
                );
                assert_near_reference(&norm_on(isa, &x, &w)?, &x, &w)?;
            }
            Ok(())
        });
    }

    #[test]
    fn any_leading_shape_will_do() {
        on_every_device(|dev| {
            let w = random(&[24], 3, dev)?;
            for shape in [&[24][..], &[5, 24], &[2, 3, 24], &[0, 24]] {
                let x = random(shape, 4, dev)?;
                let got = rms_norm(&x, &w, EPS)?;
                assert_eq!(got.dims(), shape);
                assert_near_reference(&got, &x, &w)?;
            }
            assert_eq!(
                rms_norm(&random(&[3, 0], 5, dev)?, &random(&[0], 6, dev)?, EPS)?.dims(),
                [3, 0]
            );
            Ok(())
        });
    }

    #[test]
    fn a_row_has_the_same_bits_in_a_batch_of_any_size() {
        // The longer rows are enough for two threads.
        for hidden in [67, 9000] {
            let x = random(&[33, hidden], 7, &Device::Cpu).unwrap();
            let w = random(&[hidden], 8, &Device::Cpu).unwrap();
            on_every_path(|isa| {
                let mut alone = Vec::new();
                for row in 0..33 {
                    alone.extend(bits(&norm_on(isa, &x.narrow(0, row, 1)?, &w)?)?);
                }
                for n in 1..=33 {
                    let together = bits(&norm_on(isa, &x.narrow(0, 0, n)?, &w)?)?;
                    assert!(
                        together == alone[..together.len()],
                        "{isa:?}, {n} rows of {hidden}"
                    );
                }
                Ok(())
            });
        }
    }

    #[test]
    fn views_are_read_where_they_lie() {
        on_every_device(|dev| {
            let (x, w) = (
                random(&[6, 40], 9, dev)?,
                random(&[60], 10, dev)?.narrow(0, 20, 20)?,
            );
            let view = x.narrow(1, 7, 20)?.narrow(0, 2, 3)?;
            let want = rms_norm(&view.copy()?, &w.copy()?, EPS)?;
            assert_eq!(bits(&rms_norm(&view, &w, EPS)?)?, bits(&want)?);
            Ok(())
        });
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused_by_name() {
        on_every_device(|dev| {
            let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
            assert_refused(
                rms_norm(&make(&[2, 4])?, &make(&[5])?, EPS),
                "rms_norm: w has shape [5], must be [4]",
            );
            assert_refused(
                rms_norm(&make(&[2, 4])?, &make(&[1, 4])?, EPS),
                "rms_norm: w has shape [1, 4]",
            );
            assert_refused(
                rms_norm(&make(&[])?, &make(&[1])?, EPS),
                "rms_norm: x is a scalar",
            );
            let wide = make(&[2, 4])?.to_dtype(DType::F64)?;
            assert_refused(rms_norm(&wide, &make(&[4])?, EPS), "rms_norm: x is F64");
            Ok(())
        });
    }
}
