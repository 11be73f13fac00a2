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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Result, Tensor};

    use super::{move_rows, write_rows};
    use crate::testing::{assert_refused, on_every_device, values};

    /// A cache whose row r holds r twice.
    fn numbered(n_cached: usize, dev: &Device) -> Result<Tensor> {
        Tensor::arange(0f32, n_cached as f32, dev)?
            .unsqueeze(1)?
            .repeat((1, 2))?
            .contiguous()
    }

    /// The first value of each row.
    fn first_column(cache: &Tensor) -> Result<Vec<f32>> {
        values(&cache.narrow(1, 0, 1)?)
    }

    #[test]
    fn rows_land_where_they_are_sent_and_nowhere_else() {
        on_every_device(|dev| {
            let cache = numbered(5, dev)?;
            let rows = Tensor::new(&[[7f32, 70.], [8., 80.]], dev)?;
            write_rows(&cache, &rows, &[4, 1])?;
            assert_eq!(
                cache.to_vec2::<f32>()?,
                [[0., 0.], [8., 80.], [2., 2.], [3., 3.], [7., 70.]]
            );
            write_rows(&cache, &rows, &[0, 0])?;
            assert_eq!(first_column(&cache)?, [8., 8., 2., 3., 7.]);
            Ok(())
        });
    }

    #[test]
    fn views_are_read_and_written_where_they_lie() {
        on_every_device(|dev| {
            let cache = numbered(6, dev)?;
            let wide = Tensor::new(&[[0f32, 7., 70., 0.], [0., 8., 80., 0.]], dev)?;
            write_rows(&cache.narrow(0, 2, 3)?, &wide.narrow(1, 1, 2)?, &[0, 2])?;
            assert_eq!(first_column(&cache)?, [0., 1., 7., 3., 8., 5.]);
            move_rows(&cache.narrow(0, 2, 3)?, &[2], &[0])?;
            assert_eq!(first_column(&cache)?, [0., 1., 8., 3., 8., 5.]);
            Ok(())
        });
    }

    #[test]
    fn moves_behave_as_if_everything_were_read_first() {
        on_every_device(|dev| {
            let cases: [(&[u32], &[u32]); 8] = [
                (&[3, 4, 5], &[2, 3, 4]),
                (&[2, 3, 4], &[3, 4, 5]),
                (&[1, 4], &[4, 1]),
                (&[0, 0, 5], &[1, 2, 2]),
                (&[5, 3], &[0, 1]),
                (&[2, 2], &[2, 0]),
                (&[0, 1, 2], &[1, 2, 0]),
                (&[], &[]),
            ];
            for (src, dst) in cases {
                let cache = numbered(6, dev)?;
                move_rows(&cache, src, dst)?;
                let mut want: Vec<f32> = (0..6).map(|row| row as f32).collect();
                for (&src, &dst) in src.iter().zip(dst) {
                    want[dst as usize] = src as f32;
                }
                assert_eq!(first_column(&cache)?, want, "{src:?} to {dst:?}");
            }
            Ok(())
        });
    }

    #[test]
    fn a_refused_call_writes_nothing_and_says_why() {
        on_every_device(|dev| {
            let cache = numbered(6, dev)?;
            let make = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
            let rows = make(&[2, 2])?;
            assert_refused(
                write_rows(&cache, &rows, &[0, 6]),
                "destination row 6 is outside the cache of 6 rows",
            );
            assert_refused(
                write_rows(&cache, &rows, &[0]),
                "write_rows: 1 destinations for 2 rows",
            );
            assert_refused(
                write_rows(&cache, &make(&[2, 3])?, &[0, 1]),
                "rows has 3 columns, cache has 2",
            );
            assert_refused(
                write_rows(&cache, &rows.to_dtype(DType::F64)?, &[0, 1]),
                "rows is F64",
            );
            assert_refused(
                write_rows(&cache.to_dtype(DType::F64)?, &rows, &[0, 1]),
                "cache is F64",
            );
            assert_refused(
                write_rows(&cache.narrow(1, 0, 1)?, &make(&[1, 1])?, &[0]),
                "is not contiguous",
            );
            assert_refused(
                write_rows(&cache, &cache.narrow(0, 0, 2)?, &[3, 4]),
                "write_rows",
            );
            assert_refused(move_rows(&cache, &[6], &[0]), "source row 6 is outside");
            assert_refused(
                move_rows(&cache, &[0], &[7]),
                "destination row 7 is outside",
            );
            assert_refused(
                move_rows(&cache, &[0, 1], &[0]),
                "move_rows: 2 sources for 1 destinations",
            );
            assert_eq!(first_column(&cache)?, [0., 1., 2., 3., 4., 5.]);
            write_rows(&cache, &make(&[0, 2])?, &[])?;
            assert_eq!(first_column(&cache)?, [0., 1., 2., 3., 4., 5.]);
            Ok(())
        });
    }
}
