//! Arithmetic whose bits do not depend on the machine.
//!
//! Every number that a kernel gives is one scalar recurrence, written down once: the lanes of a
//! vector are rows of a matrix, positions of a cache or dimensions of a head, never the terms of a
//! sum. A tier is the same source compiled for other instructions, or exact integer arithmetic by
//! others, so the bits are equal whichever runs. Sums of matrices are cut into segments that a tree
//! adds up, so that shards of a matrix give the bits of the whole.

pub(crate) mod attention;
pub(crate) mod element;
pub(crate) mod kquants;
pub(crate) mod math;
pub(crate) mod q8;
pub(crate) mod reach;
pub(crate) mod row;
pub(crate) mod simd;

use self::simd::Simd;

/// Rows of a matrix that are computed side by side.
pub(crate) const LANES: usize = 16;

/// As many numbers as a tile has rows.
pub(crate) type Lanes = [f32; LANES];

/// The instructions that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// What every machine of this architecture has. Without fused multiply-add in hardware it is
    /// slow: the bits are those of one rounding all the same.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Tier {
    /// The fastest one that this machine has, and whose integer products are right here: an
    /// emulator's need not be.
    pub fn best() -> Self {
        Self::available().rev().find(|tier| q8::counts_right(*tier)).unwrap_or(Self::Portable)
    }

    /// Those that this machine has, the fastest last.
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

    /// Runs work compiled for this tier.
    ///
    /// # Panics
    ///
    /// If this machine does not have it.
    #[inline]
    pub(crate) fn run<W: Work>(self, work: W) {
        compiled::run(self, work);
    }
}

/// Asks for what lies so far behind the beginning of some weights; beyond their end it does nothing.
#[inline(always)]
fn ask_ahead<T>(weights: *const T, reach: usize) {
    ask(weights.cast::<u8>().wrapping_add(reach));
}

/// Asks for the line of memory at an address, whatever it is.
#[inline(always)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the instruction for it is an intrinsic")
)]
fn ask(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address does nothing that can be seen, and every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    let _ = at;
}

/// Something to do that is compiled once for each tier.
///
/// `run` and all it calls are `#[inline(always)]`: only so does it get the tier's instructions.
pub(crate) trait Work {
    fn run<S: Simd>(self, simd: S);
}

/// The one place where code is compiled for what a machine may not have.
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
            // SAFETY: the machine has the instructions.
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
