//! Softmax weights, with an exponential of our own and sums in a fixed order.
//!
//! std's `exp` gives different bits on different machines, and a library call for each of a hundred
//! thousand tokens is slow. This one consists of additions and multiplications without branches. So
//! the compiler may use vectors of any width, and the bits stay the same.

use super::row::{BLOCK, Row};

/// Distance below the likeliest token, in units of the temperature, from which on a token weighs 0.
///
/// A million such tokens would add 1e-14 of the likeliest token's weight.
const NOTHING: f32 = -46.0;

/// Number of steps per unit of the temperature in [`Weights::step`].
const FINENESS: f32 = 64.0;

/// Number of steps.
pub(super) const STEPS: usize = (-NOTHING * FINENESS) as usize + 1;

/// Weights of tokens, relative to the likeliest token's weight of 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    max: f32,
    per_temperature: f32,
}

impl Weights {
    /// Creates the weights for a temperature above 0.
    pub(super) fn new(max: f32, temperature: f32) -> Self {
        Self { max, per_temperature: 1.0 / temperature }
    }

    /// Returns `exp((logit - max) / temperature)`, or 0 if that is not a number.
    #[inline]
    pub(super) fn of(self, logit: f32) -> f32 {
        let below = self.below(logit);
        let weight = exp(below);
        if below > NOTHING { weight } else { 0.0 }
    }

    /// Returns the distance of a logit from the largest, in steps; smaller logits never have fewer
    /// steps.
    #[inline]
    pub(super) fn step(self, logit: f32) -> usize {
        // Adding 2^23 rounds to an integer and leaves it in the low bits.
        let shifted = self.below(logit) * -FINENESS + 8_388_608.0;
        (shifted.to_bits() & 0xfff) as usize
    }

    /// Returns two logits between which all logits of a step lie.
    pub(super) fn around(self, step: usize) -> (f32, f32) {
        let logit = |step: f64| {
            let below = step / f64::from(FINENESS) / f64::from(self.per_temperature);
            (f64::from(self.max) - below) as f32
        };
        (logit(step as f64 + 1.5).next_down(), logit(step as f64 - 1.5).next_up())
    }

    /// Returns the sum of weights over the row, in order of id in eight lanes.
    pub(super) fn total(self, row: &Row<'_>) -> f64 {
        const LANES: usize = 8;
        let mut lanes = [0.0; LANES];
        for (logits, &max) in row.logits().chunks(BLOCK).zip(row.maxima()) {
            if self.of(max) == 0.0 {
                continue;
            }
            let (parts, rest) = logits.as_chunks::<LANES>();
            for part in parts {
                for lane in 0..LANES {
                    lanes[lane] += f64::from(self.of(part[lane]));
                }
            }
            for (lane, &logit) in lanes.iter_mut().zip(rest) {
                *lane += f64::from(self.of(logit));
            }
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + b) + (c + d)) + ((e + f) + (g + h))
    }

    /// Returns the logit's distance below the likeliest, from [`NOTHING`] to 0.
    #[inline]
    fn below(self, logit: f32) -> f32 {
        let below = (logit - self.max) * self.per_temperature;
        // This maps NaN to `NOTHING` too.
        let below = if below > NOTHING { below } else { NOTHING };
        // Infinity minus infinity is NaN, but an infinite logit is the likeliest.
        if logit == self.max { 0.0 } else { below }
    }
}

/// Computes `e^x` for x in [-80, 0], within 2e-7 of its value.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2. The result is Taylor's polynomial of r, times 2^n by
/// setting its exponent bits (Cody and Waite, Software Manual for the Elementary Functions, 1980).
#[inline]
fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut power = 1.0 / 5040.0;
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        power = power * r + 1.0 / factorial;
    }
    power * f32::from_bits(shifted.to_bits().wrapping_shl(23).wrapping_add(1f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::super::row::Row;
    use super::{STEPS, Weights, exp};

    #[test]
    fn the_exponential_is_that_of_libm() {
        for step in 0..460_000 {
            let x = step as f32 * -1e-4;
            let (ours, theirs) = (f64::from(exp(x)), libm::exp(f64::from(x)));
            assert!((ours - theirs).abs() <= 2e-7 * theirs, "{x}: {ours} instead of {theirs}");
        }
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn weights_are_relative_to_the_likeliest_and_never_not_a_number() {
        let weights = Weights::new(2.0, 0.5);
        assert_eq!(weights.of(2.0), 1.0);
        assert!((f64::from(weights.of(1.0)) - libm::exp(-2.0)).abs() < 1e-7);
        assert_eq!([f32::NAN, f32::NEG_INFINITY, -1e30].map(|logit| weights.of(logit)), [0.0; 3]);
        let broken = Weights::new(f32::INFINITY, 1.0);
        assert_eq!([f32::INFINITY, 1.0].map(|logit| broken.of(logit)), [1.0, 0.0]);
        let cold = Weights::new(2.0, 1e-45);
        assert_eq!([2.0, 1.0].map(|logit| cold.of(logit)), [1.0, 0.0]);
    }

    #[test]
    fn steps_go_down_with_the_logits_and_lie_between_their_bounds() {
        for (max, temperature) in [(20.0, 1.0), (-3000.0, 0.05), (0.5, 40.0)] {
            let weights = Weights::new(max, temperature);
            let mut last = 0;
            for down in 0..50_000 {
                let logit = max - down as f32 * 1e-3 * temperature;
                let step = weights.step(logit);
                assert!((last..STEPS).contains(&step));
                let (low, high) = weights.around(step);
                // The last step holds all logits of weight 0.
                assert!(logit <= high && (logit >= low || step == STEPS - 1), "{logit}: {step}");
                last = step;
            }
            assert_eq!(last, STEPS - 1);
        }
    }

    #[test]
    fn the_total_counts_every_token_once() {
        for len in [1, 7, 8, 63, 64, 65, 200] {
            let logits = vec![1.5; len];
            let mut maxima = Vec::new();
            let row = Row::new(&logits, &mut maxima).unwrap();
            assert_eq!(Weights::new(1.5, 1.0).total(&row), len as f64);
        }
    }
}
