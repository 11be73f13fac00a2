//! Weights that nobody trained, of the shapes that are asked for: what a step costs does not depend on their values.

use candle_core::{Device, Tensor};

use crate::error::Result;

/// The same tensor for the same name and shape, always: norms are 1, biases 0, everything else is near to normal with a
/// standard deviation of one over the root of the last dimension, which keeps a product's entries near 1.
pub(crate) fn tensor(name: &str, shape: &[usize]) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    let values = match shape {
        [.., n_in] if shape.len() > 1 => normal(seed_of(name), n, 1.0 / (*n_in as f32).sqrt()),
        _ => vec![f32::from(u8::from(name.contains("norm"))); n],
    };
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// FNV-1a.
fn seed_of(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Sums of four 16-bit uniforms, which lie within 3.5 standard deviations.
fn normal(seed: u64, n: usize, deviation: f32) -> Vec<f32> {
    // A uniform's variance is 1/12, so the sum's is 1/3.
    let scale = deviation * 3.0f32.sqrt() / 65_536.0;
    let draw = |i: u64| {
        let bits = mixed(seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let parts = [bits, bits >> 16, bits >> 32, bits >> 48];
        let sum: u64 = parts.iter().map(|part| part & 0xffff).sum();
        (sum as f32 - 131_070.0) * scale
    };
    (0..n as u64).map(draw).collect()
}

/// The output function of splitmix64.
fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_normal_with_the_scale_of_their_width_and_fixed_by_the_name() {
        let values = |name: &str| -> Vec<f32> {
            let tensor = tensor(name, &[200, 500]).unwrap();
            tensor.flatten_all().unwrap().to_vec1().unwrap()
        };
        let got = values("layers.0.mlp.up_proj.weight");
        let n = got.len() as f64;
        let mean = got.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let moment = |power: i32| got.iter().map(|v| f64::from(*v).powi(power)).sum::<f64>() / n;
        // Five standard errors of a normal sample: 1 of the mean, 0.7 of the deviation, each over root n.
        let deviation = 1.0 / 500f64.sqrt();
        assert!(mean.abs() < 5.0 * deviation / n.sqrt(), "{mean}");
        assert!((moment(2).sqrt() / deviation - 1.0).abs() < 3.5 / n.sqrt());
        // Four uniforms have an excess kurtosis of -0.3, a normal law 0.
        let kurtosis = moment(4) / moment(2).powi(2);
        assert!((2.6..2.8).contains(&kurtosis), "{kurtosis}");
        assert_eq!(got, values("layers.0.mlp.up_proj.weight"));
        assert_ne!(got, values("layers.1.mlp.up_proj.weight"));
    }

    #[test]
    fn norms_are_one_and_biases_zero() {
        let of = |name: &str| tensor(name, &[3]).unwrap().to_vec1::<f32>().unwrap();
        for norm in [
            "norm.weight",
            "layers.0.input_layernorm.weight",
            "layers.0.self_attn.q_norm.weight",
        ] {
            assert_eq!(of(norm), [1.0; 3], "{norm}");
        }
        assert_eq!(of("corrector.mlp.0.bias"), [0.0; 3]);
    }
}
