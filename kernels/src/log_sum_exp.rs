//! The normaliser of a softmax.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::exp::exp;
use crate::input::{dense_f32, dims2, slice_f32};
use crate::parallel;
use crate::simd::{Isa, Kernel, Simd};

const OP: &str = "log_sum_exp_rows";
/// Values whose exponentials are summed in f32 before they join the row's f64 sum.
const BLOCK: usize = 1024;
const LANES: usize = 32;

/// `ln sum exp(x)` of each row: `x` `[N, V]` f32 -> `[N]` f32. `x - log_sum_exp_rows(x)` is the row's log-softmax.
///
/// A row with a NaN gives NaN.
///
/// # Errors
/// If `x` is not f32 with two dimensions, or V is zero.
pub fn log_sum_exp_rows(x: &Tensor) -> Result<Tensor> {
    check(x)?;
    dense_f32(OP, "x", x)?.apply_op1(LogSumExp { isa: Isa::detect() })
}

pub(crate) fn check(x: &Tensor) -> Result<(usize, usize)> {
    let (n, v) = dims2(OP, "x", x)?;
    if v == 0 {
        bail!("{OP}: x has rows without values");
    }
    Ok((n, v))
}

struct LogSumExp {
    isa: Isa,
}

impl CustomOp1 for LogSumExp {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, x: &CpuStorage, x_at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, v) = x_at.shape().dims2()?;
        let x = slice_f32(OP, x, x_at)?;
        let mut out = vec![0f32; n];
        // About a third of a nanosecond a value with 16 lanes.
        parallel::for_chunks(&mut out, 1, n * v / 3, |first, out| {
            for (i, out) in out.iter_mut().enumerate() {
                let row = &x[(first + i) * v..][..v];
                *out = self.isa.run(Row(row));
            }
        });
        Ok((CpuStorage::F32(out), Shape::from(n)))
    }
}

struct Row<'a>(&'a [f32]);

impl Kernel for Row<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        let mut tops = [f32::NEG_INFINITY; LANES];
        let chunks = self.0.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (top, &value) in tops.iter_mut().zip(chunk) {
                *top = if value > *top { value } else { *top };
            }
        }
        let all = tops.iter().chain(rest).copied();
        let top = all.fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        if !top.is_finite() {
            return top;
        }
        let mut total = 0f64;
        for block in self.0.chunks(BLOCK) {
            let mut sums = [0f32; LANES];
            let chunks = block.chunks_exact(LANES);
            let rest = chunks.remainder();
            for chunk in chunks {
                for (sum, &value) in sums.iter_mut().zip(chunk) {
                    *sum += exp(value - top);
                }
            }
            for (sum, &value) in sums.iter_mut().zip(rest) {
                *sum += exp(value - top);
            }
            total += sums.iter().map(|s| f64::from(*s)).sum::<f64>();
        }
        (f64::from(top) + total.ln()) as f32
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::log_sum_exp_rows;
    use crate::reference;
    use crate::testing::{
        assert_refused, assert_within, bits, on_every_device, on_every_path, random, values,
    };

    #[test]
    fn the_op_agrees_with_the_reference() {
        on_every_device(|dev| {
            for (shape, spread) in [([3, 1], 1.0), ([2, 31], 30.0), ([4, 5000], 9.0)] {
                let x = (random(&shape, 5, dev)? * spread)?;
                // 3e-7 of the exponential, at most 32 sums of one sign in f32, and the rounding of the result.
                assert_within(
                    &log_sum_exp_rows(&x)?,
                    &reference::log_sum_exp_rows(&x)?,
                    |_| 3e-6 + 1e-7 * spread,
                )?;
            }
            Ok(())
        });
    }

    #[test]
    fn neither_batch_nor_threads_change_a_bit() {
        let x = random(&[40, 20_000], 6, &Device::Cpu).unwrap();
        on_every_path(|_| {
            let together = bits(&log_sum_exp_rows(&x)?)?;
            for (row, together) in together.into_iter().enumerate() {
                assert_eq!(bits(&log_sum_exp_rows(&x.narrow(0, row, 1)?)?)?, [together]);
            }
            Ok(())
        });
    }

    #[test]
    fn the_ends_of_the_range_stay_what_they_are() {
        on_every_device(|dev| {
            let x = Tensor::new(&[[1e30f32, -1e30, 0.0], [f32::NAN, 0.0, 1.0]], dev)?;
            let got = values(&log_sum_exp_rows(&x)?)?;
            assert_eq!(got[0], 1e30);
            assert!(got[1].is_nan());
            assert_refused(log_sum_exp_rows(&x.narrow(1, 0, 0)?), "rows without values");
            Ok(())
        });
    }
}
