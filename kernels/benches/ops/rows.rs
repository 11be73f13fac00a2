use candle_core::Result;
use criterion::Criterion;

use super::values;

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    let (cache, rows) = (values(&[2048, 1024])?, values(&[16, 1024])?);
    let (first, second): (Vec<u32>, Vec<u32>) = ((100..116).collect(), (101..117).collect());
    criterion.bench_function("write_rows/16x1024", |b| {
        b.iter(|| kernels::write_rows(&cache, &rows, &first))
    });
    criterion.bench_function("move_rows/down_16x1024", |b| {
        b.iter(|| kernels::move_rows(&cache, &second, &first))
    });
    criterion.bench_function("move_rows/up_16x1024", |b| {
        b.iter(|| kernels::move_rows(&cache, &first, &second))
    });
    Ok(())
}
