use candle_core::{DType, Device, Result, Tensor, Var};

use super::{LinearShape, apply, linear, linear_split, shape};
use crate::reference;
use crate::simd::Isa;
use crate::testing::{
    ROUNDING, assert_refused, assert_within, bits, on_every_device, on_every_path, random, values,
};

fn linear_on(isa: Isa, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let LinearShape { n, o, .. } = shape(x, w)?;
    apply(isa, x, w, &[o])?.reshape((n, o))
}

/// K products summed in any order are off by at most K roundings of the sum of their magnitudes; one more rounds the
/// reference.
fn assert_near_reference(got: &Tensor, x: &Tensor, w: &Tensor) -> Result<()> {
    let magnitudes = values(&reference::linear(&x.abs()?, &w.abs()?)?)?;
    let roundings = x.dim(1)? as f64 + 1.0;
    assert_within(got, &reference::linear(x, w)?, |i| {
        roundings * ROUNDING * f64::from(magnitudes[i])
    })
}

#[test]
fn every_path_agrees_with_the_reference_at_sizes_that_fill_no_tile() {
    on_every_path(|isa| {
        for k in [1, 3, 4, 5, 8, 15, 16, 17, 67, 192] {
            for o in [1, 2, 3, 4, 5, 7, 8, 9, 12, 33] {
                for n in [1, 2, 3, 4, 5, 6, 7, 13] {
                    let x = random(&[n, k], 1, &Device::Cpu)?;
                    let w = random(&[o, k], 2, &Device::Cpu)?;
                    assert_near_reference(&linear_on(isa, &x, &w)?, &x, &w)?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_row_of_weights_may_be_longer_than_a_block() {
    on_every_path(|isa| {
        let x = random(&[9, 40_000], 13, &Device::Cpu)?;
        let w = random(&[3, 40_000], 14, &Device::Cpu)?;
        assert_near_reference(&linear_on(isa, &x, &w)?, &x, &w)
    });
}

#[test]
fn the_op_agrees_with_the_reference() {
    on_every_device(|dev| {
        let (x, w) = (random(&[9, 100], 3, dev)?, random(&[70, 100], 4, dev)?);
        assert_near_reference(&linear(&x, &w)?, &x, &w)
    });
}

#[test]
fn a_row_has_the_same_bits_in_a_batch_of_any_size() {
    // Two of the sizes are large enough for two threads.
    for (k, o) in [(67, 37), (192, 640), (640, 192)] {
        let x = random(&[33, k], 5, &Device::Cpu).unwrap();
        let w = random(&[o, k], 6, &Device::Cpu).unwrap();
        on_every_path(|isa| {
            let mut alone = Vec::new();
            for row in 0..33 {
                alone.extend(bits(&linear_on(isa, &x.narrow(0, row, 1)?, &w)?)?);
            }
            for n in 1..=33 {
                let together = bits(&linear_on(isa, &x.narrow(0, 0, n)?, &w)?)?;
                assert!(
                    together == alone[..n * o],
                    "{isa:?}, {n} rows of {k} to {o}"
                );
            }
            Ok(())
        });
    }
}

#[test]
fn bf16_weights_give_the_bits_of_f32_weights_of_the_same_values() {
    on_every_path(|isa| {
        for (k, o) in [(1, 3), (17, 5), (67, 37), (192, 640)] {
            let w = random(&[o, k], 15, &Device::Cpu)?.to_dtype(DType::BF16)?;
            let wide = w.to_dtype(DType::F32)?;
            for n in [1, 2, 5, 8, 13, 33] {
                let x = random(&[n, k], 16, &Device::Cpu)?;
                let got = bits(&linear_on(isa, &x, &w)?)?;
                assert!(
                    got == bits(&linear_on(isa, &x, &wide)?)?,
                    "{isa:?}, {n} rows of {k} to {o}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn parts_are_the_columns_of_the_whole() {
    let widths = [37, 1, 24, 578];
    for dtype in [DType::F32, DType::BF16] {
        let w = random(&[640, 67], 17, &Device::Cpu)
            .unwrap()
            .to_dtype(dtype)
            .unwrap();
        for n in [1, 3, 11] {
            let x = random(&[n, 67], 18, &Device::Cpu).unwrap();
            let whole = linear(&x, &w).unwrap();
            let mut start = 0;
            for (part, width) in linear_split(&x, &w, &widths).unwrap().iter().zip(widths) {
                assert!(part.is_contiguous() && part.dims() == [n, width]);
                let want = whole.narrow(1, start, width).unwrap();
                assert_eq!(bits(part).unwrap(), bits(&want).unwrap());
                start += width;
            }
        }
        assert_refused(
            linear_split(&random(&[1, 67], 19, &Device::Cpu).unwrap(), &w, &[600, 41]),
            "widths [600, 41] do not add up to the 640 rows of w",
        );
    }
}

#[test]
fn the_threads_do_not_change_a_bit() {
    let x = random(&[16, 192], 7, &Device::Cpu).unwrap();
    let w = random(&[2048, 192], 8, &Device::Cpu).unwrap();
    for isa in Isa::all() {
        let results: Vec<Vec<u32>> = [1, 2, 3]
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                pool.install(|| bits(&linear_on(isa, &x, &w).unwrap()).unwrap())
            })
            .into();
        assert!(
            results[0] == results[1] && results[0] == results[2],
            "{isa:?}"
        );
    }
}

#[test]
fn views_are_read_where_they_lie() {
    on_every_device(|dev| {
        let (x, w) = (random(&[8, 40], 9, dev)?, random(&[12, 40], 10, dev)?);
        let want = bits(&linear(
            &x.narrow(0, 3, 2)?.copy()?,
            &w.narrow(0, 4, 6)?.copy()?,
        )?)?;
        assert_eq!(
            bits(&linear(&x.narrow(0, 3, 2)?, &w.narrow(0, 4, 6)?)?)?,
            want
        );

        let columns = linear(&x.narrow(1, 5, 20)?, &w.narrow(1, 5, 20)?)?;
        let want = linear(&x.narrow(1, 5, 20)?.copy()?, &w.narrow(1, 5, 20)?.copy()?)?;
        assert_eq!(bits(&columns)?, bits(&want)?);

        let turned = linear(&x.t()?, &w.narrow(0, 0, 8)?.t()?);
        let want = linear(
            &x.t()?.contiguous()?,
            &w.narrow(0, 0, 8)?.t()?.contiguous()?,
        )?;
        assert_eq!(bits(&turned?)?, bits(&want)?);
        Ok(())
    });
}

#[test]
fn nothing_times_something_is_empty_or_zero() {
    on_every_device(|dev| {
        let make = |rows: usize, columns: usize| Tensor::zeros((rows, columns), DType::F32, dev);
        assert_eq!(linear(&make(0, 5)?, &make(3, 5)?)?.dims(), [0, 3]);
        assert_eq!(linear(&make(2, 5)?, &make(0, 5)?)?.dims(), [2, 0]);
        assert_eq!(
            linear(&make(2, 0)?, &make(3, 0)?)?.to_vec2::<f32>()?,
            [[0.0; 3]; 2]
        );
        Ok(())
    });
}

#[test]
fn inputs_that_do_not_fit_are_refused_by_name() {
    on_every_device(|dev| {
        let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
        assert_refused(
            linear(&make(&[2, 4])?, &make(&[3, 5])?),
            "linear: x is [2, 4] but w is [3, 5]",
        );
        assert_refused(
            linear(&make(&[4])?, &make(&[3, 4])?),
            "linear: x has shape [4]",
        );
        assert_refused(
            linear(&make(&[2, 4])?, &make(&[3, 4, 1])?),
            "linear: w has shape [3, 4, 1]",
        );
        let halves = make(&[3, 4])?.to_dtype(DType::F16)?;
        assert_refused(
            linear(&make(&[2, 4])?, &halves),
            "linear: w is F16, must be f32 or bf16",
        );
        Ok(())
    });
}

#[test]
fn a_gradient_is_refused_and_not_lost() {
    on_every_device(|dev| {
        let w = Var::from_tensor(&random(&[3, 4], 11, dev)?)?;
        let y = linear(&random(&[2, 4], 12, dev)?, &w)?;
        assert_refused(y.sum_all()?.backward(), "linear");
        Ok(())
    });
}
