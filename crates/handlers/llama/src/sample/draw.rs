//! The draw: the largest of `logit + temperature * gumbel`, mostly without a logarithm.
//!
//! A token with many leading ones in its noise may win, one with few cannot: its score stays below
//! the best so far whatever the other bits are. The bounds are computed by the same additions as
//! the scores, which are monotonic in floating point too, so nothing that could win is passed over.

use super::noise::{GUMBEL_BITS, SURE, Stream, gumbel, gumbel_bound};
use super::row::{self, BLOCK, Row, rank};

/// A draw among tokens.
#[derive(Debug)]
pub(super) struct Draw {
    noise: Stream,
    temperature: f64,
    /// What the noise can add to a logit, by the leading ones of its bits.
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

    /// The token with the largest score so far; of equals the smallest id.
    pub(super) fn choice(&self) -> Option<u32> {
        self.choice
    }

    /// Draws among the tokens that do not rank behind the last one.
    pub(super) fn among(&mut self, row: &Row<'_>, last: u64) {
        let floor = row::logit(last);
        // What is not a number may be among them: no score of its is ahead of another.
        let among = |logit: f32, token: u32| rank(logit, token) <= last;
        // The likeliest first: a good score early spares the rest their logarithms.
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
            // Mostly none of them, so which ones they are is asked only then.
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

    /// Moves `ones` to the fewest leading ones with which this logit could win; false if none do.
    ///
    /// It starts from the answer for the block before, which is seldom far.
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

/// The least noise with so many leading ones.
///
/// More than [`SURE`] are taken for as many; [`Draw::consider`] looks closely.
fn least_with(leading_ones: u32) -> u64 {
    !(u64::MAX >> leading_ones.min(SURE))
}
