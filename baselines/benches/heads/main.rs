//! What heads cost at the sizes of released drafters, with random weights. The arithmetic of each group is printed before
//! its times. `cargo bench -p draftbench-baselines -- domino` runs one of them; `RAYON_NUM_THREADS` sets the number of
//! threads. The largest group needs 4 GB.

mod candidates;
mod dcoco;
mod domino;
mod dspark;
mod round;

use std::time::Duration;

use candle_core::{Device, Result, Tensor};
use criterion::Criterion;

/// Sequences drafted for at once.
pub(crate) const SEQUENCES: [usize; 3] = [1, 8, 32];
/// Drafts a round.
pub(crate) const GAMMA: usize = 15;
/// Vocabulary of the Qwen3 family.
pub(crate) const VOCAB: usize = 151_936;

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    dspark::bench(&mut criterion)?;
    domino::bench(&mut criterion)?;
    dcoco::bench(&mut criterion)?;
    candidates::bench(&mut criterion)?;
    round::bench(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

/// Values in `-scale..scale`, the same at every run.
pub(crate) fn values(shape: &[usize], scale: f32) -> Result<Tensor> {
    let mut state = 1u32;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scale * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// What one call has to do at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Products and sums.
    pub(crate) flops: f64,
    /// Read once from memory and written once.
    pub(crate) bytes: f64,
}

/// Tells the work of a benchmark that follows.
pub(crate) fn tell(what: &str, work: Work) {
    let (gflop, gb) = (work.flops / 1e9, work.bytes / 1e9);
    eprintln!("{what}: {gflop:.3} GFLOP, {gb:.3} GB");
}
