//! The sequential head: one step a draft, all sequences together.

use baselines::{DominoHead, DominoShape};
use candle_core::{Error, Result, Tensor};
use criterion::Criterion;
use decode::{TokenId, TokenIo};
use models::Weights;

use super::{GAMMA, SEQUENCES, VOCAB, Work, tell, values};

/// Rows of the embedding table: a whole one would take 2.5 GB, and a step reads one row a sequence.
const EMBEDDED: usize = 1024;

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for hidden in [4096, 2560] {
        let shape = DominoShape {
            hidden,
            vocab: VOCAB,
            draft_vocab: VOCAB,
            gru: 1024,
            rank: 256,
            prefix: 1,
        };
        let mut head = head(shape)?;
        for n_rows in SEQUENCES {
            let name = format!("domino_{hidden}");
            roll(criterion, &mut head, (&name, n_rows, GAMMA))?;
        }
    }
    // The embedded drafter, with its recurrent inputs computed and looked up.
    let shape = DominoShape {
        hidden: 192,
        vocab: 2048,
        draft_vocab: 2048,
        gru: 96,
        rank: 64,
        prefix: 1,
    };
    for (name, table_bytes) in [("domino_tiny", 0), ("domino_tiny_table", 1 << 24)] {
        let mut head = head(shape)?.with_table_of(table_bytes);
        for n_rows in SEQUENCES {
            roll(criterion, &mut head, (name, n_rows, 7))?;
        }
    }
    Ok(())
}

fn head(shape: DominoShape) -> Result<DominoHead> {
    let DominoShape {
        hidden,
        draft_vocab,
        gru,
        rank,
        ..
    } = shape;
    let mut tensors = Vec::new();
    for (name, dims) in [
        ("prefix_gru.weight_ih_l0", [3 * gru, hidden]),
        ("prefix_gru.weight_hh_l0", [3 * gru, gru]),
        ("embed_proj.0.weight", [rank, hidden + gru]),
        ("embed_proj.2.weight", [draft_vocab, rank]),
    ] {
        tensors.push((name.to_owned(), values(&dims, 0.03)?));
    }
    DominoHead::new(shape, &mut Weights::from_tensors("bench", tensors)).map_err(Error::wrap)
}

/// One round of greedy drafts.
fn roll(
    criterion: &mut Criterion,
    head: &mut DominoHead,
    (name, n_rows, gamma): (&str, usize, usize),
) -> Result<()> {
    let shape = head.shape();
    let io = Embedding {
        vocab: shape.vocab,
        rows: values(&[EMBEDDED, shape.hidden], 0.05)?,
    };
    let hidden = values(&[n_rows * gamma, shape.hidden], 1.0)?;
    let logits = values(&[n_rows * gamma, shape.vocab], 5.0)?;
    let anchors: Vec<TokenId> = (0..n_rows as TokenId).collect();
    tell(&format!("{name}/{n_rows}"), work(shape, n_rows, gamma));
    let mut failed = None;
    criterion.bench_function(&format!("{name}/{n_rows}"), |b| {
        b.iter(|| {
            let rolled = head.roll(&hidden, &logits, &anchors, &io, |step| {
                Ok(kernels::argmax_rows(step.logits)?.to_vec1::<u32>()?)
            });
            failed = rolled.err().or(failed.take());
        });
    });
    failed.map_or(Ok(()), |error| Err(Error::wrap(error)))
}

/// Without a table. Weights are read once a step, the logits once.
fn work(shape: DominoShape, n_rows: usize, gamma: usize) -> Work {
    let DominoShape {
        hidden,
        draft_vocab,
        gru,
        rank,
        prefix,
        ..
    } = shape;
    let (steps, corrected) = (gamma as f64, (gamma - prefix) as f64);
    let once = (rank * hidden) as f64;
    let step = (3 * gru * hidden + (rank + 3 * gru) * gru) as f64;
    let out = (draft_vocab * rank) as f64;
    Work {
        flops: 2.0 * n_rows as f64 * (steps * (once + step) + corrected * out),
        bytes: 4.0
            * (once + steps * step + corrected * out + steps * (n_rows * draft_vocab) as f64),
    }
}

/// Embeddings of a vocabulary, the same ones over and over.
struct Embedding {
    vocab: usize,
    rows: Tensor,
}

impl TokenIo for Embedding {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        let ids: Vec<u32> = ids.to_vec1()?;
        let ids: Vec<u32> = ids.into_iter().map(|id| id % EMBEDDED as u32).collect();
        let ids = Tensor::new(ids, self.rows.device())?;
        Ok(self.rows.index_select(&ids, 0)?)
    }

    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        Ok(kernels::linear(hidden, &self.rows)?)
    }
}
