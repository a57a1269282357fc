//! Vectors of sixteen numbers in a tier's registers.
//!
//! The compiler vectorizes loops over lanes, but not reliably, and sums that are spilled from
//! registers take twice as long. So everything that runs per weight uses explicit vectors. Their
//! bits are those of the loops in [`Portable`], which define the results.

mod bytes;
#[cfg(target_arch = "x86_64")]
mod bytes_x86;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use self::bytes::{Bytes, FOURS};

#[cfg(target_arch = "x86_64")]
pub(super) use self::x86::{Avx2, Avx512};
use super::{LANES, Lanes, Tier};

/// Proof that a tier's instructions are available: a value is only made where the machine has them.
///
/// All methods are always inlined: see [`Work`](super::Work).
pub(crate) trait Simd: Bytes {
    const TIER: Tier;

    /// Vector of sixteen f32 numbers.
    type Vector: Copy;

    fn load(self, from: &Lanes) -> Self::Vector;
    fn store(self, x: Self::Vector, to: &mut Lanes);
    /// Returns a vector with the same number in all lanes.
    fn splat(self, x: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Computes `a * b + c`, rounded once.
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Converts integers to f32, rounding ties to even.
    fn integers(self, x: &[i32; LANES]) -> Self::Vector;
    fn counted(self, x: Self::Counts) -> Self::Vector;
    /// Widens sixteen bf16 numbers to f32.
    fn brains(self, x: &[u16; LANES]) -> Self::Vector;
    /// Widens two bf16 numbers per lane: those of the lower halves, then those of the upper halves.
    fn pairs(self, x: &[u32; LANES]) -> [Self::Vector; 2];
    /// Widens sixteen finite f16 numbers to f32.
    fn halves(self, x: &[u16; LANES]) -> Self::Vector;
}

/// Baseline tier: plain loops over the lanes.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Simd for Portable {
    const TIER: Tier = Tier::Portable;

    type Vector = Lanes;

    #[inline(always)]
    fn load(self, from: &Lanes) -> Lanes {
        *from
    }

    #[inline(always)]
    fn store(self, x: Lanes, to: &mut Lanes) {
        *to = x;
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        [x; LANES]
    }

    #[inline(always)]
    fn add(self, mut a: Lanes, b: Lanes) -> Lanes {
        for lane in 0..LANES {
            a[lane] += b[lane];
        }
        a
    }

    #[inline(always)]
    fn multiply(self, mut a: Lanes, b: Lanes) -> Lanes {
        for lane in 0..LANES {
            a[lane] *= b[lane];
        }
        a
    }

    #[inline(always)]
    fn fused(self, a: Lanes, b: Lanes, mut c: Lanes) -> Lanes {
        for lane in 0..LANES {
            c[lane] = a[lane].mul_add(b[lane], c[lane]);
        }
        c
    }

    #[inline(always)]
    fn integers(self, x: &[i32; LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = x[lane] as f32;
        }
        lanes
    }

    #[inline(always)]
    fn counted(self, x: [i32; LANES]) -> Lanes {
        self.integers(&x)
    }

    #[inline(always)]
    fn brains(self, x: &[u16; LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = f32::from_bits(u32::from(x[lane]) << 16);
        }
        lanes
    }

    #[inline(always)]
    fn pairs(self, x: &[u32; LANES]) -> [Lanes; 2] {
        let mut pairs = [[0.0; LANES]; 2];
        for lane in 0..LANES {
            pairs[0][lane] = f32::from_bits(x[lane] << 16);
            pairs[1][lane] = f32::from_bits(x[lane] & 0xffff_0000);
        }
        pairs
    }

    #[inline(always)]
    fn halves(self, x: &[u16; LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = widened(x[lane]);
        }
        lanes
    }
}

/// Widens a finite f16 exactly. The exponent is shifted into place and corrected by a
/// multiplication, which is right for subnormal numbers too.
#[inline(always)]
fn widened(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * TWO_TO_112;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{LANES, Lanes, Tier, Work};
    use super::{Portable, Simd};

    struct Halves<'a>(&'a [u16; LANES], &'a mut Lanes);

    impl Work for Halves<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            simd.store(simd.halves(self.0), self.1);
        }
    }

    #[test]
    fn every_finite_f16_is_widened_exactly_in_every_tier() {
        let finite = (0..=u16::MAX).filter(|bits| half::f16::from_bits(*bits).is_finite());
        let finite: Vec<u16> = finite.collect();
        for tier in Tier::available() {
            for bits in finite.as_chunks::<LANES>().0 {
                let mut lanes = [0.0; LANES];
                tier.run(Halves(bits, &mut lanes));
                for (bits, lane) in bits.iter().zip(lanes) {
                    let right = half::f16::from_bits(*bits).to_f32();
                    assert_eq!(lane.to_bits(), right.to_bits(), "{tier:?} {bits:x}");
                }
            }
        }
    }

    /// Runs all other vector operations once on the given bits.
    struct All<'a>([&'a [u32; LANES]; 3], &'a mut Vec<Lanes>);

    impl Work for All<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let Self([a, b, c], out) = self;
            let mut keep = |x| {
                let mut lanes = [0.0; LANES];
                simd.store(x, &mut lanes);
                out.push(lanes);
            };
            let [x, y, z] = [a, b, c].map(|bits| simd.load(&bits.map(f32::from_bits)));
            keep(simd.add(x, y));
            keep(simd.multiply(x, y));
            keep(simd.fused(x, y, z));
            keep(simd.splat(f32::from_bits(a[0])));
            keep(simd.integers(&a.map(u32::cast_signed)));
            keep(simd.brains(&a.map(|bits| bits as u16)));
            simd.pairs(a).into_iter().for_each(keep);
        }
    }

    /// Returns the bits of all lanes, with every NaN mapped to the same bits.
    fn bits(all: &[Lanes]) -> Vec<u32> {
        let one = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        all.iter().flatten().map(one).collect()
    }

    proptest! {
        #[test]
        fn every_tier_gives_the_bits_of_the_portable_one(
            x in prop::array::uniform3(prop::array::uniform16(any::<u32>())),
        ) {
            let mut right = Vec::new();
            All(x.each_ref(), &mut right).run(Portable);
            for tier in Tier::available() {
                let mut all = Vec::new();
                tier.run(All(x.each_ref(), &mut all));
                prop_assert_eq!(bits(&all), bits(&right), "{:?}", tier);
            }
        }
    }
}
