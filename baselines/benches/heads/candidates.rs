//! The first choices of a block: one a slot for argmax drafts, 16 for heads that choose among candidates.

use candle_core::Result;
use criterion::Criterion;

use super::{GAMMA, SEQUENCES, VOCAB, Work, tell, values};

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for n_rows in SEQUENCES {
        let logits = values(&[n_rows * GAMMA, VOCAB], 5.0)?;
        let compared = (n_rows * GAMMA * VOCAB) as f64;
        let work = Work {
            flops: compared,
            bytes: 4.0 * compared,
        };
        tell(&format!("argmax_rows and topk_rows_16/{n_rows}"), work);
        criterion.bench_function(&format!("argmax_rows/{n_rows}"), |b| {
            b.iter(|| kernels::argmax_rows(&logits))
        });
        criterion.bench_function(&format!("topk_rows_16/{n_rows}"), |b| {
            b.iter(|| kernels::topk_rows(&logits, 16))
        });
    }
    Ok(())
}
