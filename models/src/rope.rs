//! Tables of rotary angles.

use std::f64::consts::TAU;

use candle_core::{Device, Result, Tensor};

/// How angles depend on position and frequency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeConfig {
    /// Frequency i of D/2 is `theta^(-2i/D)`.
    Default {
        /// Base.
        theta: f64,
    },
    /// As above, but frequencies that turn less than `low_freq_factor` times within the original context are divided
    /// by `factor`, those that turn more than `high_freq_factor` times stay, and those between are blended.
    ///
    /// Source: the Llama 3.1 release, `rope_type: "llama3"` in its config.
    Llama3 {
        /// Base.
        theta: f64,
        /// Divisor of low frequencies.
        factor: f64,
        /// Turns below which a frequency is low.
        low_freq_factor: f64,
        /// Turns above which a frequency is high.
        high_freq_factor: f64,
        /// Positions of the original context.
        original_max_positions: usize,
    },
}

impl RopeConfig {
    /// The `head_dim / 2` frequencies, radians per position, highest first.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let (Self::Default { theta } | Self::Llama3 { theta, .. }) = *self;
        (0..head_dim / 2)
            .map(|i| theta.powf(-((2 * i) as f64) / head_dim as f64))
            .map(|frequency| self.scale(frequency) as f32)
            .collect()
    }

    fn scale(&self, frequency: f64) -> f64 {
        let Self::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_positions,
            ..
        } = *self
        else {
            return frequency;
        };
        let turns = original_max_positions as f64 * frequency / TAU;
        if turns < low_freq_factor {
            frequency / factor
        } else if turns > high_freq_factor {
            frequency
        } else {
            let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
            (1.0 - kept) * frequency / factor + kept * frequency
        }
    }
}

/// Cosines and sines for every position a cache can hold.
#[derive(Clone, Debug)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Tables `[n_positions, head_dim / 2]` f32.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn new(config: &RopeConfig, head_dim: usize, n_positions: usize) -> Result<Self> {
        let frequencies = config.frequencies(head_dim);
        let (cos, sin): (Vec<f32>, Vec<f32>) = (0..n_positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f))
            .map(|angle| (f64::from(angle).cos() as f32, f64::from(angle).sin() as f32))
            .unzip();
        let shape = (n_positions, frequencies.len());
        Ok(Self {
            cos: Tensor::from_vec(cos, shape, &Device::Cpu)?,
            sin: Tensor::from_vec(sin, shape, &Device::Cpu)?,
        })
    }

    /// Rotates `x` `[N, heads, D]` f32, row n to `positions[n]`.
    ///
    /// # Errors
    /// If shapes do not fit or a position is beyond the table.
    pub fn rotate(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        kernels::rope(x, &self.cos, &self.sin, positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_divides_low_keeps_high_and_blends_between() {
        let plain = RopeConfig::Default { theta: 10000.0 }.frequencies(16);
        let scaled = RopeConfig::Llama3 {
            theta: 10000.0,
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        }
        .frequencies(16);
        // Turns in 64 positions: 64 / (2 pi) * 10000^(-i/8) = 10.19, 3.22, 1.02, 0.32, ...
        assert_eq!(scaled[0], plain[0]);
        let kept = (64.0 / TAU * 10000f64.powf(-0.125) - 1.0) / 3.0;
        let blended = f64::from(plain[1]) * ((1.0 - kept) / 8.0 + kept);
        assert!((f64::from(scaled[1]) - blended).abs() < 1e-7);
        for i in 3..8 {
            assert_eq!(scaled[i], plain[i] / 8.0);
        }
    }

    #[test]
    fn position_zero_is_not_rotated_and_lengths_are_kept() -> Result<()> {
        let rope = Rope::new(&RopeConfig::Default { theta: 100.0 }, 4, 10)?;
        let x = Tensor::new(&[[[1f32, 2., 3., 4.]], [[1., 2., 3., 4.]]], &Device::Cpu)?;
        let y = rope.rotate(&x, &[0, 9])?.to_vec3::<f32>()?;
        assert_eq!(y[0][0], [1., 2., 3., 4.]);
        let squares = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>();
        assert!((squares(&y[1][0]) - 30.0).abs() < 1e-4);
        assert!((y[1][0][0] - (9f32.cos() - 3.0 * 9f32.sin())).abs() < 1e-5);
        Ok(())
    }
}
