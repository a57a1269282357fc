//! Kernel: some tokens' queries of one key-value head, through a range of splits.

use std::ops::Range;

use super::place::Place;
use super::softmax::{NOTHING, Softmax, largest, merge, to_shares};
use super::{Attention, PAGE, PAGES, SPLIT, Token};
use crate::disjoint_slice::DisjointSlice;
use crate::element::Element;
use crate::prefetch::prefetch_ahead;
use crate::simd::{LANES, Simd, Tier, Work};

/// Queries whose sums fill the registers and share each load of keys and values.
pub(super) const QUERIES: usize = 6;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Tokens of a tile, and the part of their attention that is computed at once.
#[derive(Debug)]
pub(super) struct Tile<'a, E> {
    pub(super) attention: &'a Attention<'a, E>,
    /// Index of the first token.
    pub(super) first: usize,
    pub(super) tokens: &'a [Token<'a>],
    /// Key-value head.
    pub(super) head: usize,
    pub(super) splits: Range<usize>,
    pub(super) out: &'a DisjointSlice<'a, f32>,
    pub(super) place: Place,
}

/// Query in a split.
#[derive(Clone, Copy)]
struct Query {
    /// Start of its result.
    out: usize,
    /// First and last visible position in the split.
    first: usize,
    last: usize,
}

impl Query {
    /// Returns the visible positions within a block.
    #[inline(always)]
    fn seen(&self, block: usize) -> Range<usize> {
        let start = self.first.clamp(block * PAGE, (block + 1) * PAGE) - block * PAGE;
        let end = (self.last + 1).clamp(block * PAGE, (block + 1) * PAGE) - block * PAGE;
        start..end.max(start)
    }
}

/// Scores of a split for `H` queries, replaced by the softmax weight of each position.
type Shares<const H: usize> = [[[f32; PAGE]; PAGES]; H];

/// Factors for the sums of the splits before and for that of this one; `None` for the first split.
type Factors = Option<(f32, f32)>;

/// Split that several tokens see.
struct Split<'a> {
    number: usize,
    /// Blocks of the split, from its first position on.
    table: &'a [u32],
    /// Block after the split, if there is one.
    next: Option<u32>,
    /// True for the first queries, which bring the pages into a cache.
    is_first: bool,
}

impl<E: Element> Work for Tile<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let group = self.attention.group;
        let mut all = vec![NOTHING; self.tokens.len() * group];
        let packed = self.packed();
        for number in self.splits.clone() {
            let mut first = 0;
            while first < self.tokens.len() {
                let (tokens, mut split) = self.together(first, number);
                let (mut query, end) = (first * group, (first + tokens) * group);
                while query < end && !split.table.is_empty() {
                    let all = &mut all[..end];
                    query += match end - query {
                        QUERIES.. => self.queries::<S, 6>(simd, &packed, &split, query, all),
                        5 => self.queries::<S, 5>(simd, &packed, &split, query, all),
                        4 => self.queries::<S, 4>(simd, &packed, &split, query, all),
                        3 => self.queries::<S, 3>(simd, &packed, &split, query, all),
                        2 => self.queries::<S, 2>(simd, &packed, &split, query, all),
                        _ => self.queries::<S, 1>(simd, &packed, &split, query, all),
                    };
                    split.is_first = false;
                }
                first += tokens;
            }
        }
        self.finish(&all);
    }
}

impl<'a, E: Element> Tile<'a, E> {
    /// Returns how many tokens from this one on see the same blocks of a split, and the split. A
    /// token that sees nothing of it is alone, without blocks.
    fn together(&self, first: usize, number: usize) -> (usize, Split<'a>) {
        let window = self.attention.window;
        let blocks = |token: &Token<'a>| {
            let end = ((number + 1) * PAGES).min(token.position / PAGE + 1);
            let sees = token.splits(window).contains(&number);
            if sees { &token.table[number * PAGES..end] } else { &[] }
        };
        let (mut longest, mut all) = (self.tokens[first], blocks(&self.tokens[first]));
        let mut count = 1;
        for token in &self.tokens[first + 1..] {
            let other = blocks(token);
            let common = all.len().min(other.len());
            if common == 0 || all[..common] != other[..common] {
                break;
            }
            if other.len() > all.len() {
                (longest, all) = (*token, other);
            }
            count += 1;
        }
        let next = (number + 1) * PAGES;
        let next = if next <= longest.position / PAGE { Some(longest.table[next]) } else { None };
        (count, Split { number, table: all, next, is_first: true })
    }

    /// Returns the start of the result of a query.
    #[inline(always)]
    fn start(&self, query: usize, split: usize) -> usize {
        let group = self.attention.group;
        let head = self.head * group + query % group;
        self.place.start(self.attention, (self.first + query / group, head), split)
    }

    /// Returns the result that begins at `start`.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "as with the slice itself")]
    fn out(&self, start: usize, len: usize) -> &mut [f32] {
        // SAFETY: a row, a head and a split belong to a single tile, and no two results of it are
        // borrowed at once.
        unsafe { self.out.part(start, len) }
    }

    /// Returns the queries as `[dim, queries]`: those that are multiplied with a key's number lie
    /// side by side.
    fn packed(&self) -> Vec<f32> {
        let Attention { queries, stride, group, dim, .. } = *self.attention;
        let count = self.tokens.len() * group;
        let mut packed = vec![0.0; count * dim];
        for (k, packed) in packed.chunks_exact_mut(count.max(1)).enumerate() {
            for (token, packed) in self.tokens.iter().zip(packed.chunks_exact_mut(group)) {
                let start = token.row * stride + self.head * group * dim + k;
                let numbers = queries[start..].iter().step_by(dim);
                for (packed, number) in packed.iter_mut().zip(numbers) {
                    *packed = *number;
                }
            }
        }
        packed
    }

    /// Takes `H` queries through a split and returns `H`.
    #[inline(always)]
    fn queries<S: Simd, const H: usize>(
        &self,
        simd: S,
        packed: &[f32],
        split: &Split<'_>,
        query: usize,
        all: &mut [Softmax],
    ) -> usize {
        let Attention { group, window, .. } = *self.attention;
        let of = |h: usize| {
            let token = &self.tokens[(query + h) / group];
            Query {
                out: self.start(query + h, split.number),
                first: token.first(window).max(split.number * SPLIT),
                last: token.position.min(split.number * SPLIT + SPLIT - 1),
            }
        };
        let queries: [Query; H] = std::array::from_fn(of);
        let mut shares = [[[0.0; PAGE]; PAGES]; H];
        let first = queries.iter().map(|query| query.first).min().unwrap_or(0) / PAGE;
        let last = queries.iter().map(|query| query.last).max().unwrap_or(0) / PAGE;
        for block in first..last + 1 {
            self.score(simd, &packed[query..], split, block, &mut shares);
            for h in 0..H {
                let (seen, scores) = (queries[h].seen(block), &mut shares[h][block % PAGES]);
                if seen.len() < PAGE {
                    scores[..seen.start].fill(f32::NEG_INFINITY);
                    scores[seen.end..].fill(f32::NEG_INFINITY);
                }
            }
        }
        let filled = first % PAGES..last % PAGES + 1;
        let mut factors: [Factors; H] = [None; H];
        for h in 0..H {
            let shares = &mut shares[h][filled.clone()];
            let largest = largest(shares);
            let own = (largest, to_shares(shares, largest));
            let softmax = &mut all[query + h];
            let begins = self.tokens[(query + h) / group].splits(window).start;
            if matches!(self.place, Place::Rows) && split.number > begins {
                let (merged, both) = merge(*softmax, own);
                (*softmax, factors[h]) = (merged, Some(both));
            } else {
                *softmax = own;
            }
        }
        self.mix(simd, (&queries, split, &shares, factors));
        H
    }

    /// Computes the scaled products of the queries with the keys of a block.
    #[inline(always)]
    fn score<S: Simd, const H: usize>(
        &self,
        simd: S,
        packed: &[f32],
        split: &Split<'_>,
        block: usize,
        shares: &mut Shares<H>,
    ) {
        let Attention { dim, keys, values, .. } = *self.attention;
        let (size, at) = (dim * PAGE, block % PAGES);
        let page = keys.at(split.table[at], self.head, size);
        // While the products of a block are computed, its values and the next keys arrive.
        let ahead = if split.is_first {
            let next = split.table.get(at + 1).copied().or(split.next);
            let next = next.map(|block| keys.at(block, self.head, size));
            Some([values.at(split.table[at], self.head, size), next.unwrap_or(page)])
        } else {
            None
        };
        if has_registers_for_two::<S, H>() {
            self.products::<S, H, 2>(simd, packed, page, 0, ahead, &mut shares_of(shares, at));
        } else {
            self.products::<S, H, 1>(simd, packed, page, 0, ahead, &mut shares_of(shares, at));
            self.products::<S, H, 1>(simd, packed, page, 1, None, &mut shares_of(shares, at));
        }
    }

    /// Computes the scores of `V` vectors of a block's positions, from vector `from` on.
    #[inline(always)]
    fn products<S: Simd, const H: usize, const V: usize>(
        &self,
        simd: S,
        packed: &[f32],
        page: &[E],
        from: usize,
        ahead: Option<[&[E]; 2]>,
        shares: &mut [&mut [f32; PAGE]; H],
    ) {
        let page = page.as_chunks::<LANES>().0.as_chunks::<2>().0;
        let queries = packed.chunks(self.tokens.len() * self.attention.group);
        let mut sums = [[simd.splat(0.0); V]; H];
        for (k, (keys, queries)) in page.iter().zip(queries).enumerate() {
            let queries = &queries[..H];
            if let Some(pages) = ahead {
                for page in pages {
                    for line in 0..(PAGE * size_of::<E>()).div_ceil(LINE) {
                        let row = page.as_ptr().wrapping_add(k * PAGE);
                        prefetch_ahead(row, line * LINE);
                    }
                }
            }
            let mut numbers = [simd.splat(0.0); V];
            for v in 0..V {
                numbers[v] = E::vector(simd, &keys[from + v]);
            }
            for h in 0..H {
                let query = simd.splat(queries[h]);
                for v in 0..V {
                    sums[h][v] = simd.fused(numbers[v], query, sums[h][v]);
                }
            }
        }
        let scale = simd.splat(self.attention.scale);
        for h in 0..H {
            let halves = shares[h].as_chunks_mut::<LANES>().0;
            for v in 0..V {
                simd.store(simd.multiply(sums[h][v], scale), &mut halves[from + v]);
            }
        }
    }

    /// Adds up the values of a split, times the weights of their positions, in the order of the
    /// positions.
    #[inline(always)]
    fn mix<S: Simd, const H: usize>(&self, simd: S, mixed: Mixed<'_, H>) {
        let mut column = 0;
        while column < self.attention.dim {
            column += match self.attention.dim - column {
                32.. if has_registers_for_two::<S, H>() => {
                    self.columns::<S, H, 2>(simd, mixed, column)
                }
                16.. => self.columns::<S, H, 1>(simd, mixed, column),
                _ => self.column(mixed, column),
            };
        }
    }

    /// Accumulates `N` vectors of dimensions and returns how many dimensions they cover.
    #[inline(always)]
    fn columns<S: Simd, const H: usize, const N: usize>(
        &self,
        simd: S,
        (queries, split, shares, factors): Mixed<'_, H>,
        column: usize,
    ) -> usize {
        let dim = self.attention.dim;
        // Positions that all of the queries see.
        let start = queries.iter().map(|query| query.first).max().unwrap_or(0);
        let end = queries.iter().map(|query| query.last + 1).min().unwrap_or(0).max(start);
        let mut partial = [[[0.0; LANES]; N]; H];
        for h in 0..H {
            for position in queries[h].first..start.min(queries[h].last + 1) {
                add(
                    simd,
                    &self.values(split, position)[column..],
                    &shares[h],
                    position,
                    &mut partial[h],
                );
            }
        }
        // Kept in registers within a page only: sums that live on beyond it are spilled in its loop.
        let sums = std::hint::black_box(&mut partial);
        let mut position = start;
        while position < end {
            let page = self.values(split, position);
            let count = (PAGE - position % PAGE).min(end - position);
            let at = position / PAGE % PAGES;
            let rows = &page[..count * dim];
            let mut common = [[simd.splat(0.0); N]; H];
            for h in 0..H {
                for n in 0..N {
                    common[h][n] = simd.load(&sums[h][n]);
                }
            }
            for (i, row) in rows.chunks_exact(dim).enumerate() {
                let row: &[[E; LANES]] = row[column..][..N * LANES].as_chunks().0;
                let mut numbers = [simd.splat(0.0); N];
                for n in 0..N {
                    numbers[n] = E::vector(simd, &row[n]);
                }
                for h in 0..H {
                    let share = simd.splat(shares[h][at][(position + i) % PAGE]);
                    for n in 0..N {
                        common[h][n] = simd.fused(numbers[n], share, common[h][n]);
                    }
                }
            }
            for h in 0..H {
                for n in 0..N {
                    simd.store(common[h][n], &mut sums[h][n]);
                }
            }
            position += count;
        }
        for h in 0..H {
            for position in queries[h].first.max(end)..queries[h].last + 1 {
                add(
                    simd,
                    &self.values(split, position)[column..],
                    &shares[h],
                    position,
                    &mut sums[h],
                );
            }
        }
        for h in 0..H {
            let out = self.out(queries[h].out + column, N * LANES);
            for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(&sums[h]) {
                let sum = simd.load(sum);
                let merged = match factors[h] {
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

    /// Returns the values of a position and of those after it in its block.
    #[inline(always)]
    fn values(&self, split: &Split<'_>, position: usize) -> &'a [E] {
        let Attention { dim, values, .. } = *self.attention;
        let page = values.at(split.table[position / PAGE % PAGES], self.head, dim * PAGE);
        &page[position % PAGE * dim..]
    }

    /// Accumulates a single dimension and returns 1.
    #[inline(always)]
    fn column<const H: usize>(
        &self,
        (queries, split, shares, factors): Mixed<'_, H>,
        column: usize,
    ) -> usize {
        for h in 0..H {
            let mut sum = 0.0f32;
            for position in queries[h].first..=queries[h].last {
                let at = position / PAGE % PAGES;
                let value = self.values(split, position)[column];
                sum = value.load().mul_add(shares[h][at][position % PAGE], sum);
            }
            let out = &mut self.out(queries[h].out + column, 1)[0];
            *out = match factors[h] {
                None => sum,
                Some((old, new)) => out.mul_add(old, sum * new),
            };
        }
        1
    }

    /// Divides the results by the sums of the weights, or keeps these for the merge.
    #[inline(always)]
    fn finish(&self, all: &[Softmax]) {
        let dim = self.attention.dim;
        for (query, &(largest, total)) in all.iter().enumerate() {
            let start = self.start(query, self.splits.start);
            match self.place {
                Place::Rows => {
                    self.out(start, dim).iter_mut().for_each(|out| *out /= total);
                }
                Place::Partials { .. } => {
                    self.out(start + dim, 2).copy_from_slice(&[largest, total]);
                }
            }
        }
    }
}

/// Queries in a split, the weights of its positions, and the factors of the splits before.
type Mixed<'a, const H: usize> = (&'a [Query; H], &'a Split<'a>, &'a Shares<H>, [Factors; H]);

/// Returns true if the sums of `H` queries and two vectors fit into registers.
#[inline(always)]
fn has_registers_for_two<S: Simd, const H: usize>() -> bool {
    H <= 3 || S::TIER == Tier::Avx512
}

/// Returns the scores of a block.
#[inline(always)]
fn shares_of<const H: usize>(shares: &mut Shares<H>, at: usize) -> [&mut [f32; PAGE]; H] {
    shares.each_mut().map(|shares| &mut shares[at])
}

/// Adds the values of one position for one query.
#[inline(always)]
fn add<S: Simd, E: Element, const N: usize>(
    simd: S,
    values: &[E],
    shares: &[[f32; PAGE]; PAGES],
    position: usize,
    sums: &mut [[f32; LANES]; N],
) {
    let share = simd.splat(shares[position / PAGE % PAGES][position % PAGE]);
    for (values, sums) in values.as_chunks::<LANES>().0.iter().zip(sums) {
        let sum = simd.fused(E::vector(simd, values), share, simd.load(sums));
        simd.store(sum, sums);
    }
}
