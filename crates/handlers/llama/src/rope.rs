//! Rotary positions: the angle of each pair of dimensions at each position.

use candle_core::{Device, Result, Tensor};

use crate::Rope;

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
        let frequencies = rope.frequencies(head_dim);
        let scaling = rope.attention_scaling();
        let angles = || {
            (0..context).flat_map(|position| {
                frequencies.iter().map(move |frequency| f64::from(position as f32 * frequency))
            })
        };
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles().map(|angle| of(angle) as f32 * scaling).collect();
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
