//! The Markov head: one step a draft, all sequences together.

use baselines::{MarkovKind, MarkovShape, Sequential};
use candle_core::{Error, Result};
use criterion::Criterion;
use decode::TokenId;
use models::Weights;

use super::{GAMMA, SEQUENCES, VOCAB, Work, tell, values};

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for hidden in [4096, 2560] {
        let shape = MarkovShape {
            kind: MarkovKind::Vanilla,
            rank: 256,
            hidden,
            vocab: VOCAB,
            draft_vocab: VOCAB,
        };
        let tensors = ["markov_w1", "markov_w2"].map(|name| {
            let table = values(&[VOCAB, shape.rank], 0.03)?;
            Ok((format!("markov_head.{name}.weight"), table))
        });
        let tensors = tensors.into_iter().collect::<Result<Vec<_>>>()?;
        let mut weights = Weights::from_tensors("bench", tensors);
        let head = Sequential::unrated(shape, &mut weights).map_err(Error::wrap)?;
        for n_rows in SEQUENCES {
            roll(criterion, &head, shape, n_rows)?;
        }
    }
    Ok(())
}

/// One round of greedy drafts.
fn roll(
    criterion: &mut Criterion,
    head: &Sequential,
    shape: MarkovShape,
    n_rows: usize,
) -> Result<()> {
    let hidden = values(&[n_rows * GAMMA, shape.hidden], 1.0)?;
    let logits = values(&[n_rows * GAMMA, shape.draft_vocab], 5.0)?;
    let anchors: Vec<TokenId> = (0..n_rows as TokenId).collect();
    let name = format!("dspark_{}/{n_rows}", shape.hidden);
    tell(&name, work(shape, n_rows));
    let mut failed = None;
    criterion.bench_function(&name, |b| {
        b.iter(|| {
            let run = head.run(&hidden, &logits, &anchors, |logits| {
                Ok(kernels::argmax_rows(logits)?.to_vec1::<u32>()?)
            });
            failed = run.err().or(failed.take());
        });
    });
    failed.map_or(Ok(()), |error| Err(Error::wrap(error)))
}

/// The output table is read once a step, the logits once.
fn work(shape: MarkovShape, n_rows: usize) -> Work {
    let (steps, out) = (GAMMA as f64, (shape.draft_vocab * shape.rank) as f64);
    Work {
        flops: 2.0 * n_rows as f64 * steps * out,
        bytes: 4.0 * steps * (out + (n_rows * shape.draft_vocab) as f64),
    }
}
