//! Softmax of a split, and the merge of splits.

use super::place::Place;
use super::{Attention, PAGE};
use crate::disjoint_slice::DisjointSlice;
use crate::element::Element;
use crate::math::{exp, tree};
use crate::simd::{Simd, Work};

/// Largest score so far, and the sum of the softmax weights relative to it.
pub(super) type Softmax = (f32, f32);

/// Softmax of no position.
pub(super) const NOTHING: Softmax = (f32::NEG_INFINITY, 0.0);

/// Returns the largest score.
#[inline(always)]
pub(super) fn largest(scores: &[[f32; PAGE]]) -> f32 {
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
pub(super) fn to_shares(scores: &mut [[f32; PAGE]], largest: f32) -> f32 {
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

/// Merges the softmax of a split into that of the splits before it.
#[inline(always)]
pub(super) fn merge((before, total): Softmax, (largest, sum): Softmax) -> (Softmax, (f32, f32)) {
    let top = if largest > before { largest } else { before };
    let (old, new) = (exp(before - top), exp(largest - top));
    ((top, total.mul_add(old, sum * new)), (old, new))
}

/// Merge of the splits of a token's queries of one key-value head.
#[derive(Debug)]
pub(super) struct Merge<'a, E> {
    pub(super) attention: &'a Attention<'a, E>,
    /// Index of the token.
    pub(super) token: usize,
    pub(super) head: usize,
    /// Place of the partial results.
    pub(super) place: Place,
    pub(super) partials: &'a [f32],
    pub(super) out: &'a DisjointSlice<'a, f32>,
}

impl<E: Element> Work for Merge<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Attention { group, dim, tokens, window, .. } = *self.attention;
        let splits = tokens[self.token].splits(window);
        for head in self.head * group..(self.head + 1) * group {
            let of = (self.token, head);
            // SAFETY: no two tokens have one row, so each result belongs to a single merge.
            let out = unsafe { self.out.part(Place::Rows.start(self.attention, of, 0), dim) };
            let mut all = NOTHING;
            for split in splits.clone() {
                let start = self.place.start(self.attention, of, split);
                let (sums, softmax) = self.partials[start..][..dim + 2].split_at(dim);
                let own = (softmax[0], softmax[1]);
                if split == splits.start {
                    out.copy_from_slice(sums);
                    all = own;
                    continue;
                }
                let (merged, (old, new)) = merge(all, own);
                all = merged;
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = out.mul_add(old, sum * new);
                }
            }
            out.iter_mut().for_each(|out| *out /= all.1);
        }
    }
}
