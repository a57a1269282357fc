//! Weight matrices packed for the kernels.
//!
//! A tile is sixteen rows, stored column by column, so one load brings one column of sixteen rows.
//! The columns are cut into segments of equal length. Each segment is summed in order, and a
//! pairwise tree adds up the segments. So a shard of whole tiles gives the same rows as the whole
//! matrix, and a shard of whole segments gives the same partial sums.

pub(crate) mod ggml;
mod pack;
mod turns;

use crate::LoadError;
use crate::kernel::q8::TILE_BLOCK;
use crate::kernel::row::BLOCK;
use crate::kernel::{LANES, Lanes, kquants};
use crate::memory::Memory;

pub(crate) use self::pack::Source;
pub(crate) use self::turns::TILES;
use self::turns::Turns;

/// Largest number of segments of a sum, and so the largest tensor-parallel degree with equal bits.
pub(crate) const SEGMENTS: usize = 8;

/// Storage format of a matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// f32, four bytes a weight.
    F32,
    /// bfloat16, two bytes a weight. The arithmetic is that of f32, bit for bit.
    Bf16,
    /// IEEE half precision, two bytes a weight, computed in f32.
    F16,
    /// GGUF's Q8_0: blocks of 32 eight-bit integers with an f16 scale, multiplied with activations
    /// in blocks of the same kind.
    Q8_0,
    /// GGUF's Q4_K: blocks of 256 four-bit integers, each 32 with a scale and a least value,
    /// multiplied with activations in blocks of 256 eight-bit integers.
    Q4K,
    /// GGUF's Q5_K: as Q4_K, with five-bit integers.
    Q5K,
    /// GGUF's Q6_K: blocks of 256 six-bit integers, each 16 with a scale, multiplied with
    /// activations in blocks of 256 eight-bit integers.
    Q6K,
}

impl Format {
    /// Returns the bytes of a weight in memory, scales included.
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

    /// Returns the number of columns that cannot be separated: the block length.
    pub(crate) fn unit(self) -> usize {
        match self {
            // As for Bf16, so that the bits agree.
            Self::F32 | Self::Bf16 | Self::F16 => 2,
            Self::Q8_0 => BLOCK,
            Self::Q4K | Self::Q5K | Self::Q6K => kquants::BLOCK,
        }
    }
}

/// Returns the number of equal segments that a sum over `columns` is cut into: the largest of 8, 4,
/// 2 and 1 that divides them. A rank with a share of the columns has the same share of the
/// segments.
pub(crate) fn segments(format: Format, columns: usize) -> usize {
    let fits = |segments: &usize| columns.is_multiple_of(segments * format.unit());
    [SEGMENTS, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Matrix `[rows, columns]` that multiplies activations: `y = W x + b`.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) segments: usize,
    pub(crate) turns: Turns,
    pub(crate) data: Data,
    /// Bias, padded to whole tiles.
    pub(crate) bias: Option<Vec<f32>>,
}

/// Weights, stored by interleaved tiles (see [`Turns`]).
#[derive(Debug)]
pub(crate) enum Data {
    /// For each column, the weights of the 16 rows.
    F32(Memory<f32>),
    /// For each two columns, the pairs of weights of the 16 rows, the first in the lower half.
    Bf16(Memory<u32>),
    /// For each column, the weights of the 16 rows.
    F16(Memory<u16>),
    /// For each block of 32 columns, the scales of the 16 rows; the values as in [`TILE_BLOCK`].
    Q8 {
        scales: Memory<u16>,
        values: Memory<i8>,
    },
    /// Blocks of 256 columns.
    Q4K(Memory<kquants::Q4>),
    Q5K(Memory<kquants::Q5>),
    Q6K(Memory<kquants::Q6>),
}

impl Matrix {
    /// Allocates a matrix of zeros whose columns are cut into `segments` (see [`segments`]).
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short, or if the format does not allow this number of columns.
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

    /// Returns the number of rows, padded to whole tiles.
    pub(crate) fn padded(&self) -> usize {
        self.tiles() * LANES
    }

    pub(crate) fn bias(&self, tile: usize) -> Option<&Lanes> {
        self.bias.as_ref()?.as_chunks().0.get(tile)
    }

    /// Copies out a row, dequantized to the values that the kernels compute with.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let (tile, lane) = (row / LANES, row % LANES);
        for (at, out) in out[..self.columns].chunks_exact_mut(self.turns.stretch).enumerate() {
            self.stretch(self.turns.before(tile, at), lane, out);
        }
    }

    /// Copies out a row's part of the stretch that has `before` stretches in front of it.
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

    /// Returns how many tiles a thread takes at once: a multiple of `multiple`, about 64 KiB. With
    /// few rows of activations it is more, since memory bandwidth is then the limit, and long
    /// sequential reads are faster. It is capped so that all threads have work.
    pub(crate) fn pieces(&self, rows: usize, threads: usize, multiple: usize) -> usize {
        const BYTES: usize = 64 << 10;
        let tile = self.bytes() / self.tiles().max(1);
        let least = BYTES / tile.max(1);
        let most = self.tiles() / (4 * threads);
        let wanted = least * (4 / rows.max(1)).max(1);
        // Interleaved tiles go to one thread where there are enough tiles for all threads.
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

/// Copies out a row's part of a stretch of blocks of 256.
fn wide_stretch<B: kquants::Block>(data: &[B], before: usize, lane: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut().0;
    for (block, out) in data[before * out.len()..].iter().zip(out) {
        block.row(lane, out);
    }
}

#[cfg(test)]
mod tests;
