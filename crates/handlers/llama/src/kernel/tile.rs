//! Products of a matrix's tiles with rows of activations.
//!
//! One nest for all formats: tile, rows of activations four at a time, segment, column. How many rows
//! go together changes what is loaded again, and nothing else.

use std::ops::Range;

use super::math::tree_of_rows;
use super::q8::{TILE_BLOCK, dots};
use super::row::BLOCK;
use super::{LANES, Lanes, Tier, Work};
use crate::matrix::{Data, Matrix, SEGMENTS};

/// Rows of activations, as a matrix's format wants them.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// Rows that begin `stride` numbers apart.
    Float { x: &'a [f32], stride: usize },
    /// `[rows, columns]`, and a scale for each 32 of them.
    Quantised { values: &'a [i8], scales: &'a [f32] },
}

/// What becomes of a product: 16 numbers of one row of activations.
pub(crate) trait Store {
    /// It is inlined always: see [`Work`].
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes);
}

/// Multiplies some tiles with all rows.
pub(crate) struct Multiply<'a, S> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) tiles: Range<usize>,
    pub(crate) input: Input<'a>,
    pub(crate) rows: usize,
    pub(crate) store: S,
}

impl<S: Store> Work for Multiply<'_, S> {
    #[inline(always)]
    fn run(mut self, tier: Tier) {
        for tile in self.tiles.clone() {
            let mut row = 0;
            while row < self.rows {
                row += match self.rows - row {
                    1 => self.some::<1>(tier, tile, row),
                    2 => self.some::<2>(tier, tile, row),
                    3 => self.some::<3>(tier, tile, row),
                    _ => self.some::<4>(tier, tile, row),
                };
            }
        }
    }
}

impl<S: Store> Multiply<'_, S> {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "segments and rows count in several places")]
    fn some<const M: usize>(&mut self, tier: Tier, tile: usize, row: usize) -> usize {
        let matrix = self.matrix;
        let columns = matrix.columns;
        let length = columns / matrix.segments;
        let mut sums = [[[0.0; LANES]; SEGMENTS]; M];
        for segment in 0..matrix.segments {
            let at = segment * length;
            let part = match (&matrix.data, self.input) {
                (Data::F32(data), Input::Float { x, stride }) => {
                    let weights = &data[(tile * columns + at) * LANES..][..length * LANES];
                    let x = std::array::from_fn(|m| &x[(row + m) * stride + at..][..length]);
                    float::<M>(weights, x)
                }
                (Data::Bf16(data), Input::Float { x, stride }) => {
                    let weights = &data[(tile * columns + at) / 2 * LANES..][..length / 2 * LANES];
                    let x = std::array::from_fn(|m| &x[(row + m) * stride + at..][..length]);
                    brain::<M>(weights, x)
                }
                (Data::Q8 { scales, values }, Input::Quantised { values: x, scales: xs }) => {
                    let (first, blocks) = ((tile * columns + at) / BLOCK, length / BLOCK);
                    let weights = Blocks {
                        values: &values[first * TILE_BLOCK..][..blocks * TILE_BLOCK],
                        scales: &scales[first * LANES..][..blocks * LANES],
                    };
                    let start = |m: usize| (row + m) * columns + at;
                    let x = std::array::from_fn(|m| &x[start(m)..][..length]);
                    let xs = std::array::from_fn(|m| &xs[start(m) / BLOCK..][..blocks]);
                    quantised::<M>(tier, weights, x, xs)
                }
                _ => unreachable!("the input is of the matrix's format"),
            };
            for m in 0..M {
                sums[m][segment] = part[m];
            }
        }
        let bias = matrix.bias(tile);
        for (m, sums) in sums.iter_mut().enumerate() {
            let mut lanes = tree_of_rows(&mut sums[..matrix.segments]);
            if let Some(bias) = bias {
                for lane in 0..LANES {
                    lanes[lane] += bias[lane];
                }
            }
            self.store.store(row + m, tile, &lanes);
        }
        M
    }
}

#[inline(always)]
fn float<const M: usize>(weights: &[f32], x: [&[f32]; M]) -> [Lanes; M] {
    let mut sums = [[0.0; LANES]; M];
    for (k, weights) in weights.as_chunks::<LANES>().0.iter().enumerate() {
        for m in 0..M {
            add(&mut sums[m], weights, x[m][k]);
        }
    }
    sums
}

#[inline(always)]
fn brain<const M: usize>(weights: &[u32], x: [&[f32]; M]) -> [Lanes; M] {
    let mut sums = [[0.0; LANES]; M];
    for (pair, weights) in weights.as_chunks::<LANES>().0.iter().enumerate() {
        let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            first[lane] = f32::from_bits(weights[lane] << 16);
            second[lane] = f32::from_bits(weights[lane] & 0xffff_0000);
        }
        for m in 0..M {
            add(&mut sums[m], &first, x[m][2 * pair]);
            add(&mut sums[m], &second, x[m][2 * pair + 1]);
        }
    }
    sums
}

#[inline(always)]
fn add(sums: &mut Lanes, weights: &Lanes, x: f32) {
    for lane in 0..LANES {
        sums[lane] = weights[lane].mul_add(x, sums[lane]);
    }
}

/// A segment of a tile in Q8_0.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    values: &'a [i8],
    scales: &'a [u16],
}

#[inline(always)]
fn quantised<const M: usize>(
    tier: Tier,
    weights: Blocks<'_>,
    x: [&[i8]; M],
    scales: [&[f32]; M],
) -> [Lanes; M] {
    let mut sums = [[0.0; LANES]; M];
    let blocks = weights.values.as_chunks::<TILE_BLOCK>().0;
    let of_rows = weights.scales.as_chunks::<LANES>().0;
    let x = x.map(|x| x.as_chunks::<BLOCK>().0);
    for (block, (values, of_rows)) in blocks.iter().zip(of_rows).enumerate() {
        let products = dots::<M>(tier, values, std::array::from_fn(|m| &x[m][block]));
        // A loop, since a closure need not be compiled for the tier.
        let mut scales_of_rows = [0.0; LANES];
        for lane in 0..LANES {
            scales_of_rows[lane] = widen(of_rows[lane]);
        }
        for m in 0..M {
            let scale = scales[m][block];
            for lane in 0..LANES {
                let both = scales_of_rows[lane] * scale;
                sums[m][lane] = (products[m][lane] as f32).mul_add(both, sums[m][lane]);
            }
        }
    }
    sums
}

/// An f16 that is finite, exactly: its exponent is shifted into place, and corrected by a product,
/// which is right for subnormal ones too.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * TWO_TO_112;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::widen;

    #[test]
    fn every_finite_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let right = half::f16::from_bits(bits);
            if right.is_finite() {
                assert_eq!(widen(bits).to_bits(), right.to_f32().to_bits(), "{bits:x}");
            }
        }
    }
}
