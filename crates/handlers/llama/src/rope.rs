//! Rotary positions: the angle of each pair of dimensions at each position.

use candle_core::{Device, Result, Tensor};

use crate::{Rope, RopeScaling};

/// Cosines and sines for every position of the context, both `[context, head_dim / 2]`.
#[derive(Debug)]
pub struct RopeTable {
    cos: Tensor,
    sin: Tensor,
}

impl RopeTable {
    /// Tables for `context` positions.
    ///
    /// Frequencies and angles are rounded to f32 as transformers does, so that far positions
    /// turn by what the model was trained on.
    ///
    /// # Errors
    ///
    /// Only candle's own, for want of memory.
    pub fn new(rope: &Rope, head_dim: usize, context: usize) -> Result<Self> {
        let frequencies: Vec<f32> = frequencies(rope, head_dim).collect();
        let angles = || {
            (0..context).flat_map(|position| {
                frequencies.iter().map(move |frequency| f64::from(position as f32 * frequency))
            })
        };
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles().map(|angle| of(angle) as f32).collect();
            Tensor::from_vec(values, (context, frequencies.len()), &Device::Cpu)
        };
        Ok(Self { cos: table(libm::cos)?, sin: table(libm::sin)? })
    }

    /// Turns `x`, `[1, heads, tokens, head_dim]`, whose first token is at `position`.
    ///
    /// # Errors
    ///
    /// If the positions are beyond the table.
    pub fn apply(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let tokens = x.dim(2)?;
        let cos = self.cos.narrow(0, position, tokens)?;
        let sin = self.sin.narrow(0, position, tokens)?;
        candle_nn::rotary_emb::rope(x, &cos, &sin)
    }
}

/// Turns per position, in radians, of each pair.
fn frequencies(rope: &Rope, head_dim: usize) -> impl Iterator<Item = f32> {
    (0..head_dim / 2).map(move |pair| {
        let frequency = 1.0 / libm::pow(rope.theta, 2.0 * pair as f64 / head_dim as f64);
        scaled(frequency, &rope.scaling) as f32
    })
}

/// As `ROPE_INIT_FUNCTIONS` in transformers' `modeling_rope_utils.py`.
fn scaled(frequency: f64, scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let turns = original_context * frequency / std::f64::consts::TAU;
            let high = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
            let high = high.clamp(0.0, 1.0);
            high * frequency + (1.0 - high) * frequency / factor
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RopeScaling, scaled};

    #[test]
    fn llama_3_keeps_high_frequencies_and_divides_low_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        assert_eq!(scaled(1.0, &scaling), 1.0);
        assert_eq!(scaled(1e-4, &scaling), 1e-4 / 8.0);
        let between = scaled(2e-3, &scaling);
        assert!(between < 2e-3 && between > 2e-3 / 8.0);
    }
}
