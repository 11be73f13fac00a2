//! DCOCO's corrector: all pairs of neighbouring candidates in one pass, then the walk. States and candidates are given;
//! taking the candidates from the logits is `topk_rows_16` and, for their log-probabilities, `log_sum_exp_rows`.

use baselines::dcoco::{Candidates, Channels, Corrector, CorrectorSizes, Lattice, Layout};
use candle_core::{Device, Error, Result, Tensor};
use criterion::{BatchSize, Criterion};
use decode::TokenIo;
use models::Weights;

use super::{GAMMA, SEQUENCES, VOCAB, Work, tell, values};

const K: usize = 16;
/// Rows of the embedding table: a whole one would take 2.5 GB.
const EMBEDDED: usize = 4096;

pub(crate) fn bench(criterion: &mut Criterion) -> Result<()> {
    for hidden in [4096, 2560] {
        let sizes = CorrectorSizes {
            hidden,
            candidate: 128,
            pair: 128,
            units: 256,
        };
        let name = format!("dcoco_{hidden}");
        corrector(criterion, sizes, (&name, VOCAB, GAMMA))?;
    }
    // The embedded drafter.
    let sizes = CorrectorSizes {
        hidden: 192,
        candidate: 32,
        pair: 32,
        units: 32,
    };
    corrector(criterion, sizes, ("dcoco_tiny", 2048, 7))?;
    for n_rows in SEQUENCES {
        let logits = values(&[n_rows * GAMMA, VOCAB], 5.0)?;
        let read = (n_rows * GAMMA * VOCAB) as f64;
        let work = Work {
            // A polynomial of degree 7, its argument and its scale.
            flops: 20.0 * read,
            bytes: 4.0 * read,
        };
        tell(&format!("log_sum_exp_rows/{n_rows}"), work);
        criterion.bench_function(&format!("log_sum_exp_rows/{n_rows}"), |b| {
            b.iter(|| kernels::log_sum_exp_rows(&logits))
        });
    }
    Ok(())
}

fn corrector(
    criterion: &mut Criterion,
    sizes: CorrectorSizes,
    (name, vocab, gamma): (&str, usize, usize),
) -> Result<()> {
    let tensors = Layout::L1.tensors(&sizes).into_iter();
    let tensors = tensors
        .map(|(name, shape)| Ok((name, values(&shape, 0.1)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut weights = Weights::from_tensors("bench", tensors);
    let corrector = Corrector::new(sizes, Channels::ALL, &mut weights, "bench");
    let mut corrector = corrector.map_err(Error::wrap)?;
    let io = Embeddings {
        vocab,
        rows: values(&[EMBEDDED.min(vocab), sizes.hidden], 1.0)?,
    };
    for n_rows in SEQUENCES {
        let hidden = values(&[n_rows * gamma, sizes.hidden], 1.0)?;
        let given = given(n_rows * gamma, vocab);
        let run = |corrector: &mut Corrector| {
            let scores = corrector.scores(&hidden, &given, gamma, &io)?;
            let squares = scores.chunks_exact((gamma - 1) * K * K);
            let firsts = given.log_probs.chunks_exact(gamma * K);
            let rows = firsts.zip(squares);
            let walks = rows.map(|(first, pairs)| Lattice::new(&first[..K], pairs).walk());
            Ok::<Vec<_>, decode::Error>(walks.collect())
        };
        let work = work(&sizes, n_rows, gamma);
        tell(&format!("{name}/{n_rows}"), work);
        criterion.bench_function(&format!("{name}/{n_rows}"), |b| {
            b.iter(|| run(&mut corrector))
        });
        // Only the rows that the walk comes by.
        let others = (K * K - K) * sizes.units * (sizes.candidate + 1);
        let visited = Work {
            flops: work.flops - 2.0 * (n_rows * (gamma - 1) * others) as f64,
            ..work
        };
        tell(&format!("{name}_visited/{n_rows}"), visited);
        criterion.bench_function(&format!("{name}_visited/{n_rows}"), |b| {
            b.iter(|| visit(&mut corrector, (&hidden, &given, gamma), &io))
        });
        // Nothing kept from earlier rounds: every candidate's embedding is projected.
        let projections = (n_rows * gamma * K * sizes.hidden) as f64;
        let new = Work {
            flops: work.flops + 2.0 * projections * sizes.candidate as f64,
            bytes: work.bytes + 8.0 * projections,
        };
        tell(&format!("{name}_new/{n_rows}"), new);
        criterion.bench_function(&format!("{name}_new/{n_rows}"), |b| {
            let forget_and_run = |()| {
                corrector.forget_tokens();
                run(&mut corrector)
            };
            b.iter_batched(|| (), forget_and_run, BatchSize::PerIteration);
        });
    }
    Ok(())
}

fn visit(
    corrector: &mut Corrector,
    (hidden, given, gamma): (&Tensor, &Candidates, usize),
    io: &Embeddings,
) -> decode::Result<Vec<usize>> {
    let inputs = corrector.inputs(hidden, given, gamma, io)?;
    let mut ranks = Vec::with_capacity(given.ids.len() / K);
    for slot in 0..given.ids.len() / K {
        let before = (slot % gamma > 0).then(|| ranks[slot - 1]);
        let row = inputs.row(slot / gamma, slot % gamma, before);
        let best = (0..K).reduce(|a, b| if row[b] > row[a] { b } else { a });
        ranks.extend(best);
    }
    Ok(ranks)
}

/// With all candidates' projections kept. Weights are read once a call.
fn work(sizes: &CorrectorSizes, n_rows: usize, gamma: usize) -> Work {
    let CorrectorSizes {
        hidden: h,
        candidate: r,
        pair: p,
        units: f,
    } = *sizes;
    let pairs = gamma - 1;
    let slots = gamma * h * (r + 2 * p);
    let sides = pairs * (f * p + K * f * 2 * (r + 1));
    let products = pairs * K * K * f * (r + 1);
    let weights = Layout::L1.parameters(sizes) - h * r;
    let values = gamma * h + gamma * K * r + pairs * K * K;
    Work {
        flops: 2.0 * (n_rows * (slots + sides + products)) as f64,
        bytes: 4.0 * (weights + n_rows * values) as f64,
    }
}

/// Candidates that differ within a slot.
fn given(slots: usize, vocab: usize) -> Candidates {
    let ranks = || (0..slots).flat_map(|slot| (0..K).map(move |rank| (slot, rank)));
    let id = |(slot, rank): (usize, usize)| ((slot * 7919 + rank * 97) % vocab) as u32;
    Candidates {
        k: K,
        ids: ranks().map(id).collect(),
        log_probs: ranks().map(|(_, rank)| -0.5 - rank as f32 / 3.0).collect(),
    }
}

/// Embeddings of a vocabulary, the same ones over and over.
struct Embeddings {
    vocab: usize,
    rows: Tensor,
}

impl TokenIo for Embeddings {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        let rows = self.rows.dims()[0] as u32;
        let ids: Vec<u32> = ids.to_vec1()?;
        let ids: Vec<u32> = ids.into_iter().map(|id| id % rows).collect();
        Ok(self
            .rows
            .index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?)
    }

    fn lm_head(&self, hidden: &Tensor) -> decode::Result<Tensor> {
        Ok(kernels::linear(hidden, &self.rows)?)
    }
}
