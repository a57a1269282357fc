//! The bits of a token do not depend on its tile, its threads or its neighbors.

use std::ops::Range;
use std::panic::catch_unwind;

use super::{Attention, PAGE, Pages, Token};
use crate::element::Element;
use crate::math::{exp, tree};
use crate::simd::Tier;
use crate::thread_pool::ThreadPool;

/// Sequence in a cache: its block table, and the positions of its tokens in a step.
struct Sequence {
    table: Vec<u32>,
    positions: Range<usize>,
}

struct Case {
    heads: usize,
    group: usize,
    dim: usize,
    window: Option<usize>,
    sequences: Vec<Sequence>,
}

/// Returns numbers between -2 and 2, the same for each seed.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

impl Case {
    fn width(&self) -> usize {
        self.heads * self.group * self.dim
    }

    fn stride(&self) -> usize {
        // Keys and values follow the queries of a row.
        self.width() + 5
    }

    fn tokens(&self) -> Vec<Token<'_>> {
        let all = self.sequences.iter().flat_map(|Sequence { table, positions }| {
            positions.clone().map(move |position| Token { row: 0, position, table })
        });
        // Rows in another order than the tokens.
        let mut all: Vec<_> = all.collect();
        let count = all.len();
        all.iter_mut().enumerate().for_each(|(at, token)| token.row = (at * 7 + 2) % count);
        assert!(count % 7 > 0);
        all
    }

    fn cache<E: Element>(&self, seed: u32) -> Vec<E> {
        let blocks = self.sequences.iter().flat_map(|sequence| &sequence.table).max().unwrap() + 1;
        let count = blocks as usize * self.heads * self.dim * PAGE;
        numbers(seed, count).into_iter().map(E::store).collect()
    }

    fn attend<E: Element>(&self, tokens: &[Token<'_>], threads: usize, tier: Tier) -> Vec<u32> {
        let caches = [self.cache::<E>(1), self.cache::<E>(2)];
        self.attend_to(&caches, tokens, threads, tier).iter().map(|x| x.to_bits()).collect()
    }

    /// Returns the result of the tokens with these keys and values.
    fn attend_to<E: Element>(
        &self,
        [keys, values]: &[Vec<E>; 2],
        tokens: &[Token<'_>],
        threads: usize,
        tier: Tier,
    ) -> Vec<f32> {
        let queries = numbers(3, self.tokens().len() * self.stride());
        let block = self.heads * self.dim * PAGE;
        let attention = Attention {
            queries: &queries,
            stride: self.stride(),
            heads: self.heads,
            group: self.group,
            dim: self.dim,
            scale: 0.3,
            window: self.window,
            tokens,
            keys: Pages { data: &keys[..], stride: block },
            values: Pages { data: &values[..], stride: block },
        };
        let mut out = vec![f32::NAN; self.tokens().len() * self.width()];
        attention.run((&mut ThreadPool::new(threads), tier), &mut vec![f32::NAN; 3], &mut out);
        out
    }

    /// Computes the result of one token number by number, in the order that defines it.
    fn defined<E: Element>(&self, token: &Token<'_>) -> Vec<u32> {
        let Self { heads, group, dim, window, .. } = *self;
        let (keys, values) = (self.cache::<E>(1), self.cache::<E>(2));
        let queries = numbers(3, self.tokens().len() * self.stride());
        let first = window.map_or(0, |window| (token.position + 1).saturating_sub(window));
        let mut all = Vec::new();
        for head in 0..heads * group {
            let block = |position: usize| {
                let block = token.table[position / PAGE] as usize * heads + head / group;
                block * dim * PAGE
            };
            let query = &queries[token.row * self.stride() + head * dim..][..dim];
            let score = |position: usize| {
                let products = (0..dim).fold(0.0f32, |sum, k| {
                    let key = keys[block(position) + k * PAGE + position % PAGE].load();
                    key.mul_add(query[k], sum)
                });
                products * 0.3
            };
            let (mut out, mut top, mut total) = (vec![0.0f32; dim], f32::NEG_INFINITY, 0.0f32);
            for split in first / 256..=token.position / 256 {
                let seen = first.max(split * 256)..token.position.min(split * 256 + 255) + 1;
                let scores: Vec<f32> = seen.clone().map(score).collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut sums = [0.0f32; PAGE];
                let mut mixed = vec![0.0f32; dim];
                for (position, score) in seen.zip(scores) {
                    let share = exp(score - largest);
                    sums[position % PAGE] += share;
                    for (d, mixed) in mixed.iter_mut().enumerate() {
                        let value = values[block(position) + position % PAGE * dim + d].load();
                        *mixed = value.mul_add(share, *mixed);
                    }
                }
                if split == first / 256 {
                    (out, top, total) = (mixed, largest, tree(sums));
                    continue;
                }
                let new_top = top.max(largest);
                let (old, new) = (exp(top - new_top), exp(largest - new_top));
                total = total.mul_add(old, tree(sums) * new);
                top = new_top;
                for (out, mixed) in out.iter_mut().zip(mixed) {
                    *out = out.mul_add(old, mixed * new);
                }
            }
            all.extend(out.iter().map(|out| (out / total).to_bits()));
        }
        all
    }

    /// Checks all tokens together, some of them, and each alone, with each tier and number of
    /// threads.
    fn check<E: Element>(&self) {
        let tokens = self.tokens();
        let width = self.width();
        let mut right = vec![0; tokens.len() * width];
        for token in &tokens {
            let defined = self.defined::<E>(token);
            right[token.row * width..(token.row + 1) * width].copy_from_slice(&defined);
        }
        for tier in Tier::available() {
            for threads in [1, 2, 3, 16] {
                assert!(self.attend::<E>(&tokens, threads, tier) == right, "{tier:?} {threads}");
            }
            let mut reversed = tokens.clone();
            reversed.reverse();
            assert!(self.attend::<E>(&reversed, 2, tier) == right, "{tier:?} reversed");
            for token in tokens.iter().step_by(5) {
                let out = self.attend::<E>(std::slice::from_ref(token), 2, tier);
                let row = token.row * width..(token.row + 1) * width;
                assert!(out[row.clone()] == right[row], "{tier:?} {} alone", token.position);
            }
        }
    }
}

/// Returns a block table without a repeated block. Its first `prefix` blocks are the same for each
/// seed, the others are not.
fn table(positions: usize, prefix: usize, seed: u32) -> Vec<u32> {
    let blocks = positions.div_ceil(PAGE);
    let own = |at: usize| if at < prefix { 5 * at as u32 } else { 5 * at as u32 + seed };
    (0..blocks).map(own).collect()
}

#[test]
fn tokens_of_a_prompt_have_the_bits_of_each_alone() {
    for (group, dim, window) in
        [(3, 64, None), (1, 20, Some(40)), (7, 32, Some(300)), (8, 16, None)]
    {
        let sequences = vec![Sequence { table: table(640, 0, 1), positions: 570..625 }];
        let case = Case { heads: 2, group, dim, window, sequences };
        case.check::<f32>();
        case.check::<u16>();
    }
}

#[test]
fn the_first_tokens_of_a_prompt_have_the_bits_of_each_alone() {
    for (group, window) in [(1, None), (2, Some(1)), (5, Some(3)), (4, None)] {
        let sequences = vec![Sequence { table: table(320, 0, 1), positions: 0..290 }];
        Case { heads: 1, group, dim: 16, window, sequences }.check::<f32>();
    }
}

#[test]
fn sequences_with_a_common_prefix_have_the_bits_of_each_alone() {
    let of = |prefix, seed, positions: Range<usize>| Sequence {
        table: table(positions.end, prefix, seed),
        positions,
    };
    // Prefixes of no block, within a split, of whole splits, and of all blocks.
    for (group, prefix) in [(3, 0), (1, 5), (4, 8), (3, 17), (2, 40)] {
        let sequences = vec![
            of(prefix, 1, 600..601),
            of(prefix, 2, 513..520),
            of(prefix, 3, 30..31),
            of(prefix, 4, 900..901),
        ];
        Case { heads: 2, group, dim: 32, window: None, sequences }.check::<f32>();
    }
}

#[test]
fn a_value_that_a_token_does_not_see_cannot_spoil_it() {
    let sequences = vec![Sequence { table: table(64, 0, 0), positions: 40..46 }];
    let case = Case { heads: 1, group: 1, dim: 16, window: None, sequences };
    let (keys, mut values) = (case.cache::<f32>(1), case.cache::<f32>(2));
    // Position 45 of the block table's second block.
    let at = 5 * case.dim * PAGE + 45 % PAGE * case.dim;
    values[at..at + case.dim].fill(f32::INFINITY);
    let tokens = case.tokens();
    let out = case.attend_to(&[keys, values], &tokens, 1, Tier::best());
    for token in &tokens {
        let out = &out[token.row * case.width()..][..case.width()];
        assert_eq!(out.iter().all(|x| x.is_finite()), token.position < 45, "{}", token.position);
    }
}

#[test]
fn two_tokens_of_one_row_are_refused() {
    let sequences = vec![Sequence { table: table(64, 0, 0), positions: 40..46 }];
    let case = Case { heads: 1, group: 1, dim: 16, window: None, sequences };
    let mut tokens = case.tokens();
    tokens.iter_mut().take(2).for_each(|token| token.row = 3);
    let panic = catch_unwind(|| case.attend::<f32>(&tokens, 2, Tier::best())).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "two tokens have row 3");
}
