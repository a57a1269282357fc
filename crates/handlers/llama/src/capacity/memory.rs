//! Memory requirements of a model.

use std::fmt::{self, Display};

use crate::config::{Config, tensors};
use crate::kv::KvFormat;

/// Bytes of weights and KV cache, with the terms of the sum.
///
/// Its `Display` shows that sum, for the error that refuses a model that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Memory {
    /// Bytes of all weights.
    pub weights: u64,
    /// Bytes of keys and values of one position, on all ranks together: `layers * 2 * kv_heads *
    /// head_dim` numbers, and more where several ranks have the same heads.
    pub position: u64,
    /// Number of positions cached at once, for all requests together.
    pub positions: u64,
}

impl Memory {
    /// Computes the requirements of `config` on `ranks` ranks, at least one.
    ///
    /// `weight` is the size of a weight in bytes, scales included (4 in f32, 34 / 32 in Q8_0).
    pub fn new(config: &Config, ranks: usize, weight: f64, kv: KvFormat, positions: usize) -> Self {
        let ranks = ranks.max(1);
        let position = config.position(ranks, kv).saturating_mul(ranks as u64);
        Self {
            weights: (parameters(config) as f64 * weight).ceil() as u64,
            position,
            positions: positions as u64,
        }
    }

    /// Returns the sum in bytes: weights, and keys and values of all positions.
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

impl Config {
    /// Returns the bytes of one position's keys and values on each rank. A rank has at least one
    /// head.
    pub(super) fn position(&self, ranks: usize, kv: KvFormat) -> u64 {
        let heads = (self.kv_heads / ranks).max(1);
        bounded((self.layers * 2 * heads) as u128 * (self.head_dim * kv.width()) as u128)
    }
}

/// Returns the number of weights; a matrix that is used twice counts once.
pub fn parameters(config: &Config) -> u64 {
    let size = |shape: Vec<usize>| shape.iter().map(|n| *n as u128).product::<u128>();
    bounded(tensors(config).map(|(_, shape)| size(shape)).sum())
}

fn bounded(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
