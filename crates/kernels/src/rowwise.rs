//! Per-token row operations: RMSNorm, rotary embedding, activation functions, eight-bit
//! quantization.

use std::ops::AddAssign;

use crate::math::{silu, sum_of_squares};
use crate::simd::{Simd, Work};

/// Values per block that share a scale.
pub(crate) const BLOCK: usize = 32;

/// RMSNorm (Zhang and Sennrich, arXiv:1910.07467): `out = x / sqrt(mean(x²) + eps) * weight`.
///
/// ```
/// use nsbridge_kernels::Tier;
/// use nsbridge_kernels::rowwise::Norm;
///
/// let mut out = [0.0; 2];
/// let norm = Norm { x: &[3.0, -3.0], weight: &[1.0, 2.0], eps: 0.0, out: &mut out };
/// Tier::best().run(norm);
/// assert_eq!(out, [1.0, -2.0]);
/// ```
#[derive(Debug)]
pub struct Norm<'a> {
    /// The row.
    pub x: &'a [f32],
    /// Factor of each number.
    pub weight: &'a [f32],
    /// Number that is added to the mean of the squares.
    pub eps: f32,
    /// Result, as long as the row.
    pub out: &'a mut [f32],
}

impl Work for Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let mean = sum_of_squares(self.x) / self.x.len() as f32;
        let scale = 1.0 / (mean + self.eps).sqrt();
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * weight;
        }
    }
}

/// Rotary position embedding: rotates the pairs (i, i + half) of a head by the angles of its
/// position.
///
/// ```
/// use nsbridge_kernels::Tier;
/// use nsbridge_kernels::rowwise::Rotate;
///
/// let mut head = [1.0, 2.0, 0.0, 5.0];
/// // The first pair turns by 90 degrees, the second by 0.
/// Tier::best().run(Rotate { head: &mut head, cos: &[0.0, 1.0], sin: &[1.0, 0.0] });
/// assert_eq!(head, [0.0, 2.0, 1.0, 5.0]);
/// ```
#[derive(Debug)]
pub struct Rotate<'a> {
    /// Queries or keys of one head.
    pub head: &'a mut [f32],
    /// Cosine of each pair's angle.
    pub cos: &'a [f32],
    /// Sine of each pair's angle.
    pub sin: &'a [f32],
}

impl Work for Rotate<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (first, second) = self.head.split_at_mut(self.cos.len());
        let pairs = first.iter_mut().zip(second).zip(self.cos.iter().zip(self.sin));
        for ((a, b), (cos, sin)) in pairs {
            let (x, y) = (*a, *b);
            *a = x.mul_add(*cos, -(y * sin));
            *b = y.mul_add(*cos, x * sin);
        }
    }
}

/// SwiGLU (Shazeer, arXiv:2002.05202): `gate = silu(gate) * up`.
#[inline(always)]
pub(crate) fn swiglu(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = silu(*gate) * up;
    }
}

/// Quantizes a row to blocks of `N` eight-bit integers with one scale each: `x` is about `scale *
/// value`.
///
/// The scale is the largest magnitude of the block, divided by 127. A block with an infinity or a
/// NaN gets a NaN scale, so that the error stays visible in the results.
pub(crate) struct InBlocks<'a, T, const N: usize, const SUMMED: usize> {
    pub(crate) x: &'a [f32],
    pub(crate) values: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    /// Sum of each `SUMMED` consecutive values.
    pub(crate) sums: &'a mut [T],
}

impl<T: Sum, const N: usize, const SUMMED: usize> Work for InBlocks<'_, T, N, SUMMED> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let blocks = self.x.as_chunks::<N>().0;
        let values = self.values.as_chunks_mut::<N>().0;
        for ((x, values), scale) in blocks.iter().zip(values).zip(self.scales) {
            *scale = quantize(x, values);
        }
        for (values, sum) in self.values.as_chunks::<SUMMED>().0.iter().zip(self.sums) {
            let mut total = T::default();
            for value in values {
                total += T::from(*value);
            }
            *sum = total;
        }
    }
}

/// Integer type in which quantized values are summed.
pub(crate) trait Sum: Copy + Default + Send + From<i8> + AddAssign {}

impl Sum for i16 {}
impl Sum for i32 {}

/// Quantizes one block and returns its scale.
#[inline(always)]
pub(crate) fn quantize<const N: usize>(x: &[f32; N], values: &mut [i8; N]) -> f32 {
    // Compared as bits, the larger magnitude is the larger integer. Infinities and NaNs compare
    // largest.
    let mut most = 0u32;
    for x in x {
        most = most.max(x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(most);
    if most >= f32::INFINITY.to_bits() {
        *values = [0; N];
        return f32::NAN;
    }
    // Below this the inverse would be infinite, so the block becomes zeros.
    let nothing = largest < 1e-36;
    let inverse = if nothing { 0.0 } else { 127.0 / largest };
    // Each loop has numbers of one width, so that it is vectorized.
    let mut rounded = [0; N];
    for (rounded, x) in rounded.iter_mut().zip(x) {
        // Adding this constant rounds to an integer, ties to even; see `math::exp`.
        const ROUND: f32 = 12_582_912.0;
        *rounded = x.mul_add(inverse, ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
    }
    for (value, rounded) in values.iter_mut().zip(rounded) {
        *value = rounded as i8;
    }
    if nothing { 0.0 } else { largest / 127.0 }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, quantize};

    #[test]
    fn a_block_is_within_half_a_step_and_reaches_127() {
        let x: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 - 20.0) * 0.37);
        let mut values = [0; BLOCK];
        let scale = quantize(&x, &mut values);
        for (x, value) in x.iter().zip(values) {
            assert!((x - scale * f32::from(value)).abs() <= scale * 0.5001);
        }
        assert_eq!(values[0], -127);
    }

    #[test]
    fn tiny_huge_and_broken_blocks_are_not_lost() {
        let of = |x: f32| {
            let mut values = [0; BLOCK];
            let mut block = [0.0; BLOCK];
            block[3] = x;
            (quantize(&block, &mut values), values[3])
        };
        assert_eq!(of(0.0), (0.0, 0));
        assert_eq!(of(f32::MAX), (f32::MAX / 127.0, 127));
        assert_eq!(of(-2e-36), (2e-36 / 127.0, -127));
        assert_eq!(of(1e-40), (0.0, 0));
        assert!(of(f32::NAN).0.is_nan() && of(f32::NEG_INFINITY).0.is_nan());
    }
}
