//! Seeded random numbers: xoshiro256++, whose state SplitMix64 makes of the seed.
//!
//! Both are those of Blackman and Vigna (<https://prng.di.unimi.it>). All numbers derived from them use
//! [`crate::math`], so one seed gives one sequence on every machine. They are not for secrets.

use crate::math::{exp, ln};

/// Distance of two neighboring numbers of [`Rng::uniform`].
const UNIFORM_STEP: f64 = 1.0 / (1_u64 << 53) as f64;

/// Source of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self { state: std::array::from_fn(|_| splitmix64(&mut state)) }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Number from 0 to below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * UNIFORM_STEP
    }

    /// Number of the exponential distribution.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * ln(1.0 - self.uniform())
    }

    /// Number of the standard normal distribution, by Marsaglia's polar method.
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * ln(square) / square).sqrt();
            }
        }
    }

    /// Number of the log-normal distribution; `sigma` is the standard deviation of its logarithm.
    pub(crate) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * exp(sigma * self.normal())
    }
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    //! The authors' own sequences, and moments of the distributions.

    use super::{Rng, splitmix64};

    #[test]
    fn the_generators_give_the_sequences_of_their_authors() {
        let mut state = 1_234_567;
        let first: Vec<u64> = (0..3).map(|_| splitmix64(&mut state)).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| rng.next()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn the_distributions_have_their_moments() {
        const DRAWS: u32 = 20_000;
        let mut rng = Rng::new(1);
        let mut mean = |draw: &dyn Fn(&mut Rng) -> f64| {
            (0..DRAWS).map(|_| draw(&mut rng)).sum::<f64>() / f64::from(DRAWS)
        };
        // Four standard errors of each mean.
        assert!((mean(&Rng::uniform) - 0.5).abs() < 0.009);
        assert!((mean(&|rng| rng.exponential(3.0)) - 3.0).abs() < 0.09);
        assert!(mean(&Rng::normal).abs() < 0.03);
        assert!((mean(&|rng| rng.normal().powi(2)) - 1.0).abs() < 0.04);
        let expected = 100.0 * (0.5_f64 * 0.25).exp();
        assert!((mean(&|rng| rng.log_normal(100.0, 0.5)) - expected).abs() < 2.0);
    }
}
