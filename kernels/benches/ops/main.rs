//! One group of figures for each op. `cargo bench -p draftbench-kernels -- linear` runs one of them;
//! `RAYON_NUM_THREADS` sets the number of threads.

mod attend;
mod elementwise;
mod linear;
mod rows;
mod select;

use std::time::Duration;

use candle_core::{Device, Result, Tensor};
use criterion::Criterion;

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700))
        .configure_from_args();
    linear::bench(&mut criterion)?;
    attend::bench(&mut criterion)?;
    select::bench(&mut criterion)?;
    elementwise::bench(&mut criterion)?;
    rows::bench(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

/// Values in -1..1, the same at every run.
fn values(shape: &[usize]) -> Result<Tensor> {
    let mut state = 1u32;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}
