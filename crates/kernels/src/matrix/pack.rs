//! Packing of a checkpoint's rows into tiles, one tile at a time, on all threads.

#![expect(unsafe_code, reason = "threads fill tiles that do not overlap")]

use parking_lot::Mutex;

use super::Matrix;
use super::blocks::{BufferTile, BufferTiles, stretches};
use super::data::Data;
use super::gguf_blocks::{KQuantBlock, Q8Block, is_sound, read_of_32};
use super::tile_interleave::TileInterleave;
use crate::blocks32;
use crate::disjoint_slice::DisjointSlice;
use crate::error::Error;
use crate::format::Format;
use crate::q8::TILE_BLOCK;
use crate::rowwise::{BLOCK, quantize};
use crate::simd::{LANES, Simd, Tier, Work};
use crate::thread_pool::ThreadPool;

/// Checkpoint tensor that supplies rows of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name of the tensor, for errors.
    pub name: &'a str,
    /// Format of its weights.
    pub format: Format,
    /// Weights, little-endian, row by row.
    pub bytes: &'a [u8],
}

impl Matrix {
    /// Fills the matrix. `place` maps a row of the matrix to a source and a row in it, or to none.
    ///
    /// # Errors
    ///
    /// Returns an error if a source cannot be converted to the format, or if the format cannot hold
    /// a weight: Q8_0 and f16 do not hold infinities.
    pub fn pack(
        &mut self,
        (pool, tier): (&mut ThreadPool, Tier),
        sources: &[Source<'_>],
        place: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    ) -> Result<(), Error> {
        for source in sources {
            if !self.format().can_be_made_of(source.format) {
                let field = format!("the dtype of {}", source.name);
                let supported = format!("what can become {:?}", self.format());
                let found = source.format.to_string();
                return Err(Error::Unsupported { field, found, supported });
            }
        }
        let (columns, tiles, interleave) = (self.columns, self.tiles(), self.interleave);
        let data = match &mut self.data {
            Data::F32(data) => Tiles::F32(DisjointSlice::new(data)),
            Data::Bf16(data) => Tiles::Bf16(DisjointSlice::new(data)),
            Data::F16(data) => Tiles::F16(DisjointSlice::new(data)),
            Data::Q8 { scales, values } => {
                Tiles::Q8 { scales: DisjointSlice::new(scales), values: DisjointSlice::new(values) }
            }
            blocks => match blocks.blocks_mut() {
                Some(blocks) => Tiles::Blocks(blocks.tiles()),
                None => return Ok(()),
            },
        };
        // The lowest failing row is reported, whichever thread finds it.
        let refused = Mutex::new(None::<usize>);
        pool.run(tiles, &|number| {
            let mut broken = None;
            tier.run(Pack {
                // SAFETY: each tile belongs to a single part of the job.
                tile: unsafe { data.tile(interleave, number) },
                number,
                stretch: interleave.stretch,
                sources,
                place: &place,
                row: &mut vec![0.0; columns],
                broken: &mut broken,
            });
            if let Some(row) = broken {
                let mut refused = refused.lock();
                *refused = Some(refused.map_or(row, |before| before.min(row)));
            }
        });
        let refused = refused.into_inner();
        let Some((source, row)) = refused.and_then(place) else { return Ok(()) };
        Err(Error::Unsupported {
            field: format!("row {row} of {}", sources[source].name),
            found: "a weight that is too large or no number".to_owned(),
            supported: "finite ones".to_owned(),
        })
    }
}

/// Weights of a matrix, which threads fill by tiles.
enum Tiles<'a> {
    F32(DisjointSlice<'a, f32>),
    Bf16(DisjointSlice<'a, u32>),
    F16(DisjointSlice<'a, u16>),
    Q8 { scales: DisjointSlice<'a, u16>, values: DisjointSlice<'a, i8> },
    Blocks(Box<dyn BufferTiles + 'a>),
}

/// Weights of one tile, as a list of stretches.
enum Tile<'a> {
    F32(Vec<&'a mut [f32]>),
    Bf16(Vec<&'a mut [u32]>),
    F16(Vec<&'a mut [u16]>),
    Q8 { scales: Vec<&'a mut [u16]>, values: Vec<&'a mut [i8]> },
    Blocks(Box<dyn BufferTile + 'a>),
}

impl Tiles<'_> {
    /// Borrows one tile.
    ///
    /// # Safety
    ///
    /// A tile must not be borrowed twice at the same time.
    unsafe fn tile(&self, interleave: TileInterleave, tile: usize) -> Tile<'_> {
        let TileInterleave { stretch, .. } = interleave;
        // SAFETY: the caller borrows each tile at most once at a time.
        unsafe {
            match self {
                Self::F32(data) => Tile::F32(stretches(data, interleave, tile, stretch * LANES)),
                Self::Bf16(data) => {
                    Tile::Bf16(stretches(data, interleave, tile, stretch / 2 * LANES))
                }
                Self::F16(data) => Tile::F16(stretches(data, interleave, tile, stretch * LANES)),
                Self::Q8 { scales, values } => Tile::Q8 {
                    scales: stretches(scales, interleave, tile, stretch / BLOCK * LANES),
                    values: stretches(values, interleave, tile, stretch * LANES),
                },
                Self::Blocks(data) => Tile::Blocks(data.tile(interleave, tile)),
            }
        }
    }
}

/// Fills one tile.
struct Pack<'a, P> {
    tile: Tile<'a>,
    number: usize,
    /// Columns in a stretch.
    stretch: usize,
    sources: &'a [Source<'a>],
    place: &'a P,
    /// Buffer for a row in f32.
    row: &'a mut [f32],
    /// First row with a number that the format cannot hold.
    broken: &'a mut Option<usize>,
}

impl<P: Fn(usize) -> Option<(usize, usize)>> Work for Pack<'_, P> {
    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        for lane in 0..LANES {
            let row = self.number * LANES + lane;
            let Some((source, from)) = (self.place)(row) else { continue };
            let source = &self.sources[source];
            let bytes = source.row(from, self.row.len());
            let held = if let Some(held) = self.tile.take(lane, source, bytes) {
                held
            } else {
                source.read(from, self.row);
                self.tile.set(lane, self.row, self.stretch)
            };
            if !held {
                self.broken.get_or_insert(row);
            }
        }
    }
}

impl Tile<'_> {
    /// Copies one of the sixteen rows from blocks that already have this format. Returns whether
    /// the format can hold it, or `None` if the source needs a conversion.
    fn take(&mut self, lane: usize, source: &Source<'_>, bytes: &[u8]) -> Option<bool> {
        match (self, source.format) {
            (Self::Q8 { scales, values }, format @ (Format::Q8_0 | Format::Q8_1)) => {
                let mut held = true;
                let places = blocks_of::<_, TILE_BLOCK>(values).zip(blocks_of::<_, LANES>(scales));
                let blocks = bytes.chunks_exact(format.block_in_file().1);
                for ((values, scales), bytes) in places.zip(blocks) {
                    let block = Q8Block::read(bytes);
                    held &= block.is_sound();
                    scales[lane] = block.d;
                    put(values, lane, &block.values);
                }
                Some(held)
            }
            (Self::Blocks(blocks), format) => Some(blocks.take(lane, format, bytes)),
            _ => None,
        }
    }

    /// Converts one of the sixteen rows and returns true if the format can hold it.
    #[inline(always)]
    fn set(&mut self, lane: usize, weights: &[f32], stretch: usize) -> bool {
        let mut held = true;
        let weights = weights.chunks_exact(stretch);
        match self {
            Self::F32(tile) => {
                for (weights, tile) in weights.zip(tile) {
                    for (weight, column) in weights.iter().zip(tile.as_chunks_mut::<LANES>().0) {
                        column[lane] = *weight;
                    }
                }
            }
            Self::Bf16(tile) => {
                for (weights, tile) in weights.zip(tile) {
                    let pairs = tile.as_chunks_mut::<LANES>().0.iter_mut();
                    for (both, pair) in weights.as_chunks::<2>().0.iter().zip(pairs) {
                        let [low, high] =
                            both.map(|weight| u32::from(half::bf16::from_f32(weight).to_bits()));
                        pair[lane] = low | high << 16;
                    }
                }
            }
            Self::F16(tile) => {
                for (weights, tile) in weights.zip(tile) {
                    for (weight, column) in weights.iter().zip(tile.as_chunks_mut::<LANES>().0) {
                        let weight = half::f16::from_f32(*weight);
                        held &= weight.is_finite();
                        column[lane] = weight.to_bits();
                    }
                }
            }
            Self::Q8 { scales, values } => {
                let weights = weights.flat_map(|weights| weights.as_chunks::<BLOCK>().0);
                let places = blocks_of::<_, TILE_BLOCK>(values).zip(blocks_of::<_, LANES>(scales));
                for (weights, (values, scales)) in weights.zip(places) {
                    let mut quantized = [0; BLOCK];
                    // As in GGUF's Q8_0, the scale is rounded after the values are computed with
                    // it.
                    let scale = half::f16::from_f32(quantize(weights, &mut quantized));
                    held &= scale.is_finite();
                    scales[lane] = scale.to_bits();
                    put(values, lane, &quantized);
                }
            }
            // No conversion to these formats happens here.
            Self::Blocks(_) => held = false,
        }
        held
    }
}

/// Iterates over a tile's elements in chunks of `N`.
fn blocks_of<'a, T, const N: usize>(
    tile: &'a mut [&mut [T]],
) -> impl Iterator<Item = &'a mut [T; N]> {
    tile.iter_mut().flat_map(|stretch| stretch.as_chunks_mut().0)
}

/// Writes a row's values into a block of a tile.
#[inline(always)]
fn put(values: &mut [i8; TILE_BLOCK], lane: usize, row: &[i8; BLOCK]) {
    let fours = values.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut();
    for (four, values) in row.as_chunks::<4>().0.iter().zip(fours) {
        values[4 * lane..4 * lane + 4].copy_from_slice(four);
    }
}

impl Format {
    /// Returns true if weights of this format can be stored in it: exactly, rounded, or unchanged.
    fn can_be_made_of(self, stored: Self) -> bool {
        let is_rounded_to = matches!(self, Self::F32 | Self::Bf16 | Self::F16 | Self::Q8_0);
        is_rounded_to || stored.in_memory() == self
    }
}

impl Source<'_> {
    /// Returns the bytes of a row.
    #[inline(always)]
    fn row(&self, row: usize, columns: usize) -> &[u8] {
        let (count, size) = self.format.block_in_file();
        let size = columns / count * size;
        &self.bytes[row * size..][..size]
    }

    /// Writes a row as a file of this format has it, converted as [`Matrix::pack`] does. Returns
    /// false if the format cannot hold a weight, or if the row cannot be converted.
    ///
    /// # Panics
    ///
    /// Panics if there is no such row, or if `out` does not have the bytes of a row.
    pub fn write_row(&self, row: usize, columns: usize, format: Format, out: &mut [u8]) -> bool {
        if self.format == format {
            out.copy_from_slice(self.row(row, columns));
            return out.chunks_exact(format.block_in_file().1).all(|block| is_sound(format, block));
        }
        let mut weights = vec![0.0; columns];
        self.read(row, &mut weights);
        let mut held = true;
        match format {
            Format::F32 => {
                for (out, weight) in out.as_chunks_mut().0.iter_mut().zip(&weights) {
                    *out = weight.to_le_bytes();
                }
            }
            Format::Bf16 => {
                for (out, weight) in out.as_chunks_mut().0.iter_mut().zip(&weights) {
                    *out = half::bf16::from_f32(*weight).to_le_bytes();
                }
            }
            Format::F16 => {
                for (out, weight) in out.as_chunks_mut().0.iter_mut().zip(&weights) {
                    let weight = half::f16::from_f32(*weight);
                    held &= weight.is_finite();
                    *out = weight.to_le_bytes();
                }
            }
            Format::Q8_0 => {
                let blocks = weights.as_chunks::<BLOCK>().0;
                for (out, weights) in out.chunks_exact_mut(format.block_in_file().1).zip(blocks) {
                    let mut quantized = [0; BLOCK];
                    let scale = half::f16::from_f32(quantize(weights, &mut quantized));
                    held &= scale.is_finite();
                    let (d, values) = out.split_at_mut(2);
                    d.copy_from_slice(&scale.to_le_bytes());
                    for (out, value) in values.iter_mut().zip(quantized) {
                        *out = value.cast_unsigned();
                    }
                }
            }
            _ => held = false,
        }
        held
    }

    /// Reads a row into f32; floats are exact.
    ///
    /// # Panics
    ///
    /// Panics if there is no such row.
    #[inline(always)]
    pub fn read(&self, row: usize, out: &mut [f32]) {
        let bytes = self.row(row, out.len());
        match self.format {
            Format::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Format::Bf16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            Format::F16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = half::f16::from_le_bytes(*bytes).to_f32();
                }
            }
            format => {
                let (count, size) = format.block_in_file();
                for (out, bytes) in out.chunks_exact_mut(count).zip(bytes.chunks_exact(size)) {
                    read_block(format, bytes, out);
                }
            }
        }
    }
}

/// Dequantizes one block of a file.
fn read_block(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 | Format::Bf16 | Format::F16 => {}
        Format::Q8_0 | Format::Q8_1 => Q8Block::read(bytes).numbers(out),
        Format::Q4_0 => read_of_32::<blocks32::Q4_0>(bytes, out),
        Format::Q4_1 => read_of_32::<blocks32::Q4_1>(bytes, out),
        Format::Q5_0 => read_of_32::<blocks32::Q5_0>(bytes, out),
        Format::Q5_1 => read_of_32::<blocks32::Q5_1>(bytes, out),
        Format::Iq4Nl => read_of_32::<blocks32::Iq4Nl>(bytes, out),
        Format::Mxfp4 => read_of_32::<blocks32::Mxfp4>(bytes, out),
        Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => {
            KQuantBlock::read(format, bytes).numbers(format, out);
        }
    }
}
