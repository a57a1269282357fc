//! Attention over the paged KV cache.
//!
//! Positions are processed in splits of 256 that begin at multiples of 256 for every token. The
//! results of the splits are merged in ascending order (the online softmax of Milakov and
//! Gimelshein, arXiv:1805.02867). A token reads all keys and values from the cache, so neither its
//! prefill chunk nor its neighbors in the batch affect the result.
//!
//! The cost of a split is reading its keys and values. Tokens of one prompt read the same pages, and
//! so do sequences with a common prefix. So a tile of tokens goes through a split together: the
//! first tokens bring its pages into a cache of the processor, and the others find them there. If
//! there are few tokens, their splits are tiles of their own (Flash-Decoding, Dao et al. 2023) and
//! are merged afterwards, by the same operations in the same order.

#![expect(unsafe_code, reason = "threads write to parts of a buffer that do not overlap")]

mod place;
mod softmax;
mod tile;

use std::ops::Range;

use self::place::Place;
use self::softmax::Merge;
use self::tile::Tile;
use crate::disjoint_slice::DisjointSlice;
use crate::element::Element;
use crate::simd::Tier;
use crate::thread_pool::ThreadPool;

/// Positions in a block of the KV cache.
pub const PAGE: usize = 32;

/// Positions whose scores are computed together.
const SPLIT: usize = 256;

const PAGES: usize = SPLIT / PAGE;

/// Queries in a tile: enough that reading a split takes little of the time, few enough that a chunk
/// of a prompt has tiles for all threads.
const TILE_QUERIES: usize = 96;

/// Tiles for each thread below which the splits of a token are tiles of their own.
const TILES_PER_THREAD: usize = 4;

/// Attention of one layer for tokens of several sequences, with query heads in groups that share
/// keys and values (GQA).
///
/// ```
/// use nsbridge_kernels::attention::{Attention, PAGE, Pages, Token};
/// use nsbridge_kernels::{ThreadPool, Tier};
///
/// // A head of one dimension. Position 0 has the value 4, position 1 the value 8, and the scores
/// // of both are equal.
/// let (keys, mut values) = ([0.0f32; PAGE], [0.0f32; PAGE]);
/// (values[0], values[1]) = (4.0, 8.0);
/// let attention = Attention {
///     queries: &[1.0],
///     stride: 1,
///     heads: 1,
///     group: 1,
///     dim: 1,
///     scale: 1.0,
///     window: None,
///     tokens: &[Token { row: 0, position: 1, table: &[0] }],
///     keys: Pages { data: &keys[..], stride: PAGE },
///     values: Pages { data: &values[..], stride: PAGE },
/// };
/// let mut out = [0.0];
/// attention.run((&mut ThreadPool::new(1), Tier::best()), &mut Vec::new(), &mut out);
/// assert_eq!(out, [6.0]);
/// ```
#[derive(Debug)]
pub struct Attention<'a, E> {
    /// Queries of each row: `[heads, group, dim]`.
    pub queries: &'a [f32],
    /// Distance from the queries of one row to those of the next.
    pub stride: usize,
    /// Number of key-value heads.
    pub heads: usize,
    /// Number of query heads for each key-value head.
    pub group: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Factor applied to the scores.
    pub scale: f32,
    /// Number of positions that a token sees, its own included; `None` for all.
    pub window: Option<usize>,
    /// Tokens to compute. Neighbors in this order read common pages together.
    pub tokens: &'a [Token<'a>],
    /// Keys of this layer: for each block `[heads, dim, 32]`.
    pub keys: Pages<'a, E>,
    /// Values of this layer: for each block `[heads, 32, dim]`.
    pub values: Pages<'a, E>,
}

/// Token that attends to the positions of its sequence up to its own.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// Row of the token in the queries and in the result. Each row has one token.
    pub row: usize,
    /// Position in the sequence.
    pub position: usize,
    /// Number of each of the sequence's blocks, in the order of the positions.
    pub table: &'a [u32],
}

/// Cache blocks of all sequences.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a, E> {
    /// The blocks.
    pub data: &'a [E],
    /// Elements from one block to the next.
    pub stride: usize,
}

impl<'a, E> Pages<'a, E> {
    /// Returns the elements of a head in a block, of which there are `size`.
    #[inline(always)]
    fn at(&self, block: u32, head: usize, size: usize) -> &'a [E] {
        &self.data[block as usize * self.stride + head * size..][..size]
    }
}

impl Token<'_> {
    /// Returns the first visible position.
    #[inline(always)]
    fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| (self.position + 1).saturating_sub(window))
    }

    /// Returns the splits with visible positions.
    #[inline(always)]
    fn splits(&self, window: Option<usize>) -> Range<usize> {
        self.first(window) / SPLIT..self.position / SPLIT + 1
    }
}

impl<E: Element> Attention<'_, E> {
    /// Computes the attention on all threads. The result is `[rows, heads, group, dim]`.
    ///
    /// `partials` is a buffer that grows as needed.
    ///
    /// # Panics
    ///
    /// Panics if a token has no row in the queries or the result, if two tokens have the same row, or
    /// if a block is not in the cache.
    pub fn run(
        &self,
        (pool, tier): (&mut ThreadPool, Tier),
        partials: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        self.check_rows();
        let out = DisjointSlice::new(out);
        let least = pool.threads() * TILES_PER_THREAD;
        let count = self.tokens.len();
        // Enough tiles for all threads, as long as each has the queries for full registers.
        let most = (TILE_QUERIES / self.group).max(1);
        let full = tile::QUERIES.div_ceil(self.group).min(most);
        let tokens = (count * self.heads / least).clamp(full, most);
        let tiles = count.div_ceil(tokens);
        let all = self.splits(self.tokens);
        if tiles * self.heads >= least || all.len() <= 1 || pool.threads() == 1 {
            pool.run(tiles * self.heads, &|part| {
                let (tile, head) = (part / self.heads, part % self.heads);
                tier.run(self.tile(tile * tokens, tokens, head, None, (&out, Place::Rows)));
            });
            return;
        }
        let place = Place::Partials { first: all.start, splits: all.len() };
        // The start behind the last result.
        let len = place.start(self, (count, 0), all.start);
        if partials.len() < len {
            partials.resize(len, 0.0);
        }
        let parts = DisjointSlice::new(partials);
        pool.run(tiles * self.heads * all.len(), &|part| {
            // Neighboring parts read neighboring pages.
            let (split, part) = (all.start + part % all.len(), part / all.len());
            let (tile, head) = (part / self.heads, part % self.heads);
            tier.run(self.tile(tile * tokens, tokens, head, Some(split), (&parts, place)));
        });
        pool.run(count * self.heads, &|part| {
            let (token, head) = (part / self.heads, part % self.heads);
            tier.run(Merge { attention: self, token, head, place, partials, out: &out });
        });
    }

    /// Checks that no two tokens have the same row, since threads write to the rows of their tokens.
    fn check_rows(&self) {
        let rows = self.tokens.iter().map(|token| token.row + 1).max().unwrap_or(0);
        let mut taken = vec![false; rows];
        for token in self.tokens {
            assert!(!taken[token.row], "two tokens have row {}", token.row);
            taken[token.row] = true;
        }
    }

    /// Returns the splits that some of the tokens see.
    fn splits(&self, tokens: &[Token<'_>]) -> Range<usize> {
        let splits = tokens.iter().map(|token| token.splits(self.window));
        let both = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
        splits.reduce(both).unwrap_or_default()
    }

    /// Returns the tile of up to `most` tokens from `first` on, in one split or in all that they
    /// see.
    fn tile<'a>(
        &'a self,
        first: usize,
        most: usize,
        head: usize,
        split: Option<usize>,
        (out, place): (&'a DisjointSlice<'a, f32>, Place),
    ) -> Tile<'a, E> {
        let tokens = &self.tokens[first..self.tokens.len().min(first + most)];
        let splits = split.map_or_else(|| self.splits(tokens), |split| split..split + 1);
        Tile { attention: self, first, tokens, head, splits, out, place }
    }
}

#[cfg(test)]
mod tests;
