use candle_core::Result;
use criterion::{BenchmarkId, Criterion};
use kernels::Visible;

use super::values;

/// Query heads, key/value heads and head dimension of a small test model and of a Qwen3 of the smallest size.
const HEADS: [(usize, usize, usize); 2] = [(6, 2, 32), (16, 8, 128)];

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for (query, kv, d) in HEADS {
        let (k, v) = (values(&[2048, kv * d])?, values(&[2048, kv * d])?);
        let mut group = criterion.benchmark_group(format!("attend_{query}x{kv}x{d}"));
        for context in [256u32, 1024] {
            for n in [1u32, 8, 16] {
                let q = values(&[n as usize, query, d])?;
                let chain: Vec<Visible> = (1..=n)
                    .map(|row| Visible {
                        start: 0,
                        prefix: context + row,
                        extra: Vec::new(),
                    })
                    .collect();
                let id = BenchmarkId::new(format!("context_{context}"), n);
                group.bench_function(id, |b| b.iter(|| kernels::attend(&q, &k, &v, &chain, 0.1)));
            }
        }
        group.finish();
    }
    Ok(())
}
