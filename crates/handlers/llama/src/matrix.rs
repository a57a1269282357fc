//! Matrices as the kernels read them.
//!
//! Sixteen rows are a tile, whose numbers lie column by column: a load brings one column of sixteen
//! rows. The columns are cut into segments of equal length; each is summed in its order, and a
//! pairwise tree adds the segments up. So a shard of whole tiles has the rows that it would have in
//! the whole, and a shard of whole segments the sums.

pub(crate) mod ggml;
mod pack;
pub(crate) mod tile;
mod turns;

use crate::LoadError;
use crate::kernel::q8::TILE_BLOCK;
use crate::kernel::row::BLOCK;
use crate::kernel::{LANES, Lanes, kquants};
use crate::memory::Memory;

pub(crate) use self::pack::Source;
pub(crate) use self::turns::TILES;
use self::turns::Turns;

/// The most segments that a sum is cut into, and so the largest degree of tensor parallelism with
/// equal bits.
pub(crate) const SEGMENTS: usize = 8;

/// How a matrix is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Four bytes a weight.
    F32,
    /// Two bytes a weight. The arithmetic is that of f32, to the bit.
    Bf16,
    /// The same.
    F16,
    /// GGUF's: blocks of 32 integers of eight bits with a scale in f16, times activations in such
    /// blocks.
    Q8_0,
    /// GGUF's: blocks of 256 integers of four bits, each 32 with a scale and a least value, times
    /// activations in blocks of 256 integers of eight bits.
    Q4K,
    /// The same with five bits.
    Q5K,
    /// The same with six bits, each 16 with a scale.
    Q6K,
}

impl Format {
    /// The bytes of a weight in memory, scales included.
    pub fn width(self) -> f64 {
        let block = |size: usize| size as f64 / (LANES * kquants::BLOCK) as f64;
        match self {
            Self::F32 => 4.0,
            Self::Bf16 | Self::F16 => 2.0,
            Self::Q8_0 => 34.0 / 32.0,
            Self::Q4K => block(size_of::<kquants::Q4>()),
            Self::Q5K => block(size_of::<kquants::Q5>()),
            Self::Q6K => block(size_of::<kquants::Q6>()),
        }
    }

    /// How many columns belong together.
    pub(crate) fn unit(self) -> usize {
        match self {
            // As for Bf16, so that the bits agree.
            Self::F32 | Self::Bf16 | Self::F16 => 2,
            Self::Q8_0 => BLOCK,
            Self::Q4K | Self::Q5K | Self::Q6K => kquants::BLOCK,
        }
    }
}

/// Into how many segments a sum over so many columns is cut: as many as there can be of equal size.
/// A rank that has some of the columns has as large a share of the segments.
pub(crate) fn segments(format: Format, columns: usize) -> usize {
    let fits = |segments: &usize| columns.is_multiple_of(segments * format.unit());
    [SEGMENTS, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// A matrix `[rows, columns]` that multiplies activations: `y = W x + b`.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) segments: usize,
    pub(crate) turns: Turns,
    pub(crate) data: Data,
    /// Padded to whole tiles.
    pub(crate) bias: Option<Vec<f32>>,
}

/// The weights, by tiles that take [turns](Turns).
#[derive(Debug)]
pub(crate) enum Data {
    /// For each column the 16 rows' weights.
    F32(Memory<f32>),
    /// For each two columns the 16 rows' pairs of weights, the first in the lower half.
    Bf16(Memory<u32>),
    /// For each column the 16 rows' weights.
    F16(Memory<u16>),
    /// For each block of 32 columns the 16 rows' scales; the values as in [`TILE_BLOCK`].
    Q8 {
        scales: Memory<u16>,
        values: Memory<i8>,
    },
    /// The blocks of 256 columns.
    Q4K(Memory<kquants::Q4>),
    Q5K(Memory<kquants::Q5>),
    Q6K(Memory<kquants::Q6>),
}

impl Matrix {
    /// An empty matrix of zeros, whose columns are cut into so many [`segments`].
    ///
    /// # Errors
    ///
    /// There is not enough memory, or the format cannot have so many columns.
    pub(crate) fn zeroed(
        format: Format,
        rows: usize,
        columns: usize,
        segments: usize,
    ) -> Result<Self, LoadError> {
        let padded = rows.next_multiple_of(LANES);
        let (count, blocks) = (padded * columns, padded / LANES * (columns / kquants::BLOCK));
        let data = match format {
            Format::Q8_0 | Format::Q4K | Format::Q5K | Format::Q6K
                if !columns.is_multiple_of(format.unit()) =>
            {
                let (found, supported) =
                    (columns.to_string(), format!("a multiple of {}", format.unit()));
                let field = format!("the number of columns of a matrix in {format:?}");
                return Err(LoadError::unsupported(field, found, supported));
            }
            Format::Bf16 if columns.is_multiple_of(2) => Data::Bf16(Memory::zeroed(count / 2)?),
            Format::F32 | Format::Bf16 => Data::F32(Memory::zeroed(count)?),
            Format::F16 => Data::F16(Memory::zeroed(count)?),
            Format::Q8_0 => {
                let scales = Memory::zeroed(count / BLOCK)?;
                Data::Q8 { scales, values: Memory::zeroed(count)? }
            }
            Format::Q4K => Data::Q4K(Memory::zeroed(blocks)?),
            Format::Q5K => Data::Q5K(Memory::zeroed(blocks)?),
            Format::Q6K => Data::Q6K(Memory::zeroed(blocks)?),
        };
        let turns = Turns::new(padded / LANES, columns, columns / segments, format.unit());
        Ok(Self { rows, columns, segments, turns, data, bias: None })
    }

    pub(crate) fn format(&self) -> Format {
        match self.data {
            Data::F32(_) => Format::F32,
            Data::Bf16(_) => Format::Bf16,
            Data::F16(_) => Format::F16,
            Data::Q8 { .. } => Format::Q8_0,
            Data::Q4K(_) => Format::Q4K,
            Data::Q5K(_) => Format::Q5K,
            Data::Q6K(_) => Format::Q6K,
        }
    }

    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Rows with those that fill the last tile.
    pub(crate) fn padded(&self) -> usize {
        self.tiles() * LANES
    }

    pub(crate) fn bias(&self, tile: usize) -> Option<&Lanes> {
        self.bias.as_ref()?.as_chunks().0.get(tile)
    }

    /// A row, as the products see it.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let (tile, lane) = (row / LANES, row % LANES);
        for (at, out) in out[..self.columns].chunks_exact_mut(self.turns.stretch).enumerate() {
            self.stretch(self.turns.before(tile, at), lane, out);
        }
    }

    /// A row's part of the stretch before which there are so many.
    fn stretch(&self, before: usize, lane: usize, out: &mut [f32]) {
        let first = before * out.len();
        match &self.data {
            Data::Q4K(data) => return wide_stretch(data, before, lane, out),
            Data::Q5K(data) => return wide_stretch(data, before, lane, out),
            Data::Q6K(data) => return wide_stretch(data, before, lane, out),
            _ => {}
        }
        for (column, out) in out.iter_mut().enumerate() {
            let at = first + column;
            *out = match &self.data {
                Data::F32(data) => data[at * LANES + lane],
                Data::Bf16(data) => {
                    let pair = data[at / 2 * LANES + lane];
                    f32::from_bits(if column % 2 == 0 { pair << 16 } else { pair & 0xffff_0000 })
                }
                Data::F16(data) => half::f16::from_bits(data[at * LANES + lane]).to_f32(),
                Data::Q8 { scales, values } => {
                    let (block, k) = (at / BLOCK, at % BLOCK);
                    let value = values[block * TILE_BLOCK + k / 4 * 4 * LANES + 4 * lane + k % 4];
                    half::f16::from_bits(scales[block * LANES + lane]).to_f32() * f32::from(value)
                }
                _ => unreachable!("blocks of 256 are read whole"),
            };
        }
    }

    /// How many tiles one of so many threads is to take at once, in whole multiples: some 64 KiB of
    /// them, and of few rows of activations more, but not so many that threads have nothing. Few rows
    /// wait for memory, which is read the faster the longer one goes on.
    pub(crate) fn pieces(&self, rows: usize, threads: usize, multiple: usize) -> usize {
        const BYTES: usize = 64 << 10;
        let tile = self.bytes() / self.tiles().max(1);
        let least = BYTES / tile.max(1);
        let most = self.tiles() / (4 * threads);
        let wanted = least * (4 / rows.max(1)).max(1);
        // Tiles that take turns are one thread's, where there are enough of them for all.
        let multiple = if most < TILES { multiple } else { multiple.max(TILES) };
        wanted.min(most.max(least)).max(1).next_multiple_of(multiple)
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(data) => 4 * data.len(),
            Data::Bf16(data) => 4 * data.len(),
            Data::F16(data) => 2 * data.len(),
            Data::Q8 { scales, values } => 2 * scales.len() + values.len(),
            Data::Q4K(data) => size_of::<kquants::Q4>() * data.len(),
            Data::Q5K(data) => size_of::<kquants::Q5>() * data.len(),
            Data::Q6K(data) => size_of::<kquants::Q6>() * data.len(),
        }
    }
}

/// A row's part of blocks of 256.
fn wide_stretch<B: kquants::Block>(data: &[B], before: usize, lane: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut().0;
    for (block, out) in data[before * out.len()..].iter().zip(out) {
        block.row(lane, out);
    }
}

#[cfg(test)]
mod tests;
