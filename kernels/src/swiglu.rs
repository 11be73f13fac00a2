//! The gated activation of the feed-forward block.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::exp::silu;
use crate::input::{dense_f32, slice_f32};
use crate::parallel;
use crate::simd::{Isa, Kernel, Simd};

const OP: &str = "swiglu";

/// `silu(gate) * up`, elementwise, with `silu(g) = g / (1 + exp(-g))`; f32, both of one shape.
///
/// # Errors
/// If an input is not f32 or the shapes differ.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    check(gate, up)?;
    let (gate, up) = (dense_f32(OP, "gate", gate)?, dense_f32(OP, "up", up)?);
    gate.apply_op2(&up, SwiGlu { isa: Isa::detect() })
}

pub(crate) fn check(gate: &Tensor, up: &Tensor) -> Result<()> {
    if gate.dims() != up.dims() {
        bail!(
            "{OP}: gate has shape {:?}, up has {:?}: they must be equal",
            gate.dims(),
            up.dims()
        );
    }
    Ok(())
}

/// Values that one thread takes at a time.
const PIECE: usize = 1024;

struct SwiGlu {
    isa: Isa,
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_at: &Layout,
        up: &CpuStorage,
        up_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (slice_f32(OP, gate, gate_at)?, slice_f32(OP, up, up_at)?);
        let mut out = gate.to_vec();
        // About half a nanosecond each with 16 lanes.
        parallel::for_chunks(&mut out, PIECE, gate.len() / 2, |first, piece| {
            self.isa.run(Piece {
                gate: piece,
                up: &up[first * PIECE..],
            });
        });
        Ok((CpuStorage::F32(out), gate_at.shape().clone()))
    }
}

/// Some values of the gate, which become results.
struct Piece<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (value, up) in self.gate.iter_mut().zip(self.up) {
            *value = silu(*value) * up;
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::swiglu;
    use crate::reference;
    use crate::testing::{
        ROUNDING, assert_refused, assert_within, bits, on_every_device, on_every_path, random,
        values,
    };

    #[test]
    fn the_op_agrees_with_the_reference_over_the_whole_range() {
        on_every_device(|dev| {
            for spread in [1.0, 10.0, 200.0] {
                let gate = (random(&[7, 333], 1, dev)? * spread)?;
                let up = random(&[7, 333], 2, dev)?;
                let want = reference::swiglu(&gate, &up)?;
                let sizes = values(&want)?;
                // Exponential (six), sum, division, product and the rounding of the reference. Where the exponential
                // of -gate overflows, below -88.7, the result is zero instead of at most 89 / f32::MAX.
                assert_within(&swiglu(&gate, &up)?, &want, |i| {
                    10.0 * ROUNDING * f64::from(sizes[i].abs()) + 89.0 / f64::from(f32::MAX)
                })?;
            }
            Ok(())
        });
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        on_every_device(|dev| {
            let gate = Tensor::new(&[f32::MAX, -f32::MAX, 88.8, -88.8, 0.0, -103.9], dev)?;
            let up = Tensor::full(2f32, 6, dev)?;
            let got = values(&swiglu(&gate, &(up * 0.25)?)?)?;
            assert_eq!((got[0], got[1], got[4]), (f32::MAX / 2.0, 0.0, 0.0));
            assert!(got.iter().all(|value| value.is_finite()), "{got:?}");
            Ok(())
        });
    }

    #[test]
    fn neither_batch_nor_threads_nor_view_change_a_bit() {
        let gate = random(&[33, 1280], 3, &Device::Cpu).unwrap();
        let up = random(&[33, 1300], 4, &Device::Cpu)
            .unwrap()
            .narrow(1, 20, 1280)
            .unwrap();
        on_every_path(|_| {
            let mut alone = Vec::new();
            for row in 0..33 {
                alone.extend(bits(&swiglu(
                    &gate.narrow(0, row, 1)?,
                    &up.narrow(0, row, 1)?,
                )?)?);
            }
            assert!(bits(&swiglu(&gate, &up)?)? == alone);
            Ok(())
        });
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused_by_name() {
        on_every_device(|dev| {
            let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
            assert_eq!(swiglu(&make(&[0, 4])?, &make(&[0, 4])?)?.dims(), [0, 4]);
            assert_refused(
                swiglu(&make(&[2, 4])?, &make(&[4, 2])?),
                "swiglu: gate has shape [2, 4], up has [4, 2]",
            );
            let half = make(&[2, 4])?.to_dtype(DType::F16)?;
            assert_refused(swiglu(&make(&[2, 4])?, &half), "swiglu: up is F16");
            Ok(())
        });
    }
}
