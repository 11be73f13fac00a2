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

/// Largest magnitude; NaN if a value is NaN or infinite, so that no bound on it holds.
fn largest(values: &Tensor) -> Result<f32> {
    let values: Vec<f32> = values.flatten_all()?.to_vec1()?;
    // `f32::max` passes over NaN.
    Ok(match values.iter().all(|x| x.is_finite()) {
        true => values.iter().fold(0f32, |m, x| m.max(x.abs())),
        false => f32::NAN,
    })
}

/// Largest difference of two tensors of one shape; NaN if a value of either is NaN or infinite.
pub(crate) fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    assert_eq!(a.elem_count(), b.elem_count());
    largest(&(a.flatten_all()? - b.flatten_all()?)?)
}

/// The same over the largest magnitude of `b`.
pub(crate) fn relative_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok(difference(a, b)? / largest(b)?.max(1e-12))
}

/// A gradient must be there, finite throughout and not 0 throughout.
pub(crate) fn assert_is_alive(gradient: Option<&[f32]>, name: &str) {
    let gradient = gradient.unwrap_or(&[]);
    assert!(
        gradient.iter().any(|g| *g != 0.0),
        "{name} gets no gradient"
    );
    assert!(
        gradient.iter().all(|g| g.is_finite()),
        "{name} gets a gradient that is not finite"
    );
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

#[test]
fn a_difference_from_a_value_that_is_not_finite_is_above_any_bound() -> Result<()> {
    let one = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
    let near = Tensor::new(&[1f32, 2.5], &Device::Cpu)?;
    assert_eq!(relative_difference(&near, &one)?, 0.25);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let bad = Tensor::new(&[1f32, bad], &Device::Cpu)?;
        for (a, b) in [(&one, &bad), (&bad, &one), (&bad, &bad)] {
            assert!(difference(a, b)?.is_nan(), "{a} {b}");
            assert!(relative_difference(a, b)?.is_nan(), "{a} {b}");
        }
    }
    Ok(())
}
