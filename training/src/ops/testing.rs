//! Comparing an operation with its slow twin.

use candle_core::{Device, Result, Tensor, Var};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Values in (-1, 1), the same for the same seed.
pub(crate) fn random(dims: &[usize], seed: u64) -> Result<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let values: Vec<f32> = (0..dims.iter().product())
        .map(|_| rng.random_range(-1.0f32..1.0))
        .collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}

/// Largest difference over the largest magnitude.
pub(crate) fn relative_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let a: Vec<f32> = a.flatten_all()?.to_vec1()?;
    let b: Vec<f32> = b.flatten_all()?.to_vec1()?;
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(1e-12f32, |m, x| m.max(x.abs()));
    Ok(a.iter()
        .zip(&b)
        .fold(0f32, |m, (x, y)| m.max((x - y).abs()))
        / size)
}

/// Forward and the gradient of every input must agree to 1e-5, the rounding of f32 sums of this length.
pub(crate) fn assert_same_gradients(
    inputs: &[Tensor],
    fast: impl Fn(&[Tensor]) -> Result<Tensor>,
    slow: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let vars: Vec<Var> = inputs.iter().map(Var::from_tensor).collect::<Result<_>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let (fast, slow) = (fast(&tensors)?, slow(&tensors)?);
    assert_eq!(fast.dims(), slow.dims());
    assert!(
        relative_difference(&fast, &slow)? < 1e-5,
        "forward: {fast} for {slow}"
    );
    // A random projection, so that the incoming gradient is not constant.
    let weights = random(fast.dims(), 99)?;
    let fast_grads = (&fast * &weights)?.sum_all()?.backward()?;
    let slow_grads = (&slow * &weights)?.sum_all()?.backward()?;
    for (i, tensor) in tensors.iter().enumerate() {
        let fast = fast_grads
            .get(tensor)
            .expect("the operation has a gradient");
        let slow = slow_grads.get(tensor).expect("the twin has a gradient");
        let apart = relative_difference(fast, slow)?;
        assert!(
            apart < 1e-5,
            "gradient of input {i} is off by {apart}: {fast} for {slow}"
        );
    }
    Ok(())
}
