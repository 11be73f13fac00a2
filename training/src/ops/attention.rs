//! Grouped-query attention over ragged segments.

mod own;

use super::rows::{dot, softmax_in_place};
use super::view::{slice, view};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub(crate) use own::OwnKeys;

/// Which of a segment's keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySpan {
    /// Query `i` of the segment sees the keys up to and with the `i`-th of the last `queries` keys.
    Causal,
    /// Every query sees every key.
    Full,
}

/// Query rows that see the same keys.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Rows of `q`.
    pub queries: Range<usize>,
    /// Rows of `k` and `v`, in this order; either range may be empty.
    pub keys: [Range<usize>; 2],
    /// What each query sees of them.
    pub span: KeySpan,
}

impl Segment {
    /// A stretch of text in which each token sees itself and what stands before it in the stretch.
    pub(crate) fn text(rows: Range<usize>) -> Self {
        Self {
            queries: rows.clone(),
            keys: [0..0, rows],
            span: KeySpan::Causal,
        }
    }

    fn n_keys(&self) -> usize {
        self.keys[0].len() + self.keys[1].len()
    }
}

/// How the columns of `q`, `k` and `v` split into heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head `i` reads head `i / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
}

/// Softmax attention, scaled by `1 / sqrt(head_dim)`.
///
/// `q`: `[Nq, heads * head_dim]`, `k`, `v`: `[Nk, kv_heads * head_dim]`, contiguous, rotated and normed already.
/// Returns `[Nq, heads * head_dim]`; rows of `q` in no segment come out as 0. No two segments may share a query row.
///
/// # Errors
/// If a segment reaches outside the tensors or sees no key.
pub(crate) fn attention(
    [q, k, v]: [&Tensor; 3],
    shape: AttentionShape,
    segments: &Arc<[Segment]>,
) -> Result<Tensor> {
    attention_with_own([q, k, v], shape, segments, OwnKeys::NONE)
}

/// The same, where each query also sees keys that no other query sees; one softmax over both kinds.
///
/// # Errors
/// As [`attention`], and if there are fewer rows of `k` than `own` names.
pub(crate) fn attention_with_own(
    [q, k, v]: [&Tensor; 3],
    shape: AttentionShape,
    segments: &Arc<[Segment]>,
    own: OwnKeys,
) -> Result<Tensor> {
    let op = Attention {
        shape,
        segments: segments.clone(),
        own,
        weights: Mutex::new(Vec::new()),
    };
    q.apply_op3(k, v, op)
}

struct Attention {
    shape: AttentionShape,
    segments: Arc<[Segment]>,
    own: OwnKeys,
    /// Softmax weights of the forward pass for each segment and key head.
    weights: Mutex<Vec<Weights>>,
}

/// Softmax weights of the query heads of one key head in one segment.
struct Weights {
    /// `[group * Tq, Tk]`.
    shared: CpuStorage,
    /// `[group * Tq, own keys]`.
    own: Vec<f32>,
}

/// `a b` or `a b^T` of contiguous blocks: `a` is `[m, k]`.
fn times(
    a: &CpuStorage,
    b: &CpuStorage,
    (m, n, k): (usize, usize, usize),
    right: Right,
) -> Result<CpuStorage> {
    let b_layout = match right {
        Right::AsIs => Layout::contiguous((k, n)),
        Right::Transposed => Layout::contiguous((n, k)).transpose(0, 1)?,
    };
    a.matmul(b, (1, m, n, k), &Layout::contiguous((m, k)), &b_layout)
}

/// `a^T b`: `a` is `[k, m]`, `b` is `[k, n]`.
fn left_transposed_times(
    a: &CpuStorage,
    b: &CpuStorage,
    (m, n, k): (usize, usize, usize),
) -> Result<CpuStorage> {
    let a_layout = Layout::contiguous((k, m)).transpose(0, 1)?;
    a.matmul(b, (1, m, n, k), &a_layout, &Layout::contiguous((k, n)))
}

#[derive(Clone, Copy)]
enum Right {
    AsIs,
    Transposed,
}

impl Attention {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    /// The query heads of one key head: row `g * Tq + t` of the result is head `g` at time `t`.
    fn gather_queries(&self, source: &[f32], segment: &Segment, kv_head: usize) -> CpuStorage {
        let (dim, width) = (self.shape.head_dim, self.shape.heads * self.shape.head_dim);
        let mut out = Vec::with_capacity(self.group() * segment.queries.len() * dim);
        for g in 0..self.group() {
            let column = (kv_head * self.group() + g) * dim;
            for row in segment.queries.clone() {
                let start = row * width + column;
                out.extend_from_slice(&source[start..start + dim]);
            }
        }
        CpuStorage::F32(out)
    }

    fn scatter_queries(
        &self,
        target: &mut [f32],
        block: &[f32],
        segment: &Segment,
        kv_head: usize,
    ) {
        let (dim, width) = (self.shape.head_dim, self.shape.heads * self.shape.head_dim);
        let mut blocks = block.chunks_exact(dim);
        for g in 0..self.group() {
            let column = (kv_head * self.group() + g) * dim;
            for (row, values) in segment.queries.clone().zip(&mut blocks) {
                let start = row * width + column;
                target[start..start + dim].copy_from_slice(values);
            }
        }
    }

    fn gather_keys(&self, source: &[f32], segment: &Segment, kv_head: usize) -> CpuStorage {
        let (dim, width) = (
            self.shape.head_dim,
            self.shape.kv_heads * self.shape.head_dim,
        );
        let mut out = Vec::with_capacity(segment.n_keys() * dim);
        for row in segment.keys.iter().cloned().flatten() {
            let start = row * width + kv_head * dim;
            out.extend_from_slice(&source[start..start + dim]);
        }
        CpuStorage::F32(out)
    }

    /// Adds, since segments may share keys.
    fn add_keys(&self, target: &mut [f32], block: &[f32], segment: &Segment, kv_head: usize) {
        let (dim, width) = (
            self.shape.head_dim,
            self.shape.kv_heads * self.shape.head_dim,
        );
        let rows = segment.keys.iter().cloned().flatten();
        for (row, values) in rows.zip(block.chunks_exact(dim)) {
            let start = row * width + kv_head * dim;
            for (dst, x) in target[start..start + dim].iter_mut().zip(values) {
                *dst += x;
            }
        }
    }

    /// How many keys query `time` of the segment sees.
    fn seen(&self, segment: &Segment, time: usize) -> usize {
        match segment.span {
            KeySpan::Full => segment.n_keys(),
            KeySpan::Causal => segment.n_keys() + time + 1 - segment.queries.len(),
        }
    }

    /// Scores to weights, in place.
    fn softmax(&self, scores: &mut [f32], own: &mut [f32], segment: &Segment) {
        let (n_queries, n_keys) = (segment.queries.len(), segment.n_keys());
        let scale = self.scale();
        for (row_idx, row) in scores.chunks_exact_mut(n_keys).enumerate() {
            let (seen, hidden) = row.split_at_mut(self.seen(segment, row_idx % n_queries));
            let own = &mut own[row_idx * self.own.count..(row_idx + 1) * self.own.count];
            seen.iter_mut().for_each(|x| *x *= scale);
            own.iter_mut().for_each(|x| *x *= scale);
            match own.is_empty() {
                true => softmax_in_place(seen),
                false => own::joint_softmax(seen, own),
            }
            hidden.fill(0.0);
        }
    }

    fn check(&self, n_queries: usize, n_keys: usize) -> Result<()> {
        for segment in self.segments.iter() {
            let last_key = segment.keys[0].end.max(segment.keys[1].end);
            if segment.queries.end > n_queries || last_key > n_keys {
                candle_core::bail!("{segment:?} is outside {n_queries} queries and {n_keys} keys");
            }
            let causal_fits =
                segment.span == KeySpan::Full || segment.n_keys() >= segment.queries.len();
            if segment.queries.is_empty() || segment.n_keys() == 0 || !causal_fits {
                candle_core::bail!("{segment:?} has a query without keys");
            }
        }
        self.own.check(n_queries, n_keys)
    }

    /// The five products of one segment and key head, added to the three gradients.
    fn backward_block(
        &self,
        inputs: [&[f32]; 4],
        at: (&Segment, usize),
        p: &Weights,
        grads: &mut [Vec<f32>; 3],
    ) -> Result<()> {
        let [q, k, v, grad] = inputs;
        let (segment, kv_head) = at;
        let (rows, n_keys, dim) = (
            self.group() * segment.queries.len(),
            segment.n_keys(),
            self.shape.head_dim,
        );
        let d_out = self.gather_queries(grad, segment, kv_head);
        let values = self.gather_keys(v, segment, kv_head);
        let d_v = left_transposed_times(&p.shared, &d_out, (n_keys, dim, rows))?;
        let mut d_own = self.own_scores(d_out.as_slice()?, v, at);
        let mut d_s = times(&d_out, &values, (rows, n_keys, dim), Right::Transposed)?;
        if let CpuStorage::F32(d_s) = &mut d_s {
            let scale = self.scale();
            let p_rows = p.shared.as_slice::<f32>()?.chunks_exact(n_keys);
            for (row_idx, (d, p_row)) in d_s.chunks_exact_mut(n_keys).zip(p_rows).enumerate() {
                let own = row_idx * self.own.count..(row_idx + 1) * self.own.count;
                let (d_own, p_own) = (&mut d_own[own.clone()], &p.own[own]);
                let mean = dot(d, p_row) + dot(d_own, p_own);
                let pairs = d.iter_mut().zip(p_row);
                for (d, p) in pairs.chain(d_own.iter_mut().zip(p_own)) {
                    *d = p * (*d - mean) * scale;
                }
            }
        }
        let queries = self.gather_queries(q, segment, kv_head);
        let keys = self.gather_keys(k, segment, kv_head);
        let mut d_q = times(&d_s, &keys, (rows, dim, n_keys), Right::AsIs)?;
        if let CpuStorage::F32(d_q) = &mut d_q {
            self.add_own(d_q, &d_own, k, at);
        }
        self.add_to_own(&mut grads[1], &d_own, queries.as_slice()?, at);
        self.add_to_own(&mut grads[2], &p.own, d_out.as_slice()?, at);
        let d_k = left_transposed_times(&d_s, &queries, (n_keys, dim, rows))?;
        self.scatter_queries(&mut grads[0], d_q.as_slice()?, segment, kv_head);
        self.add_keys(&mut grads[1], d_k.as_slice()?, segment, kv_head);
        self.add_keys(&mut grads[2], d_v.as_slice()?, segment, kv_head);
        Ok(())
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let dim = self.shape.head_dim;
        self.check(q_layout.dims()[0], k_layout.dims()[0])?;
        let (q, k, v) = (
            slice(q, q_layout)?,
            slice(k, k_layout)?,
            slice(v, v_layout)?,
        );
        let mut out = vec![0f32; q.len()];
        let mut kept = Vec::with_capacity(self.segments.len() * self.shape.kv_heads);
        for segment in self.segments.iter() {
            let (rows, n_keys) = (self.group() * segment.queries.len(), segment.n_keys());
            for kv_head in 0..self.shape.kv_heads {
                let queries = self.gather_queries(q, segment, kv_head);
                let keys = self.gather_keys(k, segment, kv_head);
                let values = self.gather_keys(v, segment, kv_head);
                let mut p = times(&queries, &keys, (rows, n_keys, dim), Right::Transposed)?;
                let mut own = self.own_scores(queries.as_slice()?, k, (segment, kv_head));
                if let CpuStorage::F32(p) = &mut p {
                    self.softmax(p, &mut own, segment);
                }
                let mut mixed = times(&p, &values, (rows, dim, n_keys), Right::AsIs)?;
                if let CpuStorage::F32(mixed) = &mut mixed {
                    self.add_own(mixed, &own, v, (segment, kv_head));
                }
                self.scatter_queries(&mut out, mixed.as_slice()?, segment, kv_head);
                kept.push(Weights { shared: p, own });
            }
        }
        *self.weights.lock().expect("no panic while it is held") = kept;
        Ok((CpuStorage::F32(out), q_layout.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        let (qs, ks, vs, gs) = (view(q)?, view(k)?, view(v)?, view(&grad)?);
        let inputs = [qs.slice(), ks.slice(), vs.slice(), gs.slice()];
        let mut grads = [&inputs[0], &inputs[1], &inputs[2]].map(|x| vec![0f32; x.len()]);
        let kept = self.weights.lock().expect("no panic while it is held");
        let mut kept = kept.iter();
        for segment in self.segments.iter() {
            for kv_head in 0..self.shape.kv_heads {
                let p = kept
                    .next()
                    .expect("the forward pass kept one a segment and head");
                self.backward_block(inputs, (segment, kv_head), p, &mut grads)?;
            }
        }
        let [d_q, d_k, d_v] = grads;
        Ok((
            Some(Tensor::from_vec(d_q, q.shape(), q.device())?),
            Some(Tensor::from_vec(d_k, k.shape(), k.device())?),
            Some(Tensor::from_vec(d_v, v.shape(), v.device())?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;
    use candle_core::{D, Device};

    const SHAPE: AttentionShape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
    };

    /// The same from plain operations: one dense mask over all rows, keys repeated for their group.
    fn slow(v: &[Tensor], segments: &[Segment]) -> Result<Tensor> {
        let (n_queries, n_keys) = (v[0].dim(0)?, v[1].dim(0)?);
        let mut mask = vec![f32::NEG_INFINITY; n_queries * n_keys];
        for segment in segments {
            let keys: Vec<usize> = segment.keys.iter().cloned().flatten().collect();
            for (time, query) in segment.queries.clone().enumerate() {
                let hidden = match segment.span {
                    KeySpan::Full => 0,
                    KeySpan::Causal => segment.queries.len() - 1 - time,
                };
                for key in &keys[..keys.len() - hidden] {
                    mask[query * n_keys + key] = 0.0;
                }
            }
        }
        let mask = Tensor::from_vec(mask, (n_queries, n_keys), &Device::Cpu)?;
        let group = SHAPE.heads / SHAPE.kv_heads;
        let mut heads = Vec::new();
        for head in 0..SHAPE.heads {
            let column = |x: &Tensor, h: usize| {
                x.narrow(1, h * SHAPE.head_dim, SHAPE.head_dim)?
                    .contiguous()
            };
            let (q, k, v) = (
                column(&v[0], head)?,
                column(&v[1], head / group)?,
                column(&v[2], head / group)?,
            );
            let scores = (q.matmul(&k.t()?)? * (1.0 / (SHAPE.head_dim as f64).sqrt()))?;
            let scores = scores.broadcast_add(&mask)?;
            let top = scores.max_keepdim(D::Minus1)?.detach();
            let e = scores.broadcast_sub(&top)?.exp()?;
            let p = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
            heads.push(p.matmul(&v)?);
        }
        Tensor::cat(&heads, 1)
    }

    fn check(n_queries: usize, n_keys: usize, segments: &[Segment]) -> Result<()> {
        let inputs = [
            random(&[n_queries, 24], 11)?,
            random(&[n_keys, 12], 12)?,
            random(&[n_keys, 12], 13)?,
        ];
        let shared: Arc<[Segment]> = Arc::from(segments);
        assert_same_gradients(
            &inputs,
            |v| attention([&v[0], &v[1], &v[2]], SHAPE, &shared),
            |v| slow(v, segments),
        )
    }

    #[test]
    fn packed_texts_do_not_see_each_other() -> Result<()> {
        check(9, 9, &[Segment::text(0..4), Segment::text(4..9)])
    }

    #[test]
    fn blocks_see_a_shared_prefix_and_themselves() -> Result<()> {
        let block = |rows: Range<usize>, prefix: usize| Segment {
            queries: rows.clone(),
            keys: [0..prefix, 5 + rows.start..5 + rows.end],
            span: KeySpan::Full,
        };
        check(6, 11, &[block(0..3, 2), block(3..6, 5)])
    }

    #[test]
    fn a_query_without_keys_is_an_error() -> Result<()> {
        let q = random(&[2, 24], 1)?;
        let k = random(&[1, 12], 1)?;
        let segments: Arc<[Segment]> = Arc::from([Segment {
            queries: 0..2,
            keys: [0..0, 0..1],
            span: KeySpan::Causal,
        }]);
        assert!(attention([&q, &k, &k], SHAPE, &segments).is_err());
        Ok(())
    }
}
