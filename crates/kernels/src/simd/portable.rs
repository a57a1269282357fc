//! [`Simd`] of the baseline tier: plain loops over the lanes, which define the results.

use super::{LANES, Lanes, Simd, Tier};

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

    #[inline(always)]
    fn powers(self, x: &[u8; LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = power(x[lane]);
        }
        lanes
    }
}

/// Adds the products of two pairs of bf16 numbers to a sum: of the upper halves, then of the lower
/// ones. Each addition rounds once. Numbers below the least normal one are zeros, of their sign.
#[inline(always)]
pub(super) fn pair_product(pair: u32, x: u32, sum: f32) -> f32 {
    let fused = |a: u32, b: u32, sum: f32| {
        let [a, b] = [a, b].map(|bits| normal(f32::from_bits(bits)));
        normal(a.mul_add(b, sum))
    };
    let upper = fused(pair & 0xffff_0000, x & 0xffff_0000, normal(sum));
    fused(pair << 16, x << 16, upper)
}

/// Adds the products of up to sixteen pairs of bf16 numbers with pairs of others to a sum, in the
/// order of [`Bf16Order::Blocks`](super::Bf16Order::Blocks).
pub(crate) fn add_pair_block<P>(sum: f32, pairs: &P) -> f32
where
    P: Iterator<Item = (u32, u32)> + Clone,
{
    let of = |half: fn(u32) -> u32| {
        pairs.clone().fold(0.0f32, |sum, (a, b)| {
            let [a, b] = [a, b].map(|pair| normal(f32::from_bits(half(pair))));
            normal(a.mul_add(b, sum))
        })
    };
    let [first, second] = [of(|pair| pair << 16), of(|pair| pair & 0xffff_0000)];
    normal(normal(first + second) + normal(sum))
}

/// Returns a number, or the zero of its sign if it is below the least normal number.
#[inline(always)]
fn normal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Widens a finite f16 exactly. The exponent is shifted into place and corrected by a
/// multiplication, which is right for subnormal numbers too.
#[inline(always)]
fn widened(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * TWO_TO_112;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// Bits of 2 to the power -127, which is not a normal number.
pub(super) const LEAST_POWER: u32 = 0x0040_0000;

/// Returns 2 to the power `x - 128`. An exponent of zero in the bits would mean 0, so the least
/// power is made otherwise.
#[inline(always)]
pub(crate) fn power(x: u8) -> f32 {
    f32::from_bits((u32::from(x) << 23).max(LEAST_POWER)) * 0.5
}
