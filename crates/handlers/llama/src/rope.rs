//! Rotary position embedding: angle of each pair of dimensions at each position.

use crate::config::Rope;

/// Cosines and sines of every position in the context.
#[derive(Debug)]
pub struct RopeTable {
    /// For each position, `half` cosines and `half` sines.
    table: Vec<f32>,
    half: usize,
}

impl RopeTable {
    /// Computes the table for `context` positions.
    ///
    /// Frequencies and angles are rounded to f32 as in transformers, so that far positions rotate
    /// by the angles that the model was trained on.
    pub fn new(rope: &Rope, head_dim: usize, context: usize) -> Self {
        let frequencies = rope.frequencies(head_dim);
        let scaling = rope.attention_scaling();
        let row = |position: usize| {
            let of = |function: fn(f64) -> f64| {
                let angle = move |frequency: &f32| f64::from(position as f32 * frequency);
                frequencies.iter().map(move |f| function(angle(f)) as f32 * scaling)
            };
            of(libm::cos).chain(of(libm::sin)).collect::<Vec<_>>()
        };
        Self { table: (0..context).flat_map(row).collect(), half: frequencies.len() }
    }

    /// Returns the cosines and the sines of a position, `head_dim / 2` each.
    ///
    /// # Panics
    ///
    /// Panics if the position is beyond the table.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        self.table[position * 2 * self.half..][..2 * self.half].split_at(self.half)
    }
}
