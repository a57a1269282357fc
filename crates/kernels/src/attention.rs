//! Attention of one token's heads over the paged KV cache.
//!
//! Positions are processed in splits of 256 that begin at multiples of 256 for every token. The
//! results of the splits are merged in ascending order (the online softmax of Milakov and
//! Gimelshein, arXiv:1805.02867). A token reads all keys and values from the cache, so neither its
//! prefill chunk nor its neighbors in the batch affect the result.

use std::ops::Range;

use crate::element::Element;
use crate::math::{exp, tree};
use crate::simd::{LANES, Simd, Work};

/// Positions in a block of the KV cache.
pub const PAGE: usize = 32;

/// Positions whose scores are computed together.
const SPLIT: usize = 256;

const PAGES: usize = SPLIT / PAGE;

/// Attention of one token for a group of query heads that share keys and values (GQA).
///
/// ```
/// use nsbridge_kernels::Tier;
/// use nsbridge_kernels::attention::{Attend, PAGE, Pages};
///
/// // A head of one dimension. Position 0 has the value 4, position 1 the value 8, and the scores
/// // of both are equal.
/// let (keys, mut values) = ([0.0f32; PAGE], [0.0f32; PAGE]);
/// (values[0], values[1]) = (4.0, 8.0);
/// let table = [0];
/// let mut out = [0.0];
/// Tier::best().run(Attend {
///     queries: &[1.0],
///     dim: 1,
///     scale: 1.0,
///     first: 0,
///     last: 1,
///     keys: Pages { data: &keys[..], stride: PAGE, size: PAGE, table: &table },
///     values: Pages { data: &values[..], stride: PAGE, size: PAGE, table: &table },
///     out: &mut out,
/// });
/// assert_eq!(out, [6.0]);
/// ```
#[derive(Debug)]
pub struct Attend<'a, E> {
    /// Queries, `[heads, dim]`.
    pub queries: &'a [f32],
    /// Dimensions of a head.
    pub dim: usize,
    /// Factor applied to the scores.
    pub scale: f32,
    /// First visible position.
    pub first: usize,
    /// The token's own position, the last visible one.
    pub last: usize,
    /// Blocks of keys of this layer and key head, `[dim, 32]` each.
    pub keys: Pages<'a, E>,
    /// Blocks of values of this layer and key head, `[32, dim]` each.
    pub values: Pages<'a, E>,
    /// Result, `[heads, dim]`.
    pub out: &'a mut [f32],
}

/// Cache blocks of a sequence, found through its block table.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a, E> {
    /// Blocks of all sequences.
    pub data: &'a [E],
    /// Elements from one block of the pool to the next.
    pub stride: usize,
    /// Elements of a block.
    pub size: usize,
    /// Number of each of the sequence's blocks, in the order of the positions.
    pub table: &'a [u32],
}

impl<'a, E> Pages<'a, E> {
    #[inline(always)]
    fn at(&self, block: usize) -> &'a [E] {
        &self.data[self.table[block] as usize * self.stride..][..self.size]
    }
}

impl<E: Element> Work for Attend<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let heads = self.queries.len() / self.dim;
        let mut head = 0;
        while head < heads {
            // Two heads fill the registers and share each load of keys and values.
            head += if heads - head > 1 {
                self.heads::<2>(simd, head)
            } else {
                self.heads::<1>(simd, head)
            };
        }
    }
}

/// Scores of a split for `H` heads, replaced by the softmax weight of each position.
type Shares<const H: usize> = [[[f32; PAGE]; PAGES]; H];

/// Visible part of a split: its blocks, and its first and last position.
struct Split {
    blocks: Range<usize>,
    first: usize,
    last: usize,
}

impl Split {
    /// Returns the visible positions within a block.
    #[inline(always)]
    fn seen(&self, block: usize) -> Range<usize> {
        let start = self.first.max(block * PAGE) % PAGE;
        start..self.last.min(block * PAGE + PAGE - 1) % PAGE + 1
    }
}

impl<E: Element> Attend<'_, E> {
    #[inline(always)]
    fn heads<const H: usize>(&mut self, simd: impl Simd, head: usize) -> usize {
        let range = head * self.dim..(head + H) * self.dim;
        let mut queries: [&[f32]; H] = [&[]; H];
        for (query, numbers) in queries.iter_mut().zip(self.queries[range.clone()].chunks(self.dim))
        {
            *query = numbers;
        }
        // For each head, the largest score so far and the sum of the softmax weights.
        let mut all = [(f32::NEG_INFINITY, 0.0f32); H];
        for number in self.first / SPLIT..=self.last / SPLIT {
            let first = self.first.max(number * SPLIT);
            let last = self.last.min(number * SPLIT + SPLIT - 1);
            let split = Split { blocks: first / PAGE..last / PAGE + 1, first, last };
            let mut shares = [[[f32::NEG_INFINITY; PAGE]; PAGES]; H];
            self.score(simd, &queries, &split, &mut shares);
            // The other pages hold no visible positions: their weights would be zeros.
            let filled = split.blocks.start % PAGES..(split.blocks.end - 1) % PAGES + 1;
            let mut merge = [None; H];
            for h in 0..H {
                let shares = &mut shares[h][filled.clone()];
                let largest = largest(shares);
                let sum = to_shares(shares, largest);
                let (before, total) = all[h];
                if number == self.first / SPLIT {
                    all[h] = (largest, sum);
                    continue;
                }
                let top = if largest > before { largest } else { before };
                let (old, new) = (exp(before - top), exp(largest - top));
                all[h] = (top, total.mul_add(old, sum * new));
                merge[h] = Some((old, new));
            }
            self.mix(simd, &split, &shares, merge, range.start);
        }
        for (out, (_, total)) in self.out[range].chunks_mut(self.dim).zip(all) {
            for out in out {
                *out /= total;
            }
        }
        H
    }

    /// Computes the scaled products of the queries with the keys of a split.
    #[inline(always)]
    fn score<S: Simd, const H: usize>(
        &self,
        simd: S,
        queries: &[&[f32]; H],
        split: &Split,
        shares: &mut Shares<H>,
    ) {
        let scale = simd.splat(self.scale);
        for block in split.blocks.clone() {
            let keys = self.keys.at(block).as_chunks::<LANES>().0.as_chunks::<2>().0;
            let mut sums = [[simd.splat(0.0); 2]; H];
            for (k, keys) in keys.iter().enumerate() {
                let keys = [E::vector(simd, &keys[0]), E::vector(simd, &keys[1])];
                for h in 0..H {
                    let query = simd.splat(queries[h][k]);
                    sums[h][0] = simd.fused(keys[0], query, sums[h][0]);
                    sums[h][1] = simd.fused(keys[1], query, sums[h][1]);
                }
            }
            for h in 0..H {
                let scores = &mut shares[h][block % PAGES];
                let halves = scores.as_chunks_mut::<LANES>().0;
                simd.store(simd.multiply(sums[h][0], scale), &mut halves[0]);
                simd.store(simd.multiply(sums[h][1], scale), &mut halves[1]);
                let seen = split.seen(block);
                if seen.len() < PAGE {
                    scores[..seen.start].fill(f32::NEG_INFINITY);
                    scores[seen.end..].fill(f32::NEG_INFINITY);
                }
            }
        }
    }

    /// Adds up the values of a split, times the weights of their positions, in the order of the
    /// positions.
    #[inline(always)]
    fn mix<S: Simd, const H: usize>(
        &mut self,
        simd: S,
        split: &Split,
        shares: &Shares<H>,
        merge: [Option<(f32, f32)>; H],
        at: usize,
    ) {
        let mut column = 0;
        while column < self.dim {
            column += match self.dim - column {
                32.. => self.columns::<S, H, 2>(simd, split, shares, merge, (at, column)),
                16.. => self.columns::<S, H, 1>(simd, split, shares, merge, (at, column)),
                _ => self.column(split, shares, merge, (at, column)),
            };
        }
    }

    /// Accumulates `N` vectors of dimensions and returns how many dimensions they cover.
    #[inline(always)]
    fn columns<S: Simd, const H: usize, const N: usize>(
        &mut self,
        simd: S,
        split: &Split,
        shares: &Shares<H>,
        merge: [Option<(f32, f32)>; H],
        (at, column): (usize, usize),
    ) -> usize {
        let mut sums = [[simd.splat(0.0); N]; H];
        for block in split.blocks.clone() {
            let values = self.values.at(block);
            for position in split.seen(block) {
                let values = &values[position * self.dim + column..][..N * LANES];
                let values: &[[E; LANES]] = values.as_chunks().0;
                for n in 0..N {
                    let values = E::vector(simd, &values[n]);
                    for h in 0..H {
                        let share = simd.splat(shares[h][block % PAGES][position]);
                        sums[h][n] = simd.fused(values, share, sums[h][n]);
                    }
                }
            }
        }
        for h in 0..H {
            let out = &mut self.out[at + h * self.dim + column..][..N * LANES];
            for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums[h]) {
                let merged = match merge[h] {
                    None => sum,
                    Some((old, new)) => {
                        let new = simd.multiply(sum, simd.splat(new));
                        simd.fused(simd.load(out), simd.splat(old), new)
                    }
                };
                simd.store(merged, out);
            }
        }
        N * LANES
    }

    /// Accumulates a single dimension and returns 1.
    #[inline(always)]
    fn column<const H: usize>(
        &mut self,
        split: &Split,
        shares: &Shares<H>,
        merge: [Option<(f32, f32)>; H],
        (at, column): (usize, usize),
    ) -> usize {
        for h in 0..H {
            let mut sum = 0.0f32;
            for position in split.first..=split.last {
                let value = self.values.at(position / PAGE)[position % PAGE * self.dim + column];
                let share = shares[h][position / PAGE % PAGES][position % PAGE];
                sum = value.load().mul_add(share, sum);
            }
            let out = &mut self.out[at + h * self.dim + column];
            *out = match merge[h] {
                None => sum,
                Some((old, new)) => out.mul_add(old, sum * new),
            };
        }
        1
    }
}

#[inline(always)]
fn largest(scores: &[[f32; PAGE]]) -> f32 {
    let mut most = [f32::NEG_INFINITY; PAGE];
    for scores in scores {
        for lane in 0..PAGE {
            // A NaN is skipped here, and shows up in the result of `exp`.
            most[lane] = if scores[lane] > most[lane] { scores[lane] } else { most[lane] };
        }
    }
    most.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Replaces each score by its softmax weight and returns the sum of the weights: 32 sums of every
/// 32nd position, then a tree.
#[inline(always)]
fn to_shares(scores: &mut [[f32; PAGE]], largest: f32) -> f32 {
    let mut sums = [0.0; PAGE];
    for scores in scores {
        for lane in 0..PAGE {
            let masked = scores[lane] == f32::NEG_INFINITY;
            let share = exp(scores[lane] - largest);
            scores[lane] = if masked { 0.0 } else { share };
            sums[lane] += scores[lane];
        }
    }
    tree(sums)
}
