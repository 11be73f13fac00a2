//! What heads are a part of: the linear layers of a verify pass and of a block drafter, at the sizes of a released target.
//! Attention and everything else is left out, so a round costs more than these figures add up to.

use candle_core::Result;
use criterion::Criterion;

use super::{GAMMA, SEQUENCES, VOCAB, Work, tell, values};

/// Hidden width, width of all query heads, of all key heads, intermediate width.
const TARGETS: [(&str, [usize; 4]); 2] = [
    ("qwen3_8b", [4096, 4096, 1024, 12_288]),
    ("qwen3_4b", [2560, 4096, 1024, 9728]),
];

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for (name, [hidden, queries, keys, intermediate]) in TARGETS {
        let shapes = [
            (hidden, queries + 2 * keys),
            (queries, hidden),
            (hidden, 2 * intermediate),
            (intermediate, hidden),
        ];
        layers(criterion, &format!("layer_{name}"), &shapes)?;
        layers(criterion, &format!("lm_head_{name}"), &[(hidden, VOCAB)])?;
    }
    Ok(())
}

/// Products of the rows that one round verifies, or drafts: `gamma + 1` a sequence.
fn layers(criterion: &mut Criterion, name: &str, shapes: &[(usize, usize)]) -> Result<()> {
    let weights = shapes
        .iter()
        .map(|(from, to)| values(&[*to, *from], 0.03))
        .collect::<Result<Vec<_>>>()?;
    for n_rows in SEQUENCES.map(|sequences| sequences * (GAMMA + 1)) {
        let inputs = shapes
            .iter()
            .map(|(from, _)| values(&[n_rows, *from], 1.0))
            .collect::<Result<Vec<_>>>()?;
        let products: usize = shapes.iter().map(|(from, to)| from * to).sum();
        let moved: usize = shapes.iter().map(|(from, to)| n_rows * (from + to)).sum();
        let work = Work {
            flops: 2.0 * (n_rows * products) as f64,
            bytes: 4.0 * (products + moved) as f64,
        };
        let name = format!("{name}/{}", n_rows / (GAMMA + 1));
        tell(&name, work);
        criterion.bench_function(&name, |b| {
            b.iter(|| {
                let each = inputs.iter().zip(&weights);
                each.map(|(x, w)| kernels::linear(x, w))
                    .collect::<Result<Vec<_>>>()
            });
        });
    }
    Ok(())
}
