//! Rotary frequencies, rounded as in transformers.
//!
//! `modeling_rope_utils.py` computes in f32, operation by operation. A frequency that is off by a
//! few ulp visibly changes the angles of far positions, so each line here corresponds to one of its
//! operations (`a / tensor` is torch's reciprocal times `a`). Only the power differs: here it is
//! correctly rounded, while torch's is sometimes off by one ulp.

use std::f64::consts::TAU;

use super::{Rope, RopeScaling};

impl Rope {
    /// Returns the radians per position of each pair of dimensions: `head_dim / 2` numbers.
    ///
    /// The angle is `position as f32 * frequency` in f32.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let pairs = 0..head_dim / 2;
        // Positions per radian, the inverse frequencies: `pos_freqs` in transformers.
        let positions = pairs.map(|pair| {
            let exponent = (2 * pair) as f32 / head_dim as f32;
            libm::pow(f64::from(self.theta as f32), f64::from(exponent)) as f32
        });
        match &self.scaling {
            RopeScaling::None => positions.map(f32::recip).collect(),
            RopeScaling::Linear { factor } => {
                positions.map(|positions| positions.recip() / *factor as f32).collect()
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let scaled = |positions: f32| {
                    let factors = [*factor, *low_freq_factor, *high_freq_factor];
                    llama3(positions.recip(), factors, *original_context)
                };
                positions.map(scaled).collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context,
                truncate,
                attention_factor: _,
            } => {
                let bound = |turns| self.dimension(turns, head_dim, *original_context);
                let ramp = Ramp::new(bound(*beta_fast), bound(*beta_slow), *truncate, head_dim);
                let factor = *factor as f32;
                let scaled = |(pair, positions)| ramp.blend(pair, positions, factor);
                positions.enumerate().map(scaled).collect()
            }
            RopeScaling::Factors { factors } => positions
                .zip(factors)
                .map(|(positions, factor)| positions.recip() / factor)
                .collect(),
        }
    }

    /// Returns the factor applied to cosines and sines, for queries and keys alike.
    pub fn attention_scaling(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        }
    }

    /// Returns the dimension with this number of turns in the original context
    /// (`find_correction_dim`).
    fn dimension(&self, turns: f64, head_dim: usize, original_context: f64) -> f64 {
        let turn = libm::log(original_context / (turns * TAU));
        (head_dim as f64 * turn) / (2.0 * libm::log(self.theta))
    }
}

fn llama3(frequency: f32, [factor, low, high]: [f64; 3], original_context: f64) -> f32 {
    let wavelength = frequency.recip() * TAU as f32;
    if wavelength > (original_context / low) as f32 {
        return frequency / factor as f32;
    }
    if wavelength < (original_context / high) as f32 {
        return frequency;
    }
    let turns = wavelength.recip() * original_context as f32;
    let smooth = (turns - low as f32) / (high - low) as f32;
    (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
}

/// Linear ramp (`linear_ramp_factor`): 0 for pairs that keep their frequency, 1 for those that are
/// divided.
struct Ramp {
    low: f32,
    length: f32,
}

impl Ramp {
    fn new(low: f64, high: f64, truncate: bool, head_dim: usize) -> Self {
        let (low, high) = if truncate { (libm::floor(low), libm::ceil(high)) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min((head_dim - 1) as f64));
        let length = if low == high { 0.001 } else { high - low };
        Self { low: low as f32, length: length as f32 }
    }

    fn blend(&self, pair: usize, positions: f32, factor: f32) -> f32 {
        let ramp = ((pair as f32 - self.low) / self.length).clamp(0.0, 1.0);
        let kept = 1.0 - ramp;
        (factor * positions).recip() * (1.0 - kept) + positions.recip() * kept
    }
}
