//! In-place writes to the key/value cache.

use candle_core::{CpuStorage, DType, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};

use crate::input::{dense_f32, dims2, slice_f32};

const WRITE: &str = "write_rows";
const MOVE: &str = "move_rows";

/// Writes row i of `rows` (`[N, C]` f32) to row `dst[i]` of `cache` (`[R, C]` f32, contiguous), in place.
///
/// If a destination is named twice, the later row stays.
///
/// # Errors
/// If a tensor is not f32, `cache` is not contiguous (a copy would take the write), `rows` shares its storage, C
/// differs, or a destination is R or more. Nothing is written then.
pub fn write_rows(cache: &Tensor, rows: &Tensor, dst: &[u32]) -> Result<()> {
    let (n_cached, columns) = cache_dims(WRITE, cache)?;
    let rows = dense_f32(WRITE, "rows", rows)?;
    let (n, row_columns) = dims2(WRITE, "rows", &rows)?;
    if row_columns != columns {
        bail!("{WRITE}: rows has {row_columns} columns, cache has {columns}");
    }
    if dst.len() != n {
        bail!("{WRITE}: {} destinations for {n} rows", dst.len());
    }
    check_bounds(WRITE, "destination", dst, n_cached)?;
    cache.inplace_op2(&rows, &WriteRows { dst, columns })
}

/// Copies row `src[i]` of `cache` (`[R, C]` f32, contiguous) to row `dst[i]`, as if every source were read before the
/// first destination is written. If a destination is named twice, the later source stays.
///
/// # Errors
/// If `cache` is not f32 or not contiguous, the lists differ in length, or a row is R or more. Nothing moves then.
pub fn move_rows(cache: &Tensor, src: &[u32], dst: &[u32]) -> Result<()> {
    let (n_cached, columns) = cache_dims(MOVE, cache)?;
    if src.len() != dst.len() {
        bail!(
            "{MOVE}: {} sources for {} destinations",
            src.len(),
            dst.len()
        );
    }
    check_bounds(MOVE, "source", src, n_cached)?;
    check_bounds(MOVE, "destination", dst, n_cached)?;
    cache.inplace_op1(&MoveRows { src, dst, columns })
}

struct WriteRows<'a> {
    dst: &'a [u32],
    columns: usize,
}

impl InplaceOp2 for WriteRows<'_> {
    fn name(&self) -> &'static str {
        WRITE
    }

    fn cpu_fwd(
        &self,
        cache: &mut CpuStorage,
        layout: &Layout,
        rows: &CpuStorage,
        rows_layout: &Layout,
    ) -> Result<()> {
        let cache = cache_slice(WRITE, cache, layout)?;
        let rows = slice_f32(WRITE, rows, rows_layout)?;
        for (i, &dst) in self.dst.iter().enumerate() {
            let at = dst as usize * self.columns;
            cache[at..at + self.columns]
                .copy_from_slice(&rows[i * self.columns..(i + 1) * self.columns]);
        }
        Ok(())
    }
}

struct MoveRows<'a> {
    src: &'a [u32],
    dst: &'a [u32],
    columns: usize,
}

impl InplaceOp1 for MoveRows<'_> {
    fn name(&self) -> &'static str {
        MOVE
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let cache = cache_slice(MOVE, cache, layout)?;
        let columns = self.columns;
        if in_order_is_safe(self.src, self.dst) {
            for (&src, &dst) in self.src.iter().zip(self.dst) {
                let (src, dst) = (src as usize * columns, dst as usize * columns);
                cache.copy_within(src..src + columns, dst);
            }
            return Ok(());
        }
        let mut held = Vec::with_capacity(self.src.len() * columns);
        for &src in self.src {
            let src = src as usize * columns;
            held.extend_from_slice(&cache[src..src + columns]);
        }
        for (i, &dst) in self.dst.iter().enumerate() {
            let dst = dst as usize * columns;
            cache[dst..dst + columns].copy_from_slice(&held[i * columns..(i + 1) * columns]);
        }
        Ok(())
    }
}

/// Whether copying row after row never overwrites a source that is still to be read. Compaction after a verify pass is
/// of this kind: destinations rise by one and never pass their source.
fn in_order_is_safe(src: &[u32], dst: &[u32]) -> bool {
    let mut written_up_to = None;
    src.iter().zip(dst).all(|(&src, &dst)| {
        let fresh = written_up_to.is_none_or(|written| src > written);
        written_up_to = written_up_to.max(Some(dst));
        fresh
    })
}

fn cache_dims(op: &str, cache: &Tensor) -> Result<(usize, usize)> {
    if cache.dtype() != DType::F32 {
        bail!("{op}: cache is {:?}, must be f32", cache.dtype());
    }
    if !cache.is_contiguous() {
        bail!("{op}: cache is a view that is not contiguous: pass the tensor that owns the rows");
    }
    dims2(op, "cache", cache)
}

fn check_bounds(op: &str, what: &str, rows: &[u32], n_cached: usize) -> Result<()> {
    match rows.iter().find(|&&row| row as usize >= n_cached) {
        Some(row) => bail!("{op}: {what} row {row} is outside the cache of {n_cached} rows"),
        None => Ok(()),
    }
}

fn cache_slice<'a>(
    op: &str,
    storage: &'a mut CpuStorage,
    layout: &Layout,
) -> Result<&'a mut [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("{op}: cache is not contiguous");
    };
    match storage {
        CpuStorage::F32(values) => Ok(&mut values[start..end]),
        _ => bail!("{op}: cache is not f32"),
    }
}
