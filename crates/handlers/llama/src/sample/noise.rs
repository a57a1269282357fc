//! Counter-based noise: 64 bits for each token id at each position of a reply.

/// Noise of one reply.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: u64,
}

impl Noise {
    /// Derives the noise from a request's seed.
    ///
    /// The prompt is part of the key, so requests with equal seeds do not share noise.
    pub fn new(seed: u64, prompt: &[u32]) -> Self {
        let start = mix(seed.wrapping_add(GOLDEN));
        Self { key: prompt.iter().fold(start, |key, &token| mix(key ^ mix(u64::from(token) + 1))) }
    }

    /// Returns the noise for the token at position `index` of the reply.
    pub(super) fn at(self, index: usize) -> Stream {
        Stream { state: mix(self.key ^ mix(index as u64 + 1)) }
    }
}

/// Noise at one position of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    state: u64,
}

impl Stream {
    /// Returns the number to which each token adds its own.
    pub(super) fn state(self) -> u64 {
        self.state
    }

    /// Returns the 64 bits of a token id.
    #[inline]
    pub(super) fn bits(self, token: u32) -> u64 {
        let z = self.nearly(token);
        z ^ (z >> 31)
    }

    /// Returns bits that agree with [`bits`](Self::bits) in the upper [`SURE`] bits only.
    ///
    /// The last shift of the output function does not affect those bits, so a search can skip it.
    #[inline]
    pub(super) fn nearly(self, token: u32) -> u64 {
        scramble(self.counter(token))
    }

    /// Counts the tokens from `first` on for which [`nearly`](Self::nearly) is at least `least`.
    #[inline]
    pub(super) fn count_from(self, first: u32, tokens: usize, least: u64) -> usize {
        let mut counter = self.counter(first);
        let mut count = 0;
        for _ in 0..tokens {
            count += usize::from(scramble(counter) >= least);
            counter = counter.wrapping_add(GOLDEN);
        }
        count
    }

    #[inline]
    fn counter(self, token: u32) -> u64 {
        self.state.wrapping_add((u64::from(token) + 1).wrapping_mul(GOLDEN))
    }
}

/// Number of upper bits in which [`Stream::nearly`] equals [`Stream::bits`].
pub(super) const SURE: u32 = 31;

/// Increment of SplitMix64.
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, with the constants of
/// Stafford's variant 13).
pub(super) fn mix(z: u64) -> u64 {
    let z = scramble(z);
    z ^ (z >> 31)
}

#[inline]
fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Number of upper bits that [`gumbel`] uses.
pub(super) const GUMBEL_BITS: u32 = 52;

/// Returns a standard Gumbel variate from the upper bits; always finite.
pub(super) fn gumbel(bits: u64) -> f64 {
    let uniform = ((bits >> (64 - GUMBEL_BITS)) as f64 + 0.5) * 2f64.powi(-(GUMBEL_BITS as i32));
    -libm::log(-libm::log(uniform))
}

/// Upper bound of [`gumbel`] given the number of leading ones: `-ln(-ln u) <= -ln(1 - u)`.
pub(super) fn gumbel_bound(leading_ones: u32) -> f64 {
    f64::from(leading_ones.min(GUMBEL_BITS) + 1) * std::f64::consts::LN_2 + 1e-9
}

#[cfg(test)]
mod tests {
    use super::{GOLDEN, Noise, SURE, gumbel, gumbel_bound, mix};

    #[test]
    fn the_bound_is_never_below_the_noise() {
        let edges = [0, 1, u64::MAX, u64::MAX - 1, u64::MAX << 12, 1 << 63, u64::MAX << 1, 0xfff];
        let ones = (0..64).map(|zeros| u64::MAX << zeros);
        for bits in edges.into_iter().chain(ones).chain((0..100_000).map(mix)) {
            assert!(gumbel(bits).is_finite());
            assert!(gumbel(bits) <= gumbel_bound(bits.leading_ones()), "{bits:x}");
        }
    }

    #[test]
    fn the_noise_is_what_was_published_for_this_version() {
        // First output of SplitMix64 with seed 0, from its authors' code.
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
        // Value of this version. Another value would change replies.
        assert_eq!(Noise::new(1, &[2, 3]).at(4).bits(5), 0x387c_11d1_ab97_b639);
    }

    #[test]
    fn seed_prompt_place_and_token_all_change_the_noise() {
        let bits =
            |seed, prompt: &[u32], index, token| Noise::new(seed, prompt).at(index).bits(token);
        let base = bits(1, &[2, 3], 4, 5);
        assert_eq!(base, bits(1, &[2, 3], 4, 5));
        for other in [bits(2, &[2, 3], 4, 5), bits(1, &[3, 2], 4, 5), bits(1, &[2], 4, 5)] {
            assert_ne!(base, other);
        }
        assert_ne!(base, bits(1, &[2, 3], 5, 5));
        assert_ne!(base, bits(1, &[2, 3], 4, 6));
    }

    #[test]
    fn the_upper_bits_are_sure_before_the_last_shift() {
        let stream = Noise::new(1, &[]).at(0);
        for token in 0..10_000 {
            assert_eq!(stream.nearly(token) >> (64 - SURE), stream.bits(token) >> (64 - SURE));
        }
        let large = |token: &u32| stream.nearly(*token) >= 1 << 63;
        let count = (70..134).filter(large).count();
        assert_eq!(stream.count_from(70, 64, 1 << 63), count);
    }
}
