//! Buffers of blocks of sixteen rows, whatever the type of the blocks.

#![expect(unsafe_code, reason = "threads fill tiles that do not overlap")]

use std::fmt;

use super::gguf_blocks::KQuantBlock;
use super::tile_interleave::TileInterleave;
use crate::blocks32::{self, Block as _};
use crate::disjoint_slice::DisjointSlice;
use crate::format::Format;
use crate::kquants;
use crate::memory::{AlignedBuffer, Plain};
use crate::rowwise::BLOCK;

/// Block of sixteen rows.
trait Block: Plain {
    const COLUMNS: usize;

    /// Dequantizes one row.
    fn row(&self, lane: usize, out: &mut [f32]);
    /// Sets one row from a file's block, of a format that is this one in memory. Returns false if a
    /// weight may not be finite.
    fn take(&mut self, lane: usize, format: Format, bytes: &[u8]) -> bool;
}

macro_rules! of_32 {
    ($($block:ty),*) => {$(
        impl Block for $block {
            const COLUMNS: usize = BLOCK;

            fn row(&self, lane: usize, out: &mut [f32]) {
                blocks32::Block::row(self, lane, out);
            }

            fn take(&mut self, lane: usize, _: Format, bytes: &[u8]) -> bool {
                self.set(lane, bytes)
            }
        }
    )*};
}

of_32!(blocks32::Q4_0, blocks32::Q4_1, blocks32::Q5_0, blocks32::Q5_1);
of_32!(blocks32::Iq4Nl, blocks32::Mxfp4);

macro_rules! of_256 {
    ($($block:ty),*) => {$(
        impl Block for $block {
            const COLUMNS: usize = kquants::BLOCK;

            fn row(&self, lane: usize, out: &mut [f32]) {
                if let Some(out) = out.first_chunk_mut() {
                    kquants::Block::row(self, lane, out);
                }
            }

            fn take(&mut self, lane: usize, format: Format, bytes: &[u8]) -> bool {
                let row = KQuantBlock::read(format, bytes);
                let KQuantBlock { d, min, scales, least, values } = &row;
                let row_of = kquants::Row { d: *d, min: *min, scales, least, values };
                kquants::Block::set(self, lane, &row_of);
                row.is_sound()
            }
        }
    )*};
}

of_256!(kquants::Q2, kquants::Q3, kquants::Q4, kquants::Q5, kquants::Q6, kquants::Iq4Xs);

/// Blocks of a matrix.
pub(super) trait Buffer: fmt::Debug {
    /// Returns the size in bytes.
    fn bytes(&self) -> usize;
    /// Dequantizes a row's part of the stretch that has `before` stretches in front of it.
    fn stretch(&self, before: usize, lane: usize, out: &mut [f32]);
    /// Returns the blocks for threads that fill tiles.
    fn tiles(&mut self) -> Box<dyn BufferTiles + '_>;
}

impl<B: Block> Buffer for AlignedBuffer<B> {
    fn bytes(&self) -> usize {
        size_of::<B>() * self.len()
    }

    fn stretch(&self, before: usize, lane: usize, out: &mut [f32]) {
        let blocks = &self[before * (out.len() / B::COLUMNS)..];
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::COLUMNS)) {
            block.row(lane, out);
        }
    }

    fn tiles(&mut self) -> Box<dyn BufferTiles + '_> {
        Box::new(DisjointSlice::new(self))
    }
}

/// Blocks of a matrix, which threads fill by tiles.
pub(super) trait BufferTiles: Sync {
    /// Borrows one tile.
    ///
    /// # Safety
    ///
    /// A tile must not be borrowed twice at the same time.
    unsafe fn tile(&self, interleave: TileInterleave, tile: usize) -> Box<dyn BufferTile + '_>;
}

impl<B: Block> BufferTiles for DisjointSlice<'_, B> {
    unsafe fn tile(&self, interleave: TileInterleave, tile: usize) -> Box<dyn BufferTile + '_> {
        // SAFETY: the caller borrows each tile at most once at a time.
        Box::new(unsafe { stretches(self, interleave, tile, interleave.stretch / B::COLUMNS) })
    }
}

/// Blocks of one tile.
pub(super) trait BufferTile {
    /// Sets one of the sixteen rows from a file's blocks. Returns false if a weight may not be
    /// finite.
    fn take(&mut self, lane: usize, format: Format, bytes: &[u8]) -> bool;
}

impl<B: Block> BufferTile for Vec<&mut [B]> {
    fn take(&mut self, lane: usize, format: Format, bytes: &[u8]) -> bool {
        let mut held = true;
        let blocks = self.iter_mut().flat_map(|stretch| stretch.iter_mut());
        for (block, bytes) in blocks.zip(bytes.chunks_exact(format.block_in_file().1)) {
            held &= block.take(lane, format, bytes);
        }
        held
    }
}

/// Returns the stretches of a tile, each of `len` numbers or blocks.
///
/// # Safety
///
/// A tile must not be borrowed twice at the same time.
#[expect(clippy::mut_from_ref, reason = "as what it calls")]
pub(super) unsafe fn stretches<'a, T>(
    data: &'a DisjointSlice<'_, T>,
    interleave: TileInterleave,
    tile: usize,
    len: usize,
) -> Vec<&'a mut [T]> {
    let start = |stretch| interleave.before(tile, stretch) * len;
    // SAFETY: no stretch is in two tiles.
    (0..interleave.count).map(|stretch| unsafe { data.part(start(stretch), len) }).collect()
}
