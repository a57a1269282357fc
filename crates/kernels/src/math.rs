//! Scalar math functions and sums with a fixed order of operations.
//!
//! The platform's `expf` gives other bits on other machines. These functions use only
//! multiplications and additions in a fixed order.

use crate::simd::LANES;

/// Below this, `exp` returns 0: the result would not be a normal number.
const LOWEST: f32 = -87.336_54;
/// Above this, `exp` would overflow to infinity.
const HIGHEST: f32 = 88.722_83;

/// Returns e to the power `x`, within 2 ulp: 0 below -87.3, NaN for NaN.
///
/// The argument is reduced by multiples of ln 2 in two parts (Cody and Waite). The remainder goes
/// into the polynomial of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // These comparisons are false for NaN, so a NaN passes through.
    let low = x < LOWEST;
    let x = if low { LOWEST } else { x };
    let x = if x > HIGHEST { HIGHEST } else { x };
    // Adding and subtracting 1.5 * 2^23 rounds to an integer, ties to even.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let y = p.mul_add(r * r, r) + 1.0;
    // The integer is in the low bits of `rounded`. A float-to-int conversion would not vectorize
    // because of its rule for NaN, which does not matter here. The scaling is done in two steps:
    // 2^128 is not a finite f32, but 2^64 * 2^64 times a y below 1 may be.
    let n = rounded.to_bits().cast_signed() - ROUND.to_bits().cast_signed();
    let half = (n + (n >> 31 & 1)) >> 1;
    let rest = n - half;
    let power = |n: i32| f32::from_bits((n + 127).cast_unsigned() << 23);
    let y = y * power(half) * power(rest);
    if low { 0.0 } else { y }
}

/// Returns `x` times its logistic function (SiLU).
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Sums the lanes by a pairwise tree: neighbors first, then neighboring pairs, and so on.
#[inline(always)]
pub(crate) fn tree<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut n = N;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
        }
    }
    lanes[0]
}

/// Returns the sum of squares: 16 partial sums of every sixteenth number, then a tree.
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for part in whole {
        for lane in 0..LANES {
            sums[lane] = part[lane].mul_add(part[lane], sums[lane]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum = x.mul_add(*x, *sum);
    }
    tree(sums)
}

#[cfg(test)]
mod tests {
    use super::{exp, silu, sum_of_squares, tree};

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -174_000..177_000 {
            let x = i as f32 / 2000.0;
            let right = f64::from(x).exp();
            let ulp = f64::from((right as f32).next_up()) - f64::from(right as f32);
            worst = worst.max((f64::from(exp(x)) - right).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst}");
    }

    #[test]
    fn exp_at_its_ends() {
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!((exp(f32::NEG_INFINITY), exp(-1000.0)), (0.0, 0.0));
        assert!(exp(88.7) < f32::INFINITY && exp(88.7) > 3e38);
        assert!(exp(f32::NAN).is_nan() && silu(f32::NAN).is_nan());
        assert!(silu(-200.0).abs() < 1e-30);
    }

    #[test]
    fn sums_take_their_order() {
        // 1e8 absorbs a 1 that is added alone, but not an 8 that was summed first.
        assert_eq!(tree([4.0f32, 4.0, 1e8, -1e8]), 8.0);
        assert_eq!(tree([1e8f32, 1.0, 1.0, -1e8]), 0.0);
        assert_eq!(sum_of_squares(&[1.0; 35]), 35.0);
    }
}
