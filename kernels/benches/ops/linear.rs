use candle_core::Result;
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};

use super::values;

/// The layers of a small test model, and one matrix far larger than a second-level cache.
const SHAPES: [(usize, usize); 4] = [(192, 640), (640, 192), (192, 2048), (2048, 8192)];
/// A verify pass has up to 16 rows, a batch of them more.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for (k, o) in SHAPES {
        let w = values(&[o, k])?;
        let turned = w.t()?;
        let mut group = criterion.benchmark_group(format!("linear_{k}x{o}"));
        // Equal samples, so that the fastest of them says what a core does that nobody else wants.
        group.sampling_mode(SamplingMode::Flat);
        for n in ROWS {
            let x = values(&[n, k])?;
            group.throughput(Throughput::Elements((2 * n * k * o) as u64));
            group.bench_function(BenchmarkId::new("ours", n), |b| {
                b.iter(|| kernels::linear(&x, &w))
            });
            group.bench_function(BenchmarkId::new("candle", n), |b| {
                b.iter(|| x.matmul(&turned))
            });
        }
        group.finish();
    }
    let (x, w) = (values(&[256, 1024])?, values(&[1024, 1024])?);
    criterion.bench_function("linear_1024x1024/ours/256", |b| {
        b.iter(|| kernels::linear(&x, &w))
    });
    let turned = w.t()?;
    criterion.bench_function("linear_1024x1024/candle/256", |b| {
        b.iter(|| x.matmul(&turned))
    });
    Ok(())
}
