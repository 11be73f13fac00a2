//! Attention of query rows over the rows of a key/value cache that each of them sees.

mod kernel;
#[cfg(test)]
mod tests;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::input::{dense_f32, dims2, dims3, slice_f32};
use crate::parallel::{self, MutPtr};
use crate::simd::Isa;
use kernel::Units;

const OP: &str = "attend";

/// Which cache rows one query row sees: rows `start..start + prefix`, then `extra` (absolute rows), in that order.
///
/// A query row sees itself only if its own cache row is named, so its key and value must be written first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// First cache row of the sequence.
    pub start: u32,
    /// How many rows from `start` on are seen.
    pub prefix: u32,
    /// Further cache rows, counted from the start of the cache, in the order in which they are summed.
    pub extra: Vec<u32>,
}

impl Visible {
    /// Number of cache rows seen.
    pub fn len(&self) -> usize {
        self.prefix as usize + self.extra.len()
    }

    /// Whether no row is seen, which [`attend`] refuses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cache rows in the order in which they are summed.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        let start = self.start as usize;
        (start..start + self.prefix as usize).chain(self.extra.iter().map(|&row| row as usize))
    }

    /// The `place`th of [`Self::rows`].
    fn row(&self, place: usize) -> usize {
        match place.checked_sub(self.prefix as usize) {
            None => self.start as usize + place,
            Some(beyond) => self.extra[beyond] as usize,
        }
    }
}

/// `softmax(scale * q . k) v` with grouped heads: query head i reads key/value head `i / (Hq / Hkv)`.
///
/// `q`: `[N, Hq, D]` f32; `k_cache`, `v_cache`: `[R, Hkv * D]` f32; one [`Visible`] per query row. Returns `[N, Hq * D]`.
/// A row of the result depends only on its query and on the sequence of the contents of its visible rows, not on where
/// they lie, on N, on the other rows or on the number of threads.
///
/// # Errors
/// If an input is not f32, shapes do not fit, a query row sees nothing, or a visible row is R or more.
pub fn attend(
    q: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    visible: &[Visible],
    scale: f32,
) -> Result<Tensor> {
    let heads = heads(q, k_cache, v_cache, visible)?;
    let q = dense_f32(OP, "q", q)?;
    let (k_cache, v_cache) = (
        dense_f32(OP, "k_cache", k_cache)?,
        dense_f32(OP, "v_cache", v_cache)?,
    );
    q.apply_op3(
        &k_cache,
        &v_cache,
        Attend {
            isa: Isa::detect(),
            heads,
            visible: visible.to_vec(),
            scale,
        },
    )
}

/// Head counts and head dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) query: usize,
    pub(crate) kv: usize,
    pub(crate) d: usize,
}

pub(crate) fn heads(
    q: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    visible: &[Visible],
) -> Result<Heads> {
    let (n, query, d) = dims3(OP, "q", q)?;
    let (n_cached, columns) = dims2(OP, "k_cache", k_cache)?;
    if v_cache.dims() != k_cache.dims() {
        bail!(
            "{OP}: v_cache has shape {:?}, k_cache has {:?}: they must be equal",
            v_cache.dims(),
            k_cache.dims()
        );
    }
    if query == 0 || d == 0 || columns == 0 || columns % d != 0 || query % (columns / d) != 0 {
        bail!(
            "{OP}: a cache of {columns} columns does not hold heads that divide q's {query} heads of dimension {d}"
        );
    }
    if visible.len() != n {
        bail!(
            "{OP}: {} sets of visible rows for {n} query rows",
            visible.len()
        );
    }
    for (row, seen) in visible.iter().enumerate() {
        if seen.is_empty() {
            bail!("{OP}: query row {row} sees no cache row");
        }
        if seen.start as usize + seen.prefix as usize > n_cached {
            bail!(
                "{OP}: query row {row} sees {} rows from {} on, the cache has {n_cached}",
                seen.prefix,
                seen.start
            );
        }
        if let Some(extra) = seen.extra.iter().find(|&&extra| extra as usize >= n_cached) {
            bail!("{OP}: query row {row} sees row {extra}, the cache has {n_cached}");
        }
    }
    Ok(Heads {
        query,
        kv: columns / d,
        d,
    })
}

struct Attend {
    isa: Isa,
    heads: Heads,
    visible: Vec<Visible>,
    scale: f32,
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_at: &Layout,
        k: &CpuStorage,
        k_at: &Layout,
        v: &CpuStorage,
        v_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let q = slice_f32(OP, q, q_at)?;
        let (k, v) = (slice_f32(OP, k, k_at)?, slice_f32(OP, v, v_at)?);
        let Heads { query, kv, d } = self.heads;
        let mut out = vec![0.0; q.len()];
        let runs = kernel::runs(&self.visible, kv, rayon::current_num_threads());
        // An exponential takes about half a nanosecond, and so do 32 columns of the products.
        let n_scores: usize = self.visible.iter().map(|seen| seen.len() * query).sum();
        let cost_ns = n_scores * (1 + d / 16) / 2;
        let to = MutPtr(out.as_mut_ptr());
        parallel::for_ranges(runs.len() * kv, 1, cost_ns, |units| {
            self.isa.run(Units {
                op: self,
                runs: &runs,
                q,
                k,
                v,
                units,
                out: to,
            });
        });
        Ok((
            CpuStorage::F32(out),
            Shape::from((self.visible.len(), query * d)),
        ))
    }
}
