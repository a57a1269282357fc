//! GEMM micro-kernels: products of a matrix's tiles with rows of activations.
//!
//! All formats share one loop nest: tiles, rows, segment, stretch, tile, column. A stretch is a run
//! of consecutive columns of one tile, contiguous in memory. The register blocking (rows and tiles
//! per pass) affects only what is loaded again: each sum takes its terms in the order of the
//! columns.

use std::ops::Range;

use super::activations::Quantized;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx::{Bf16Unit, ByteBlocks, ByteRuns};
use super::operands::{Blocks32, Bytes, Floats, Kind, MAX_ROWS, Pairs, Superblocks, groups};
use super::pair_blocks::{Definition, PairBlocks};
use super::runs::{self, RunProducts, Runs};
use super::store::Store;
use super::tile_interleave::TILES;
use super::tile_products::Products;
use super::{Data, Matrix, SEGMENTS};
use crate::simd::{Bf16Order, LANES, Lanes, Simd, Tier, Work};

/// Rows of activations in the form that the matrix's format needs.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// Rows of f32, `stride` numbers apart.
    Float { x: &'a [f32], stride: usize },
    /// Rows of bf16 pairs, for products in bf16, in the form that their order needs.
    Pairs(&'a [u32]),
    /// `[rows, columns]` in blocks of 32.
    Quantized(Quantized<'a, i32>),
    /// Runs of rows in blocks of 32, for the registers of AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    ByteRuns(ByteRuns<'a>),
    /// `[rows, columns]` in blocks of 256.
    Wide(Quantized<'a, i16>),
}

/// Tiles to multiply, tiles that are interleaved with them, first row of activations.
type Place = (Range<usize>, Range<usize>, usize);

/// Product of a range of tiles with all rows of activations.
pub(crate) struct Multiply<'a, S> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) tiles: Range<usize>,
    pub(crate) input: Input<'a>,
    pub(crate) rows: usize,
    pub(crate) store: S,
}

impl<'a, S: Store> Multiply<'a, S> {
    /// Computes the product. Each format is a work of its own, since the compiler's time grows faster
    /// than the size of a function.
    pub(crate) fn run(self, tier: Tier) {
        match (&self.matrix.data, self.input) {
            (Data::F32(data), Input::Float { x, stride }) => {
                self.of(tier, Floats::<_, 1> { data, x, stride });
            }
            (Data::Bf16(data), Input::Float { x, stride }) => {
                self.of(tier, Floats::<_, 2> { data, x, stride });
            }
            (Data::Bf16(data), Input::Pairs(x)) => match self.matrix.bf16_order {
                Some(Bf16Order::Blocks) => self.of_blocks(tier, data, x),
                _ => self.of_pairs(tier, Pairs { data, x }),
            },
            (Data::F16(data), Input::Float { x, stride }) => {
                self.of(tier, Floats::<_, 1> { data, x, stride });
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            (Data::Q8 { scales, values }, Input::ByteRuns(x)) => {
                let operands = ByteBlocks::new(self.matrix, (scales, values), x);
                tier.run(self.of_runs(x.runs(), operands));
            }
            (Data::Q8 { scales, values }, Input::Quantized(x)) => {
                self.of(tier, Bytes { scales, values, x });
            }
            (Data::Q4_0(data), Input::Quantized(x)) => self.of(tier, Blocks32 { data, x }),
            (Data::Q4_1(data), Input::Quantized(x)) => self.of(tier, Blocks32 { data, x }),
            (Data::Q5_0(data), Input::Quantized(x)) => self.of(tier, Blocks32 { data, x }),
            (Data::Q5_1(data), Input::Quantized(x)) => self.of(tier, Blocks32 { data, x }),
            (Data::Iq4Nl(data), Input::Quantized(x)) => self.of(tier, Blocks32 { data, x }),
            (Data::Mxfp4(data), Input::Quantized(x)) => self.of(tier, Blocks32 { data, x }),
            (Data::Q2K(data), Input::Wide(x)) => self.of(tier, Superblocks { data, x }),
            (Data::Q3K(data), Input::Wide(x)) => self.of(tier, Superblocks { data, x }),
            (Data::Q4K(data), Input::Wide(x)) => self.of(tier, Superblocks { data, x }),
            (Data::Q5K(data), Input::Wide(x)) => self.of(tier, Superblocks { data, x }),
            (Data::Q6K(data), Input::Wide(x)) => self.of(tier, Superblocks { data, x }),
            (Data::Iq4Xs(data), Input::Wide(x)) => self.of(tier, Superblocks { data, x }),
            _ => unreachable!("the input is of the matrix's format"),
        }
    }

    fn of(self, tier: Tier, kind: impl Kind) {
        tier.run(self.typed(kind));
    }

    fn of_pairs(self, tier: Tier, pairs: Pairs<'_>) {
        tier.run_pairs(self.typed(pairs));
    }

    fn of_blocks(self, tier: Tier, data: &'a [u32], x: &'a [u32]) {
        let runs = Runs::of(self.rows);
        match tier {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Tier::Amx => {
                let operands = PairBlocks::<Bf16Unit>::new(self.matrix, data, x, runs);
                tier.run(self.of_runs(runs, operands));
            }
            _ => {
                let operands = PairBlocks::<Definition>::new(self.matrix, data, x, runs);
                tier.run(self.of_runs(runs, operands));
            }
        }
    }

    fn of_runs<O: runs::Operands>(self, runs: Runs, operands: O) -> RunProducts<'a, O, S> {
        let Self { matrix, tiles, store, .. } = self;
        RunProducts { matrix, operands, tiles, runs, store }
    }

    fn typed<K: Kind>(self, kind: K) -> Typed<'a, K, S> {
        let Self { matrix, tiles, rows, store, .. } = self;
        Typed { matrix, kind, tiles, rows, store }
    }
}

/// Product of a matrix whose format is known.
struct Typed<'a, K, S> {
    matrix: &'a Matrix,
    kind: K,
    tiles: Range<usize>,
    rows: usize,
    store: S,
}

impl<K: Kind, S: Store> Work for Typed<'_, K, S> {
    #[inline(always)]
    fn run<I: Simd>(mut self, simd: I) {
        let mut waiting = [const { Waiting::new() }; TILES];
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            let beside = self.matrix.interleave.beside(tile);
            let end = self.tiles.end.min(beside.end);
            for group in groups(self.rows, K::ROWS) {
                let place = (tile..end, beside.clone(), group.start);
                match group.len() {
                    1 => self.group::<1>(simd, place, &mut waiting),
                    2 => self.group::<2>(simd, place, &mut waiting),
                    3 => self.group::<3>(simd, place, &mut waiting),
                    4 => self.group::<4>(simd, place, &mut waiting),
                    5 if K::ROWS > 4 => self.group::<5>(simd, place, &mut waiting),
                    6 if K::ROWS > 5 => self.group::<6>(simd, place, &mut waiting),
                    _ => {}
                }
            }
            tile = end;
        }
    }
}

impl<K: Kind, S: Store> Typed<'_, K, S> {
    /// Multiplies `M` rows with some of a group of interleaved tiles.
    #[inline(always)]
    fn group<const M: usize>(
        &mut self,
        simd: impl Simd,
        place: Place,
        waiting: &mut [Waiting; TILES],
    ) {
        let (columns, stretch) = (self.matrix.columns, self.matrix.interleave.stretch);
        let (_, beside, row) = place.clone();
        let products = self.kind.products::<M>((columns, stretch), &beside, row);
        self.sum(simd, place, &products, waiting);
    }

    /// Computes all segments of the products of `M` rows.
    #[inline(always)]
    fn sum<I: Simd, const M: usize>(
        &mut self,
        simd: I,
        (tiles, beside, row): Place,
        products: &impl Products<M>,
        waiting: &mut [Waiting; TILES],
    ) {
        let segments = self.matrix.segments;
        let stretches = self.matrix.interleave.count / segments;
        let turns = tiles.start - beside.start..tiles.end - beside.start;
        let mut sums = [[simd.splat(0.0); M]; TILES];
        for segment in 0..segments {
            sums = [[simd.splat(0.0); M]; TILES];
            let stretches = segment * stretches..(segment + 1) * stretches;
            products.add_all(simd, stretches, turns.clone(), &mut sums);
            for (waiting, sums) in waiting.iter_mut().zip(&mut sums).take(turns.len()) {
                waiting.end(simd, segment, segments, sums);
            }
        }
        for (tile, sums) in tiles.zip(sums) {
            for (m, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; LANES];
                simd.store(sum, &mut lanes);
                self.store(row + m, tile, lanes);
            }
        }
    }

    #[inline(always)]
    fn store(&mut self, row: usize, tile: usize, mut sums: Lanes) {
        if let Some(bias) = self.matrix.bias(tile) {
            for lane in 0..LANES {
                sums[lane] += bias[lane];
            }
        }
        self.store.store(row, tile, &sums);
    }
}

/// Partial sums of each row that wait for their neighbor in the tree that adds up the segments.
struct Waiting([[Lanes; MAX_ROWS]; SEGMENTS.ilog2() as usize]);

impl Waiting {
    #[inline(always)]
    const fn new() -> Self {
        Self([[[0.0; LANES]; MAX_ROWS]; SEGMENTS.ilog2() as usize])
    }

    /// Ends a segment. The tree adds neighbors, then neighboring pairs: each second segment
    /// completes a pair, each fourth a pair of pairs, and the last one the whole sum.
    #[inline(always)]
    fn end<I: Simd, const M: usize>(
        &mut self,
        simd: I,
        segment: usize,
        segments: usize,
        sums: &mut [I::Vector; M],
    ) {
        let mut level = 0;
        while segment >> level & 1 == 1 {
            for (sum, left) in sums.iter_mut().zip(&self.0[level]) {
                *sum = simd.add(simd.load(left), *sum);
            }
            level += 1;
        }
        if segment + 1 < segments {
            for (sum, waiting) in sums.iter().zip(&mut self.0[level]) {
                simd.store(*sum, waiting);
            }
        }
    }
}
