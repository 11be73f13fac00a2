//! What the tests of the ops share.

use candle_core::{Device, Result, Tensor};

use crate::simd::Isa;

/// The rounding error of one f32 operation, relative to its result.
pub(crate) const ROUNDING: f64 = f32::EPSILON as f64 / 2.0;

/// Runs a test body on every kind of device that this build can reach.
pub(crate) fn on_every_device(body: impl Fn(&Device) -> Result<()>) {
    body(&Device::Cpu).unwrap();
    eprintln!("cuda: not run");
}

/// Runs a test body on the CPU with each instruction set of this machine and with one and two threads.
pub(crate) fn on_every_path(body: impl Fn(Isa) -> Result<()> + Sync) {
    for isa in Isa::all() {
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| body(isa))
                .unwrap_or_else(|err| panic!("{isa:?}, {threads} threads: {err}"));
        }
    }
}

/// Values in -1..1, the same for the same seed.
pub(crate) fn random(shape: &[usize], seed: u32, device: &Device) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, device)
}

/// The values, row by row.
pub(crate) fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.flatten_all()?.to_vec1()
}

/// The bits of the values, so that comparing them tells apart what `==` on floats does not.
pub(crate) fn bits(t: &Tensor) -> Result<Vec<u32>> {
    Ok(values(t)?.into_iter().map(f32::to_bits).collect())
}

/// Panics unless each value of `got` is within the bound of the same place of `want`.
pub(crate) fn assert_within(
    got: &Tensor,
    want: &Tensor,
    bound: impl Fn(usize) -> f64,
) -> Result<()> {
    assert_eq!(got.dims(), want.dims());
    for (i, (got, want)) in values(got)?.into_iter().zip(values(want)?).enumerate() {
        let off = (f64::from(got) - f64::from(want)).abs();
        assert!(
            off <= bound(i),
            "place {i}: {got} instead of {want}, off by {off:e}, allowed {:e}",
            bound(i)
        );
    }
    Ok(())
}

/// Panics unless `result` is an error whose message contains `words`.
pub(crate) fn assert_refused<T>(result: Result<T>, words: &str) {
    let message = result.err().expect("an error").to_string();
    assert!(
        message.contains(words),
        "{message:?} does not say {words:?}"
    );
}
