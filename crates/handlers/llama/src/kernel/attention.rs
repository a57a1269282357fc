//! Attention of one token's heads over a paged cache.
//!
//! Positions are looked at in splits of 256 that begin at multiples of 256, whatever the token, and
//! the splits' results are merged in ascending order (the online softmax of Milakov and Gimelshein,
//! arXiv:1805.02867). What a token sees is what was written to the cache, so neither the chunk that
//! it came in nor its neighbours matter.

use super::math::{exp, tree};
use super::{Tier, Work};
use crate::kv::Element;

/// Positions of a block of the cache.
pub(crate) const PAGE: usize = 32;

/// Positions whose scores are taken together.
pub(crate) const SPLIT: usize = 256;

const PAGES: usize = SPLIT / PAGE;

/// One token's query heads that share keys and values.
pub(crate) struct Attend<'a, E> {
    /// `[heads, dim]`.
    pub(crate) queries: &'a [f32],
    pub(crate) dim: usize,
    /// What scores are multiplied with.
    pub(crate) scale: f32,
    /// The first position that is seen, and the token's own.
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// All blocks of this layer and key head: keys `[dim, 32]` each, values `[32, dim]`.
    pub(crate) keys: Pages<'a, E>,
    pub(crate) values: Pages<'a, E>,
    /// Room for `dim` numbers.
    pub(crate) mixed: &'a mut [f32],
    /// `[heads, dim]`.
    pub(crate) out: &'a mut [f32],
}

/// Blocks by their place in a sequence.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a, E> {
    pub(crate) data: &'a [E],
    /// From one block of the pool to the next.
    pub(crate) stride: usize,
    /// Numbers of a block.
    pub(crate) size: usize,
    pub(crate) table: &'a [u32],
}

impl<'a, E> Pages<'a, E> {
    #[inline(always)]
    fn at(&self, block: usize) -> &'a [E] {
        &self.data[self.table[block] as usize * self.stride..][..self.size]
    }
}

impl<E: Element> Work for Attend<'_, E> {
    #[inline(always)]
    fn run(mut self, _: Tier) {
        for head in 0..self.queries.len() / self.dim {
            self.head(head);
        }
    }
}

impl<E: Element> Attend<'_, E> {
    #[inline(always)]
    fn head(&mut self, head: usize) {
        let range = head * self.dim..(head + 1) * self.dim;
        let query = &self.queries[range.clone()];
        let out = &mut self.out[range];
        let mut all: Option<(f32, f32)> = None;
        for split in self.first / SPLIT..=self.last / SPLIT {
            let first = self.first.max(split * SPLIT);
            let last = self.last.min(split * SPLIT + SPLIT - 1);
            let mut shares = [[f32::NEG_INFINITY; PAGE]; PAGES];
            let blocks = first / PAGE..last / PAGE + 1;
            for block in blocks.clone() {
                let scores = score(query, self.keys.at(block), self.scale);
                let shares = &mut shares[block % PAGES];
                if block * PAGE >= first && block * PAGE + PAGE - 1 <= last {
                    *shares = scores;
                    continue;
                }
                for (lane, score) in scores.into_iter().enumerate() {
                    if (first..=last).contains(&(block * PAGE + lane)) {
                        shares[lane] = score;
                    }
                }
            }
            // The others are not seen: their shares would be zeros.
            let filled = blocks.start % PAGES..(blocks.end - 1) % PAGES + 1;
            let largest = largest(&shares[filled.clone()]);
            let sum = to_shares(&mut shares[filled], largest);
            let mixed = &mut *self.mixed;
            mixed.fill(0.0);
            for block in blocks {
                let (shares, values) = (&shares[block % PAGES], self.values.at(block));
                let seen = first.max(block * PAGE)..last.min(block * PAGE + PAGE - 1) + 1;
                mix(mixed, &shares[seen.start % PAGE..][..seen.len()], {
                    &values[seen.start % PAGE * self.dim..][..seen.len() * self.dim]
                });
            }
            all = Some(match all {
                None => {
                    out.copy_from_slice(mixed);
                    (largest, sum)
                }
                Some((before, total)) => {
                    let top = if largest > before { largest } else { before };
                    let (old, new) = (exp(before - top), exp(largest - top));
                    for (out, mixed) in out.iter_mut().zip(mixed) {
                        *out = out.mul_add(old, *mixed * new);
                    }
                    (top, total.mul_add(old, sum * new))
                }
            });
        }
        if let Some((_, total)) = all {
            for out in out {
                *out /= total;
            }
        }
    }
}

/// The products of a query with a block's 32 keys.
#[inline(always)]
fn score<E: Element>(query: &[f32], keys: &[E], scale: f32) -> [f32; PAGE] {
    let mut scores = [0.0; PAGE];
    for (query, keys) in query.iter().zip(keys.as_chunks::<PAGE>().0) {
        for lane in 0..PAGE {
            scores[lane] = keys[lane].load().mul_add(*query, scores[lane]);
        }
    }
    for score in &mut scores {
        *score *= scale;
    }
    scores
}

#[inline(always)]
fn largest(scores: &[[f32; PAGE]]) -> f32 {
    let mut most = [f32::NEG_INFINITY; PAGE];
    for scores in scores {
        for lane in 0..PAGE {
            // A NaN is passed over here, and comes out of `exp`.
            most[lane] = if scores[lane] > most[lane] { scores[lane] } else { most[lane] };
        }
    }
    most.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Each score's weight, and their sum: 32 sums of every 32nd position, then a tree.
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

/// Adds each share of its position's values, in the order of positions.
#[inline(always)]
fn mix<E: Element>(mixed: &mut [f32], shares: &[f32], values: &[E]) {
    let dim = mixed.len();
    let mut at = 0;
    while at < dim {
        at += match dim - at {
            32.. => mix_some::<E, 32>(mixed, at, shares, values),
            8.. => mix_some::<E, 8>(mixed, at, shares, values),
            _ => mix_some::<E, 1>(mixed, at, shares, values),
        };
    }
}

#[inline(always)]
fn mix_some<E: Element, const N: usize>(
    mixed: &mut [f32],
    at: usize,
    shares: &[f32],
    values: &[E],
) -> usize {
    let dim = mixed.len();
    let Some(into) = mixed[at..].first_chunk_mut::<N>() else { return N };
    let mut sums = *into;
    for (position, share) in shares.iter().enumerate() {
        let Some(values) = values[position * dim + at..].first_chunk::<N>() else { return N };
        for lane in 0..N {
            sums[lane] = values[lane].load().mul_add(*share, sums[lane]);
        }
    }
    *into = sums;
    N
}
