use candle_core::{DType, Device, Result, Tensor};

use super::{Attend, Visible, attend, heads};
use crate::reference;
use crate::simd::Isa;
use crate::testing::{
    ROUNDING, assert_refused, assert_within, bits, on_every_device, on_every_path, random, values,
};

struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Vec<Visible>,
    scale: f32,
}

impl Case {
    /// `n` rows that see ever more of one sequence of `n_cached` rows, or a chain of rows behind a prefix.
    fn new(
        n: usize,
        (query, kv, d): (usize, usize, usize),
        n_cached: usize,
        dev: &Device,
    ) -> Result<Self> {
        let visible = (0..n).map(|row| {
            // Runs of rows that start alike, longer and shorter than the kernel takes at once.
            let start = [0, 3, 1, 3][row / 11 % 4];
            sees(start, n_cached - 5 - (row * 3) % (n_cached - 5), row % 6)
        });
        Ok(Self {
            q: random(&[n, query, d], 1, dev)?,
            k: random(&[n_cached, kv * d], 2, dev)?,
            v: random(&[n_cached, kv * d], 3, dev)?,
            visible: visible.collect(),
            scale: 1.0 / (d as f32).sqrt(),
        })
    }

    fn on(&self, isa: Isa) -> Result<Tensor> {
        let heads = heads(&self.q, &self.k, &self.v, &self.visible)?;
        let op = Attend {
            isa,
            heads,
            visible: self.visible.clone(),
            scale: self.scale,
        };
        self.q.apply_op3_no_bwd(&self.k, &self.v, &op)
    }

    fn attend(&self) -> Result<Tensor> {
        attend(&self.q, &self.k, &self.v, &self.visible, self.scale)
    }

    fn row(&self, row: usize) -> Result<Self> {
        Ok(Self {
            q: self.q.narrow(0, row, 1)?,
            k: self.k.clone(),
            v: self.v.clone(),
            visible: vec![self.visible[row].clone()],
            scale: self.scale,
        })
    }

    /// A score is off by at most `d + 2` roundings of the sum of its magnitudes, which is below `scale * d` times the
    /// largest query value since those of the keys are below one; taking off the maximum doubles that and rounds once
    /// more. A weight is off by a factor of e to the power of that, with six more roundings for the exponential, twice
    /// since it stands above and below the fraction; the two sums add a rounding for each row, the inverse of the total
    /// and the product with it two, the reference one. The mean of values below one takes the same factor.
    fn assert_near_reference(&self, got: &Tensor) -> Result<()> {
        let want = reference::attend(&self.q, &self.k, &self.v, &self.visible, self.scale)?;
        let d = self.q.dim(2)?;
        let largest = values(&self.q)?
            .into_iter()
            .fold(0f32, |max, value| max.max(value.abs()));
        let score_off = f64::from(self.scale * largest) * d as f64 * (d as f64 + 3.0) * 2.0;
        assert_within(got, &want, |i| {
            let n_seen = self.visible[i / (self.q.dims()[1] * d)].len() as f64;
            (2.0 * (score_off + 6.0) + 2.0 * n_seen + 3.0) * ROUNDING
        })
    }
}

/// `prefix` rows from `start` on, then `n_extra` of the rows behind them in reverse order.
fn sees(start: usize, prefix: usize, n_extra: usize) -> Visible {
    let extra = (0..n_extra).rev().map(|i| (i % 5) as u32).collect();
    Visible {
        start: start as u32,
        prefix: prefix as u32,
        extra,
    }
}

#[test]
fn every_path_agrees_with_the_reference() {
    on_every_path(|isa| {
        for heads in [
            (1, 1, 16),
            (2, 1, 20),
            (3, 3, 5),
            (6, 2, 32),
            (4, 1, 48),
            (16, 8, 64),
            (7, 1, 80),
            (6, 1, 128),
        ] {
            for n_cached in [6, 9, 40, 131] {
                let case = Case::new(7, heads, n_cached, &Device::Cpu)?;
                case.assert_near_reference(&case.on(isa)?)?;
            }
        }
        Ok(())
    });
}

#[test]
fn the_op_agrees_with_the_reference() {
    on_every_device(|dev| {
        let case = Case::new(5, (8, 2, 24), 50, dev)?;
        case.assert_near_reference(&case.attend()?)
    });
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    on_every_device(|dev| {
        let mut case = Case::new(3, (2, 1, 16), 30, dev)?;
        case.q = (case.q * 1000.0)?;
        case.assert_near_reference(&case.attend()?)
    });
}

#[test]
fn a_row_has_the_same_bits_in_a_batch_of_any_size() {
    // The longer cache is large enough for two threads.
    for (heads, n_cached) in [((6, 2, 20), 37), ((4, 2, 64), 400)] {
        let case = Case::new(33, heads, n_cached, &Device::Cpu).unwrap();
        on_every_path(|isa| {
            let mut alone = Vec::new();
            for row in 0..33 {
                alone.extend(bits(&case.row(row)?.on(isa)?)?);
            }
            for n in 1..=33 {
                let part = Case {
                    q: case.q.narrow(0, 0, n)?,
                    k: case.k.clone(),
                    v: case.v.clone(),
                    visible: case.visible[..n].to_vec(),
                    scale: case.scale,
                };
                let together = bits(&part.on(isa)?)?;
                assert!(together == alone[..together.len()], "{isa:?}, {n} rows");
            }
            Ok(())
        });
    }
}

#[test]
fn where_the_visible_rows_lie_does_not_change_a_bit() {
    let (heads, n_cached) = ((4, 2, 36), 61);
    let case = Case::new(1, heads, n_cached, &Device::Cpu).unwrap();
    let order: Vec<u32> = vec![50, 3, 4, 5, 6, 60, 7, 1, 9, 30, 31, 2, 58];
    on_every_path(|isa| {
        let gathered = |t: &Tensor| t.index_select(&Tensor::new(&order[..], &Device::Cpu)?, 0);
        let seen = |start: u32, prefix: u32, extra: &[u32]| Visible {
            start,
            prefix,
            extra: extra.to_vec(),
        };
        let result = |k: &Tensor, v: &Tensor, visible: Visible| {
            let case = Case {
                q: case.q.clone(),
                k: k.clone(),
                v: v.clone(),
                visible: vec![visible],
                scale: case.scale,
            };
            bits(&case.on(isa)?)
        };
        let all = order.len() as u32;
        let (k, v) = (gathered(&case.k)?, gathered(&case.v)?);
        let want = result(&k, &v, seen(0, all, &[]))?;
        assert!(
            result(&case.k, &case.v, seen(0, 0, &order))? == want,
            "only extra rows"
        );
        assert!(
            result(&case.k, &case.v, seen(50, 1, &order[1..]))? == want,
            "a prefix of one"
        );
        for prefix in 0..all {
            let extra: Vec<u32> = (prefix..all).collect();
            assert!(
                result(&k, &v, seen(0, prefix, &extra))? == want,
                "a prefix of {prefix}"
            );
        }
        Ok(())
    });
}

#[test]
fn rows_that_are_not_visible_do_not_matter() {
    on_every_device(|dev| {
        let mut case = Case::new(1, (2, 1, 8), 20, dev)?;
        case.visible = vec![Visible {
            start: 4,
            prefix: 3,
            extra: vec![15],
        }];
        let want = bits(&case.attend()?)?;
        let rows = [0u32, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19];
        let poison = Tensor::full(f32::NAN, (rows.len(), 8), dev)?;
        crate::write_rows(&case.k, &poison, &rows)?;
        crate::write_rows(&case.v, &poison, &rows)?;
        assert_eq!(bits(&case.attend()?)?, want);
        Ok(())
    });
}

#[test]
fn views_are_read_where_they_lie() {
    on_every_device(|dev| {
        let case = Case::new(4, (4, 2, 16), 30, dev)?;
        let want = bits(&case.attend()?)?;
        let wide = Tensor::cat(&[&case.v, &case.k, &case.v], 1)?;
        let tall = Tensor::cat(&[&case.k, &case.v], 0)?;
        let queries = Tensor::cat(&[&case.q, &case.q], 2)?;
        let viewed = Case {
            q: queries.narrow(2, 16, 16)?,
            k: wide.narrow(1, 32, 32)?,
            v: tall.narrow(0, 30, 30)?,
            ..case
        };
        assert_eq!(bits(&viewed.attend()?)?, want);
        Ok(())
    });
}

#[test]
fn no_rows_give_no_rows() {
    on_every_device(|dev| {
        let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
        assert_eq!(
            attend(
                &make(&[0, 4, 8])?,
                &make(&[3, 16])?,
                &make(&[3, 16])?,
                &[],
                1.0
            )?
            .dims(),
            [0, 32]
        );
        assert_eq!(
            attend(
                &make(&[0, 4, 8])?,
                &make(&[0, 16])?,
                &make(&[0, 16])?,
                &[],
                1.0
            )?
            .dims(),
            [0, 32]
        );
        Ok(())
    });
}

#[test]
fn inputs_that_do_not_fit_are_refused_by_name() {
    on_every_device(|dev| {
        let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
        let refuse = |seen: Visible, words: &str| -> Result<()> {
            let cache = make(&[10, 16])?;
            assert_refused(
                attend(&make(&[1, 4, 8])?, &cache, &cache.copy()?, &[seen], 1.0),
                words,
            );
            Ok(())
        };
        let seen = |start, prefix, extra: &[u32]| Visible {
            start,
            prefix,
            extra: extra.to_vec(),
        };
        refuse(seen(3, 0, &[]), "query row 0 sees no cache row")?;
        refuse(seen(3, 8, &[]), "sees 8 rows from 3 on, the cache has 10")?;
        refuse(seen(u32::MAX, u32::MAX, &[]), "the cache has 10")?;
        refuse(seen(0, 1, &[10]), "sees row 10, the cache has 10")?;

        let (q, one) = (make(&[1, 4, 8])?, [seen(0, 1, &[])]);
        assert_refused(
            attend(&q, &make(&[2, 12])?, &make(&[2, 12])?, &one, 1.0),
            "12 columns",
        );
        assert_refused(
            attend(&q, &make(&[2, 24])?, &make(&[2, 24])?, &one, 1.0),
            "24 columns",
        );
        assert_refused(
            attend(&q, &make(&[2, 16])?, &make(&[3, 16])?, &one, 1.0),
            "v_cache has shape [3, 16]",
        );
        assert_refused(
            attend(&q, &make(&[2, 16])?, &make(&[2, 16])?, &[], 1.0),
            "0 sets of visible rows",
        );
        assert_refused(
            attend(
                &make(&[4, 8])?,
                &make(&[2, 16])?,
                &make(&[2, 16])?,
                &one,
                1.0,
            ),
            "q has shape [4, 8]",
        );
        Ok(())
    });
}
