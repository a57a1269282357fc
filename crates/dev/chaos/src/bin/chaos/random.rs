//! Seeded random numbers for the moments and targets of faults.

/// SplitMix64 generator (Steele, Lea, Flood, 2014): small, and equal on every platform.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the generator for a round of a scenario.
    pub(crate) fn of(seed: u64, scenario: &str, round: usize) -> Self {
        let mixed = scenario.bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
        Self(mix(mixed ^ round as u64))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from `least` to `most`, inclusive.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + (self.next() % (most - least + 1) as u64) as usize
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
