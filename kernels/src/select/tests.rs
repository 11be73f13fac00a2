use candle_core::{DType, Device, Result, Tensor};

use super::{Best, TOPK, argmax_rows, topk_rows};
use crate::reference;
use crate::testing::{assert_refused, bits, on_every_device, on_every_path, random};

#[test]
fn lowest_index_wins_a_tie() {
    on_every_device(|dev| {
        let x = Tensor::new(&[[0f32, 2., 2.], [5., 1., 5.], [-0.0, 0.0, -1.0]], dev)?;
        assert_eq!(argmax_rows(&x)?.to_vec1::<u32>()?, [1, 0, 0]);
        let (ids, values) = topk_rows(&x, 3)?;
        assert_eq!(ids.to_vec2::<u32>()?, [[1, 2, 0], [0, 2, 1], [0, 1, 2]]);
        assert_eq!(
            values.to_vec2::<f32>()?,
            [[2., 2., 0.], [5., 5., 1.], [0., 0., -1.]]
        );
        Ok(())
    });
}

/// Rows with many ties, all equal, rising, falling, and with infinities.
fn awkward_rows(v: usize) -> Result<Tensor> {
    let random = random(&[3, v], 1, &Device::Cpu)?;
    let tied = (random.narrow(0, 0, 1)? * 3.0)?.floor()?;
    let rising = Tensor::arange(0f32, v as f32, &Device::Cpu)?.unsqueeze(0)?;
    let lowest = Tensor::full(f32::NEG_INFINITY, (1, v), &Device::Cpu)?;
    let mixed = random
        .narrow(0, 1, 1)?
        .gt(0.5)?
        .where_cond(&lowest.neg()?, &lowest)?;
    Tensor::cat(
        &[&random, &tied, &rising, &rising.neg()?, &lowest, &mixed],
        0,
    )
}

#[test]
fn every_path_orders_as_the_reference_does() {
    for v in [1, 2, 16, 63, 64, 65, 129, 1000] {
        let x = awkward_rows(v).unwrap();
        let rows = x.dim(0).unwrap();
        on_every_path(|isa| {
            for k in [1, 2, 7, 16, 63, 64, 65, 300, v]
                .into_iter()
                .filter(|&k| k <= v)
            {
                let ids = x.apply_op1_no_bwd(&Best { isa, name: TOPK, k })?;
                let (want, _) = reference::topk_rows(&x, k)?;
                assert_eq!(ids.dims(), [rows, k]);
                assert!(
                    ids.to_vec2::<u32>()? == want.to_vec2::<u32>()?,
                    "best {k} of {v}"
                );
            }
            Ok(())
        });
    }
}

#[test]
fn many_long_rows_are_shared_out_without_a_change() {
    let x = random(&[9, 60_000], 2, &Device::Cpu).unwrap();
    let (want, want_values) = reference::topk_rows(&x, 16).unwrap();
    on_every_path(|_| {
        let (ids, values) = topk_rows(&x, 16)?;
        assert!(ids.to_vec2::<u32>()? == want.to_vec2::<u32>()?);
        assert!(bits(&values)? == bits(&want_values)?);
        let first = want.narrow(1, 0, 1)?.flatten_all()?.to_vec1::<u32>()?;
        assert_eq!(argmax_rows(&x)?.to_vec1::<u32>()?, first);
        assert_eq!(reference::argmax_rows(&x)?.to_vec1::<u32>()?, first);
        Ok(())
    });
}

#[test]
fn a_nan_anywhere_is_named() {
    on_every_device(|dev| {
        for (row, column) in [(0, 0), (1, 70), (2, 199), (1, 3)] {
            let mut values = vec![0f32; 3 * 200];
            values[row * 200 + column] = f32::NAN;
            let x = Tensor::from_vec(values, (3, 200), dev)?;
            let words = format!("the value at row {row}, column {column} is NaN");
            assert_refused(argmax_rows(&x), &format!("argmax_rows: {words}"));
            for k in [1, 5, 100] {
                assert_refused(topk_rows(&x, k), &words);
                assert_refused(reference::topk_rows(&x, k), &words);
            }
        }
        Ok(())
    });
}

#[test]
fn views_are_read_where_they_lie() {
    on_every_device(|dev| {
        let x = random(&[4, 90], 3, dev)?;
        for view in [x.narrow(0, 1, 2)?, x.narrow(1, 10, 70)?, x.t()?] {
            let (ids, values) = topk_rows(&view, 4)?;
            let (want_ids, want_values) = topk_rows(&view.copy()?.contiguous()?, 4)?;
            assert_eq!(ids.to_vec2::<u32>()?, want_ids.to_vec2::<u32>()?);
            assert_eq!(bits(&values)?, bits(&want_values)?);
        }
        Ok(())
    });
}

#[test]
fn nothing_has_no_best() {
    on_every_device(|dev| {
        let make = |rows: usize, columns: usize| Tensor::zeros((rows, columns), DType::F32, dev);
        assert_eq!(argmax_rows(&make(0, 7)?)?.dims(), [0]);
        let (ids, values) = topk_rows(&make(0, 7)?, 3)?;
        assert_eq!((ids.dims(), values.dims()), (&[0, 3][..], &[0, 3][..]));
        let (ids, values) = topk_rows(&make(2, 7)?, 0)?;
        assert_eq!((ids.dims(), values.dims()), (&[2, 0][..], &[2, 0][..]));
        Ok(())
    });
}

#[test]
fn asking_for_more_than_there_is_is_refused() {
    on_every_device(|dev| {
        let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
        assert_refused(
            topk_rows(&make(&[2, 7])?, 8),
            "topk_rows: the best 8 of rows with only 7 values",
        );
        assert_refused(
            argmax_rows(&make(&[2, 0])?),
            "argmax_rows: the best 1 of rows with only 0 values",
        );
        assert_refused(argmax_rows(&make(&[7])?), "argmax_rows: x has shape [7]");
        assert_refused(
            argmax_rows(&make(&[2, 7])?.to_dtype(DType::F64)?),
            "argmax_rows: x is F64",
        );
        Ok(())
    });
}
