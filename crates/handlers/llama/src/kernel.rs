//! CPU kernels with bit-identical results on every machine.
//!
//! Each output number is one scalar recurrence with a fixed order of operations. SIMD lanes hold
//! rows of a matrix, positions of a KV cache or dimensions of a head, never the terms of one sum. A
//! tier compiles the same source for other instructions, or uses other instructions for exact
//! integer arithmetic, so all tiers give the same bits. The columns of a matrix product are cut
//! into segments that a tree adds up, so shards of a matrix give the bits of the whole matrix.

pub(crate) mod attention;
pub(crate) mod element;
pub(crate) mod kquants;
pub(crate) mod math;
pub(crate) mod q8;
pub(crate) mod reach;
pub(crate) mod row;
pub(crate) mod simd;

use self::simd::Simd;

/// Number of matrix rows computed side by side: the height of a tile.
pub(crate) const LANES: usize = 16;

/// One f32 for each row of a tile.
pub(crate) type Lanes = [f32; LANES];

/// Instruction-set tier that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Baseline instructions of the architecture. Without hardware fused multiply-add it is slow,
    /// but it still rounds once per multiply-add, so the bits are the same.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Tier {
    /// Returns the fastest tier of this machine whose integer products pass a check. The check is
    /// there for emulators, which can get these instructions wrong.
    pub fn best() -> Self {
        Self::available().rev().find(|tier| q8::counts_right(*tier)).unwrap_or(Self::Portable)
    }

    /// Returns the tiers that this machine supports, the fastest last.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|tier| tier.is_available())
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
    pub(crate) fn run<W: Work>(self, work: W) {
        compiled::run(self, work);
    }
}

/// Prefetches the cache line `reach` bytes after the start of `weights`. A prefetch past their end
/// has no effect.
#[inline(always)]
pub(crate) fn ask_ahead<T>(weights: *const T, reach: usize) {
    ask(weights.cast::<u8>().wrapping_add(reach));
}

/// Prefetches the cache line at an address, which may be invalid.
#[inline(always)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the instruction for it is an intrinsic")
)]
fn ask(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect at any address, and every x86-64 CPU has the
    // instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    let _ = at;
}

/// Work that is compiled once for each tier.
///
/// `run` and everything it calls must be `#[inline(always)]`, since only inlined code gets the
/// tier's instructions.
pub(crate) trait Work {
    fn run<S: Simd>(self, simd: S);
}

/// Only module that compiles code for instructions that the machine may lack.
mod compiled {
    #![expect(unsafe_code, reason = "a function for other instructions is unsafe to call")]

    use super::simd::Portable;
    #[cfg(target_arch = "x86_64")]
    use super::simd::{Avx2, Avx512};
    use super::{Tier, Work};

    #[inline]
    pub(super) fn run<W: Work>(tier: Tier, work: W) {
        assert!(tier.is_available(), "this machine has no {tier:?}");
        match tier {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above ensures that the machine has the instructions.
            Tier::Avx2 => unsafe { avx2(work, Avx2::new()) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Tier::Avx512 => unsafe { avx512(work, Avx512::new()) },
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
    unsafe fn avx512<W: Work>(work: W, simd: Avx512) {
        work.run(simd);
    }
}
