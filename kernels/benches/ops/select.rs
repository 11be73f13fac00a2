use candle_core::Result;
use criterion::Criterion;

use super::values;

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for (n, vocabulary) in [(15, 151_936), (16, 2048)] {
        let logits = values(&[n, vocabulary])?;
        criterion.bench_function(&format!("argmax_rows/{n}x{vocabulary}"), |b| {
            b.iter(|| kernels::argmax_rows(&logits))
        });
        criterion.bench_function(&format!("topk_rows_16/{n}x{vocabulary}"), |b| {
            b.iter(|| kernels::topk_rows(&logits, 16))
        });
    }
    Ok(())
}
