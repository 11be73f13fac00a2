use candle_core::{DType, Result};
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
    stream(criterion)?;
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

/// Matrices of a layer of SmolLM2-135M, more of them than a cache holds: what a step of a model does to memory. The
/// machine's limits stand above the figures.
fn stream(criterion: &mut Criterion) -> Result<()> {
    const N_MATRICES: usize = 48;
    let (k, o) = (576, 3072);
    let limits = kernels::limits(5);
    eprintln!(
        "limits: reads {:.1} GB/s, computes {:.0} GFLOP/s",
        limits.read_gb_s, limits.gflop_s
    );
    let w = values(&[o, k])?;
    for dtype in [DType::F32, DType::BF16] {
        let copies: Vec<_> = (0..N_MATRICES)
            .map(|_| w.to_dtype(dtype)?.force_contiguous())
            .collect::<Result<_>>()?;
        let name = format!("linear_stream_{}", dtype.as_str());
        let mut group = criterion.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat);
        let bytes = N_MATRICES * k * o * dtype.size_in_bytes();
        group.throughput(Throughput::Bytes(bytes as u64));
        for n in ROWS {
            let x = values(&[n, k])?;
            let flops = 2.0 * (n * N_MATRICES * k * o) as f64;
            group.bench_function(BenchmarkId::new("rows", n), |b| {
                b.iter(|| {
                    for w in &copies {
                        kernels::linear(&x, w)?;
                    }
                    Ok::<_, candle_core::Error>(())
                })
            });
            eprintln!("n = {n}: {flops:.3e} operations an iteration");
        }
        group.finish();
    }
    Ok(())
}
