//! Numbers of 16 bits, widened.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the instruction for it is an intrinsic")
)]

use super::{LANES, Lanes, Tier};

/// 16 numbers that are finite, exactly.
#[inline(always)]
pub(super) fn widen_halves(tier: Tier, halves: &[u16; LANES]) -> Lanes {
    match tier {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: whoever runs in a tier has checked that the machine has it.
        Tier::Avx2 | Tier::Avx512 => unsafe { x86::widen_halves(halves) },
        _ => {
            let mut lanes = [0.0; LANES];
            for lane in 0..LANES {
                lanes[lane] = widened(halves[lane]);
            }
            lanes
        }
    }
}

/// An f16 that is finite, exactly: its exponent is shifted into place, and corrected by a product,
/// which is right for subnormal ones too.
#[inline(always)]
fn widened(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * TWO_TO_112;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

    use super::{LANES, Lanes};

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn widen_halves(halves: &[u16; LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        // SAFETY: two times eight numbers, each of 16 bits and then of 32.
        unsafe {
            let at = halves.as_ptr().cast::<__m128i>();
            let [low, high] = [_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))];
            _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_cvtph_ps(low));
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), _mm256_cvtph_ps(high));
        }
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LANES, Tier, Work};
    use super::widen_halves;

    struct Widen<'a>(&'a [u16; LANES], &'a mut [f32; LANES]);

    impl Work for Widen<'_> {
        #[inline(always)]
        fn run(self, tier: Tier) {
            *self.1 = widen_halves(tier, self.0);
        }
    }

    #[test]
    fn every_finite_f16_is_widened_exactly_in_every_tier() {
        let finite = (0..=u16::MAX).filter(|bits| half::f16::from_bits(*bits).is_finite());
        let finite: Vec<u16> = finite.collect();
        for tier in Tier::available() {
            for bits in finite.as_chunks::<LANES>().0 {
                let mut lanes = [0.0; LANES];
                tier.run(Widen(bits, &mut lanes));
                for (bits, lane) in bits.iter().zip(lanes) {
                    let right = half::f16::from_bits(*bits).to_f32();
                    assert_eq!(lane.to_bits(), right.to_bits(), "{tier:?} {bits:x}");
                }
            }
        }
    }
}
