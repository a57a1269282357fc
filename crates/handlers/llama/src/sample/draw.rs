//! Gumbel-max draw: the largest `logit + temperature * gumbel`, mostly without a logarithm.
//!
//! The leading ones in a token's noise bits bound its score. If the bound is below the best score
//! so far, the token cannot win, whatever its other bits. Bounds are computed by the same additions
//! as scores, and these are monotonic in floating point too, so no token that could win is skipped.

use super::noise::{GUMBEL_BITS, SURE, Stream, gumbel, gumbel_bound};
use super::row::{self, BLOCK, Row, rank};

/// State of a draw among tokens.
#[derive(Debug)]
pub(super) struct Draw {
    noise: Stream,
    temperature: f64,
    /// Upper bound of the noise term, by the number of leading ones in its bits.
    reach: [f64; REACHES],
    best: f64,
    choice: Option<u32>,
}

const REACHES: usize = GUMBEL_BITS as usize + 1;

impl Draw {
    pub(super) fn new(noise: Stream, temperature: f32) -> Self {
        let temperature = f64::from(temperature);
        let reach = std::array::from_fn(|ones| temperature * gumbel_bound(ones as u32));
        Self { noise, temperature, reach, best: f64::NEG_INFINITY, choice: None }
    }

    /// Returns the token with the largest score so far; the smallest id among equals.
    pub(super) fn choice(&self) -> Option<u32> {
        self.choice
    }

    /// Draws among the tokens with ranks up to `last`.
    pub(super) fn among(&mut self, row: &Row<'_>, last: u64) {
        let floor = row::logit(last);
        // A NaN logit may pass this test, but its score never compares as larger.
        let among = |logit: f32, token: u32| rank(logit, token) <= last;
        // Starts with the likeliest token: an early good score saves the logarithms of the rest.
        let first = row.maxima().iter().position(|&max| max == row.max()).unwrap_or_default();
        let from = first * BLOCK;
        for (token, &logit) in (from as u32..).zip(row.block(first)) {
            if among(logit, token) {
                self.consider(logit, token);
            }
        }
        let mut ones = 0;
        for (block, &max) in row.maxima().iter().enumerate() {
            if max < floor || !self.could_win(max, &mut ones) || block == first {
                continue;
            }
            let from = (block * BLOCK) as u32;
            let least = least_with(ones as u32);
            // Usually no token qualifies, so single tokens are only checked if one does.
            if self.noise.count_from(from, BLOCK, least) == 0 {
                continue;
            }
            for (token, &logit) in (from..).zip(row.block(block)) {
                if self.noise.nearly(token) >= least && among(logit, token) {
                    self.consider(logit, token);
                }
            }
        }
    }

    /// Sets `ones` to the fewest leading ones with which this logit could win. Returns false if
    /// none suffice.
    ///
    /// The search starts from the value of the previous block, which is usually close.
    #[inline]
    fn could_win(&self, logit: f32, ones: &mut usize) -> bool {
        let logit = f64::from(logit);
        while *ones < REACHES && logit + self.reach[*ones] < self.best {
            *ones += 1;
        }
        while *ones > 0 && logit + self.reach[*ones - 1] >= self.best {
            *ones -= 1;
        }
        *ones < REACHES
    }

    #[inline]
    fn consider(&mut self, logit: f32, token: u32) {
        let bits = self.noise.bits(token);
        let logit = f64::from(logit);
        let ones = bits.leading_ones().min(GUMBEL_BITS) as usize;
        if logit + self.reach[ones] < self.best {
            return;
        }
        let score = logit + self.temperature * gumbel(bits);
        let ahead = score == self.best && self.choice.is_none_or(|choice| token < choice);
        if score > self.best || ahead {
            (self.best, self.choice) = (score, Some(token));
        }
    }
}

/// Returns the smallest noise bits with this number of leading ones.
///
/// Numbers above [`SURE`] are reduced to it; [`Draw::consider`] checks the exact bits.
fn least_with(leading_ones: u32) -> u64 {
    !(u64::MAX >> leading_ones.min(SURE))
}
