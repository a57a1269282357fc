//! How much memory a model takes.

use std::fmt::{self, Display};

use super::{Config, tensors};

/// The bytes that weights and caches take, with the sum that leads there.
///
/// Its `Display` is that sum, for the sentence that refuses what does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// All weights.
    pub weights: u64,
    /// Keys and values of one position: `layers * 2 * kv_heads * head_dim` values.
    pub position: u64,
    /// Positions that are held at once, of all requests together.
    pub positions: u64,
}

impl Memory {
    /// What `config` needs.
    ///
    /// `weight` is the bytes of one weight, scales included (4 in f32, 34 / 32 in Q8_0), and
    /// `value` those of one key's or value's number.
    pub fn new(config: &Config, weight: f64, value: usize, positions: usize) -> Self {
        let values = (config.layers * 2 * config.kv_heads) as u128 * config.head_dim as u128;
        Self {
            weights: (parameters(config) as f64 * weight).ceil() as u64,
            position: bounded(values * value as u128),
            positions: positions as u64,
        }
    }

    /// The sum: weights, and keys and values of all positions.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.position.saturating_mul(self.positions))
    }
}

impl Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weights, sum) = (mebibytes(self.weights), mebibytes(self.bytes()));
        let (position, positions) = (self.position, self.positions);
        write!(
            f,
            "{weights:.1} MiB of weights + {positions} positions x {position} B of keys and \
             values = {sum:.1} MiB"
        )
    }
}

/// The number of weights; a matrix that is used twice counts once.
pub fn parameters(config: &Config) -> u64 {
    let size = |shape: Vec<usize>| shape.iter().map(|n| *n as u128).product::<u128>();
    bounded(tensors(config).map(|(_, shape)| size(shape)).sum())
}

fn bounded(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
