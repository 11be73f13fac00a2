//! The sum of two tensors of one shape, for residual streams.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, slice_f32};
use crate::parallel;

const OP: &str = "add";
/// Values that one thread takes at a time.
const PIECE: usize = 4096;

/// `a + b`, elementwise; f32, both of one shape. Candle's own sum goes through a pool of spinning threads, which costs
/// more than the sum of a few rows.
///
/// # Errors
/// If an input is not f32 or the shapes differ.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dims() != b.dims() {
        bail!(
            "{OP}: a has shape {:?}, b has {:?}: they must be equal",
            a.dims(),
            b.dims()
        );
    }
    let (a, b) = (dense_f32(OP, "a", a)?, dense_f32(OP, "b", b)?);
    a.apply_op2(&b, Add)
}

struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_at: &Layout,
        b: &CpuStorage,
        b_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (a, b) = (slice_f32(OP, a, a_at)?, slice_f32(OP, b, b_at)?);
        let mut out = a.to_vec();
        // About four values a nanosecond.
        parallel::for_chunks(&mut out, PIECE, a.len() / 4, |first, piece| {
            for (value, b) in piece.iter_mut().zip(&b[first * PIECE..]) {
                *value += b;
            }
        });
        Ok((CpuStorage::F32(out), a_at.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Tensor};

    use super::add;
    use crate::testing::{assert_refused, bits, on_every_device, random, values};

    #[test]
    fn every_value_is_the_rounded_sum_of_two() {
        on_every_device(|dev| {
            let a = random(&[33, 517], 1, dev)?;
            let b = random(&[33, 600], 2, dev)?.narrow(1, 40, 517)?;
            let pairs = values(&a)?.into_iter().zip(values(&b)?);
            let want: Vec<u32> = pairs.map(|(a, b)| (a + b).to_bits()).collect();
            assert_eq!(bits(&add(&a, &b)?)?, want);
            let none = Tensor::zeros((0, 4), DType::F32, dev)?;
            assert_eq!(add(&none, &none)?.dims(), [0, 4]);
            assert_refused(add(&a, &none), "add: a has shape [33, 517], b has [0, 4]");
            let wide = none.to_dtype(DType::F64)?;
            assert_refused(add(&none, &wide), "b is F64");
            Ok(())
        });
    }
}
