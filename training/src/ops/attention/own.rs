//! Keys that only one query sees: in EAGLE-3's training a step's rows see the rows of earlier steps at their own index
//! only, so the scores are row-wise products and no mask is needed.

use super::super::rows::{dot, max, sum};
use super::{Attention, Segment};
use candle_core::Result;
use kernels::exp;
use std::ops::Range;

/// Where the keys that belong to one query alone lie in `k` and `v`: query row r sees rows
/// `first + m * stride + r` for every `m < count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnKeys {
    /// Row of query 0's first own key.
    pub first: usize,
    /// Rows from one own key of a query to its next; the number of queries.
    pub stride: usize,
    /// Own keys of each query.
    pub count: usize,
}

impl OwnKeys {
    /// No own keys.
    pub(crate) const NONE: Self = Self {
        first: 0,
        stride: 0,
        count: 0,
    };

    pub(super) fn check(self, n_queries: usize, n_keys: usize) -> Result<()> {
        let fits = self.stride >= n_queries && self.first + self.count * self.stride <= n_keys;
        match self.count == 0 || fits {
            true => Ok(()),
            false => {
                candle_core::bail!("{self:?} is outside {n_queries} queries and {n_keys} keys")
            }
        }
    }
}

/// Replaces both rows by the softmax over their values together.
pub(super) fn joint_softmax(seen: &mut [f32], own: &mut [f32]) {
    let top = max(seen).max(max(own));
    for value in seen.iter_mut().chain(own.iter_mut()) {
        *value = exp(*value - top);
    }
    let scale = 1.0 / (sum(seen) + sum(own));
    for value in seen.iter_mut().chain(own.iter_mut()) {
        *value *= scale;
    }
}

impl Attention {
    /// Values of own key `m` of the query behind row `row_idx` of a gathered block.
    fn own_at(
        &self,
        row_idx: usize,
        m: usize,
        (segment, kv_head): (&Segment, usize),
    ) -> Range<usize> {
        let (dim, width) = (
            self.shape.head_dim,
            self.shape.kv_heads * self.shape.head_dim,
        );
        let query = segment.queries.start + row_idx % segment.queries.len();
        let row = self.own.first + m * self.own.stride + query;
        let start = row * width + kv_head * dim;
        start..start + dim
    }

    /// Products of the rows of `block` `[group * Tq, head_dim]` with their own rows of `source`: `[group * Tq, own keys]`.
    pub(super) fn own_scores(
        &self,
        block: &[f32],
        source: &[f32],
        at: (&Segment, usize),
    ) -> Vec<f32> {
        let rows = block.chunks_exact(self.shape.head_dim).enumerate();
        let count = self.own.count;
        rows.flat_map(|(row_idx, row)| {
            (0..count).map(move |m| dot(row, &source[self.own_at(row_idx, m, at)]))
        })
        .collect()
    }

    /// Adds to each row of `block` its own rows of `source`, weighted.
    pub(super) fn add_own(
        &self,
        block: &mut [f32],
        weights: &[f32],
        source: &[f32],
        at: (&Segment, usize),
    ) {
        let rows = block.chunks_exact_mut(self.shape.head_dim).enumerate();
        for (row_idx, row) in rows {
            for m in 0..self.own.count {
                let weight = weights[row_idx * self.own.count + m];
                let own = &source[self.own_at(row_idx, m, at)];
                row.iter_mut()
                    .zip(own)
                    .for_each(|(dst, x)| *dst += weight * x);
            }
        }
    }

    /// Adds to the own rows in `target` the rows of `block`, weighted; heads of a group share them.
    pub(super) fn add_to_own(
        &self,
        target: &mut [f32],
        weights: &[f32],
        block: &[f32],
        at: (&Segment, usize),
    ) {
        let rows = block.chunks_exact(self.shape.head_dim).enumerate();
        for (row_idx, row) in rows {
            for m in 0..self.own.count {
                let weight = weights[row_idx * self.own.count + m];
                let own = &mut target[self.own_at(row_idx, m, at)];
                own.iter_mut()
                    .zip(row)
                    .for_each(|(dst, x)| *dst += weight * x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{assert_same_gradients, random};
    use super::super::{AttentionShape, attention_with_own};
    use super::*;
    use candle_core::{D, Tensor};
    use std::sync::Arc;

    const SHAPE: AttentionShape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
    };

    /// Two texts of 4 and 3 rows, of which the last 3 and 2 ask; two own keys each.
    fn segments() -> Arc<[Segment]> {
        let suffix = |queries: Range<usize>, keys: Range<usize>| Segment {
            queries,
            keys: [0..0, keys],
            span: super::super::KeySpan::Causal,
        };
        Arc::new([suffix(0..3, 0..4), suffix(3..5, 4..7)])
    }

    const OWN: OwnKeys = OwnKeys {
        first: 7,
        stride: 5,
        count: 2,
    };

    /// One query and head at a time, from the list of rows it sees.
    fn slow(v: &[Tensor]) -> Result<Tensor> {
        let seen: [Vec<u32>; 5] = [
            vec![0, 1, 7, 12],
            vec![0, 1, 2, 8, 13],
            vec![0, 1, 2, 3, 9, 14],
            vec![4, 5, 10, 15],
            vec![4, 5, 6, 11, 16],
        ];
        let mut rows = Vec::new();
        for (query, keys) in seen.iter().enumerate() {
            let keys = Tensor::new(keys.to_vec(), v[0].device())?;
            let mut heads = Vec::new();
            for head in 0..SHAPE.heads {
                let column = |x: &Tensor, h: usize| {
                    x.narrow(1, h * SHAPE.head_dim, SHAPE.head_dim)?
                        .contiguous()
                };
                let q = column(&v[0].narrow(0, query, 1)?, head)?;
                let k = column(&v[1], head / 2)?.index_select(&keys, 0)?;
                let values = column(&v[2], head / 2)?.index_select(&keys, 0)?;
                let scores = (q.matmul(&k.t()?)? * (1.0 / (SHAPE.head_dim as f64).sqrt()))?;
                let e = scores.exp()?;
                let p = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
                heads.push(p.matmul(&values)?);
            }
            rows.push(Tensor::cat(&heads, 1)?);
        }
        Tensor::cat(&rows, 0)
    }

    #[test]
    fn each_query_sees_its_own_keys_beside_the_shared_ones() -> Result<()> {
        let inputs = [
            random(&[5, 24], 21)?,
            random(&[17, 12], 22)?,
            random(&[17, 12], 23)?,
        ];
        assert_same_gradients(
            &inputs,
            |v| attention_with_own([&v[0], &v[1], &v[2]], SHAPE, &segments(), OWN),
            slow,
        )
    }

    #[test]
    fn own_keys_that_are_not_there_are_an_error() -> Result<()> {
        let inputs = [
            random(&[5, 24], 1)?,
            random(&[16, 12], 2)?,
            random(&[16, 12], 3)?,
        ];
        let [q, k, v] = &inputs;
        assert!(attention_with_own([q, k, v], SHAPE, &segments(), OWN).is_err());
        Ok(())
    }
}
