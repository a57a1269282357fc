//! Instruction-set tiers, and vectors of sixteen numbers in a tier's registers.
//!
//! SIMD lanes hold rows of a matrix, positions of a KV cache or dimensions of a head, never the
//! terms of one sum. A tier compiles the same source for other instructions, or uses other
//! instructions for exact integer arithmetic, so all tiers give the same bits.
//!
//! The compiler vectorizes loops over lanes, but not reliably, and sums that are spilled from
//! registers take twice as long. So everything that runs per weight uses explicit vectors. Their
//! bits are those of the loops of the portable tier, which define the results.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
mod bytes;
#[cfg(target_arch = "x86_64")]
mod bytes_x86;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Traits that only this module implements.
mod sealed {
    /// Token of a tier.
    pub trait Sealed {}
}

use std::fmt;

pub use self::bytes::{Bytes, FOURS};

pub(crate) use self::bytes::at_once;
pub(crate) use self::portable::{add_pair_block, power};

use self::portable::{Portable, pair_product};
#[cfg(target_arch = "x86_64")]
use self::x86::{Avx2, Avx512};

/// Number of matrix rows computed side by side: the height of a tile.
pub const LANES: usize = 16;

/// One f32 for each row of a tile.
pub type Lanes = [f32; LANES];

/// Instruction-set tier that the kernels are compiled for.
///
/// All tiers give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Tier {
    /// Baseline instructions of the architecture. Without hardware fused multiply-add it is slow,
    /// but it still rounds once per multiply-add, so the bits are the same.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512-BF16 in addition to [`Avx512`](Self::Avx512), for [products in
    /// bf16](crate::matrix::Matrix::in_bf16).
    Avx512Bf16,
    /// AMX with bf16 and eight-bit integers in addition to [`Avx512Bf16`](Self::Avx512Bf16).
    Amx,
}

/// Order of the additions of products in bf16. Each order has bits of its own, and every tier can
/// compute both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bf16Order {
    /// The order of AVX-512-BF16's instruction: pairs of columns are added one after the other, the
    /// second column's product first.
    Pairs,
    /// The order of AMX-BF16's instruction: in each block of 32 columns, the products of the first
    /// columns of all pairs and those of the second columns are added up apart; then the two sums are
    /// added, and their sum is added to that of the blocks before.
    Blocks,
}

impl fmt::Display for Bf16Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pairs => "avx512-bf16",
            Self::Blocks => "amx-bf16",
        })
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        })
    }
}

impl Tier {
    /// Returns the tiers that this machine supports, the fastest last.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        let all = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];
        all.into_iter().filter(|tier| tier.is_available())
    }

    /// Returns the order of [products in bf16](crate::matrix::Matrix::in_bf16) that the tier has an
    /// instruction for, the fastest one if there are two. Products in other orders are computed number
    /// by number.
    pub fn bf16_order(self) -> Option<Bf16Order> {
        match self {
            Self::Amx => Some(Bf16Order::Blocks),
            Self::Avx512Bf16 => Some(Bf16Order::Pairs),
            _ => None,
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        match self {
            Self::Portable => true,
            Self::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
            Self::Avx512Bf16 => Self::Avx512.is_available() && has!("avx512bf16"),
            #[cfg(target_os = "linux")]
            Self::Amx => Self::Avx512Bf16.is_available() && amx::is_available(),
            #[cfg(not(target_os = "linux"))]
            Self::Amx => false,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// Runs `work` compiled for this tier.
    ///
    /// # Panics
    ///
    /// Panics if this machine does not support the tier.
    #[inline]
    pub fn run<W: Work>(self, work: W) {
        compiled::run(self, work);
    }

    /// Runs work with [`Simd::pair_products`], whose instruction other work does without: so that is
    /// compiled once for both tiers of AVX-512.
    ///
    /// # Panics
    ///
    /// Panics if this machine does not support the tier.
    #[inline]
    pub(crate) fn run_pairs<W: Work>(self, work: W) {
        compiled::run_pairs(self, work);
    }
}

/// Proof that a tier's instructions are available: a value is only made where the machine has them.
/// So the trait is sealed.
///
/// All methods are always inlined: see [`Work`].
pub trait Simd: Bytes {
    /// The tier.
    const TIER: Tier;

    /// Vector of sixteen f32 numbers.
    type Vector: Copy;

    /// Loads a vector from memory.
    fn load(self, from: &Lanes) -> Self::Vector;
    /// Stores a vector to memory.
    fn store(self, x: Self::Vector, to: &mut Lanes);
    /// Returns a vector with the same number in all lanes.
    fn splat(self, x: f32) -> Self::Vector;
    /// Adds lane by lane.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Multiplies lane by lane.
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Computes `a * b + c`, rounded once.
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Converts integers to f32, rounding ties to even.
    fn integers(self, x: &[i32; LANES]) -> Self::Vector;
    /// Converts the accumulators of byte products to f32, rounding ties to even.
    fn counted(self, x: Self::Counts) -> Self::Vector;
    /// Widens sixteen bf16 numbers to f32.
    fn brains(self, x: &[u16; LANES]) -> Self::Vector;
    /// Widens two bf16 numbers per lane: those of the lower halves, then those of the upper halves.
    fn pairs(self, x: &[u32; LANES]) -> [Self::Vector; 2];
    /// Adds the products of two bf16 numbers per lane and of a pair of bf16 numbers to `sums`: of
    /// the upper halves, then of the lower ones. Each addition rounds once, and numbers below the
    /// least normal one are zeros.
    #[inline(always)]
    fn pair_products(self, pairs: &[u32; LANES], x: u32, sums: Self::Vector) -> Self::Vector {
        self.defined_pair_products(pairs, x, sums)
    }
    /// Computes [`pair_products`](Self::pair_products) number by number, as they are defined.
    #[inline(always)]
    fn defined_pair_products(
        self,
        pairs: &[u32; LANES],
        x: u32,
        sums: Self::Vector,
    ) -> Self::Vector {
        let mut lanes = [0.0; LANES];
        self.store(sums, &mut lanes);
        for (sum, pair) in lanes.iter_mut().zip(pairs) {
            *sum = pair_product(*pair, x, *sum);
        }
        self.load(&lanes)
    }
    /// Widens sixteen finite f16 numbers to f32.
    fn halves(self, x: &[u16; LANES]) -> Self::Vector;
    /// Computes 2 to the power `x - 128`. No number is above 254.
    fn powers(self, x: &[u8; LANES]) -> Self::Vector;
}

/// Work that is compiled once for each tier.
///
/// ```
/// use nsbridge_kernels::simd::{Lanes, Simd, Tier, Work};
///
/// /// Computes `a * b + c` in each lane, rounded once.
/// struct Fused<'a>([&'a Lanes; 3], &'a mut Lanes);
///
/// impl Work for Fused<'_> {
///     #[inline(always)]
///     fn run<S: Simd>(self, simd: S) {
///         let [a, b, c] = self.0.map(|x| simd.load(x));
///         simd.store(simd.fused(a, b, c), self.1);
///     }
/// }
///
/// for tier in Tier::available() {
///     let mut out = [0.0; 16];
///     tier.run(Fused([&[2.0; 16], &[3.0; 16], &[0.5; 16]], &mut out));
///     assert_eq!(out, [6.5; 16], "{tier:?}");
/// }
/// ```
///
/// `run` and everything it calls must be `#[inline(always)]`, since only inlined code gets the
/// tier's instructions.
pub trait Work {
    /// Does the work with the instructions of a tier.
    fn run<S: Simd>(self, simd: S);
}

/// Only module that compiles code for instructions that the machine may lack.
mod compiled {
    #![expect(unsafe_code, reason = "a function for other instructions is unsafe to call")]

    use super::Portable;
    #[cfg(target_arch = "x86_64")]
    use super::{Avx2, Avx512};
    use super::{Tier, Work};

    #[inline]
    pub(super) fn run_pairs<W: Work>(tier: Tier, work: W) {
        assert!(tier.is_available(), "this machine has no {tier:?}");
        match tier {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above ensures that the machine has the instructions.
            Tier::Avx512Bf16 | Tier::Amx => unsafe { avx512_bf16(work, Avx512::new()) },
            _ => work.run(Portable),
        }
    }

    #[inline]
    pub(super) fn run<W: Work>(tier: Tier, work: W) {
        assert!(tier.is_available(), "this machine has no {tier:?}");
        match tier {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above ensures that the machine has the instructions.
            Tier::Avx2 => unsafe { avx2(work, Avx2::new()) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => unsafe { avx512(work, Avx512::new()) },
            _ => work.run(Portable),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2<W: Work>(work: W, simd: Avx2) {
        work.run(simd);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn avx512<W: Work>(work: W, simd: Avx512<false>) {
        work.run(simd);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16"
    )]
    unsafe fn avx512_bf16<W: Work>(work: W, simd: Avx512<true>) {
        work.run(simd);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LANES, Lanes, Portable, Simd, Tier, Work};

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

    struct Powers<'a>(&'a [u8; LANES], &'a mut Lanes);

    impl Work for Powers<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            simd.store(simd.powers(self.0), self.1);
        }
    }

    #[test]
    fn every_power_of_two_is_exact_in_every_tier() {
        for tier in Tier::available() {
            for power in 0..=254u8 {
                let mut lanes = [0.0; LANES];
                tier.run(Powers(&[power; LANES], &mut lanes));
                let right = f64::from(i32::from(power) - 128).exp2();
                assert_eq!(lanes.map(f64::from), [right; LANES], "{tier:?} {power}");
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
            keep(simd.powers(&a.map(|bits| (bits as u8).min(254))));
            simd.pairs(a).into_iter().for_each(keep);
        }
    }

    struct Pairs<'a>(&'a [[u32; LANES]; 2], u32, &'a mut Lanes);

    impl Work for Pairs<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let sums = simd.load(&self.0[1].map(f32::from_bits));
            simd.store(simd.pair_products(&self.0[0], self.1, sums), self.2);
        }
    }

    /// Returns the bits of all lanes, with every NaN mapped to the same bits.
    fn bits(all: &[Lanes]) -> Vec<u32> {
        let one = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        all.iter().flatten().map(one).collect()
    }

    proptest! {
        #[test]
        fn products_in_bf16_of_every_tier_are_those_of_the_definition(
            pairs in prop::array::uniform2(prop::array::uniform16(any::<u32>())), x: u32,
        ) {
            let mut right = [0.0; LANES];
            Tier::Portable.run_pairs(Pairs(&pairs, x, &mut right));
            for tier in Tier::available() {
                let mut found = [0.0; LANES];
                tier.run_pairs(Pairs(&pairs, x, &mut found));
                prop_assert_eq!(bits(&[found]), bits(&[right]), "{:?}", tier);
            }
        }

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
