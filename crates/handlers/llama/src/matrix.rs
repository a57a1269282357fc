//! Matrices as the kernels read them.
//!
//! Sixteen rows are a tile, whose numbers lie column by column: a load brings one column of sixteen
//! rows. The columns are cut into segments of equal length; each is summed in its order, and a
//! pairwise tree adds the segments up. So a shard of whole tiles has the rows that it would have in
//! the whole, and a shard of whole segments the sums.

use nsbridge_handler::Dtype;

use crate::LoadError;
use crate::kernel::q8::TILE_BLOCK;
use crate::kernel::row::{BLOCK, quantise};
use crate::kernel::{LANES, Lanes};
use crate::memory::Memory;

/// The most segments that a sum is cut into, and so the largest degree of tensor parallelism with
/// equal bits.
pub(crate) const SEGMENTS: usize = 8;

/// How a matrix is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Four bytes a weight; what f16 becomes too.
    F32,
    /// Two bytes a weight. The arithmetic is that of f32, to the bit.
    Bf16,
    /// GGUF's: blocks of 32 integers of eight bits with a scale in f16, times activations in such
    /// blocks.
    Q8_0,
}

/// A matrix `[rows, columns]` that multiplies activations: `y = W x + b`.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) segments: usize,
    pub(crate) data: Data,
    /// Padded to whole tiles.
    pub(crate) bias: Option<Vec<f32>>,
}

/// The tiles, one after the other.
#[derive(Debug)]
pub(crate) enum Data {
    /// By tile: for each column the 16 rows' weights.
    F32(Memory<f32>),
    /// By tile: for each two columns the 16 rows' pairs of weights, the first in the lower half.
    Bf16(Memory<u32>),
    /// By tile and block of 32 columns: the 16 rows' scales; the values as in [`TILE_BLOCK`].
    Q8 { scales: Memory<u16>, values: Memory<i8> },
}

/// Where a matrix's rows come from, while it is packed.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    /// Little-endian, row by row.
    pub(crate) bytes: &'a [u8],
    pub(crate) rows: usize,
}

impl Matrix {
    /// An empty matrix of zeros.
    ///
    /// # Errors
    ///
    /// There is not enough memory, or the format cannot have so many columns.
    pub(crate) fn zeroed(format: Format, rows: usize, columns: usize) -> Result<Self, LoadError> {
        let padded = rows.next_multiple_of(LANES);
        let unit = match format {
            // As for Bf16, so that the bits agree.
            Format::F32 | Format::Bf16 => 2,
            Format::Q8_0 => BLOCK,
        };
        let count = padded * columns;
        let data = match format {
            Format::Q8_0 if !columns.is_multiple_of(BLOCK) => {
                let found = columns.to_string();
                let supported = "a multiple of 32 columns";
                return Err(LoadError::unsupported("quantize q8_0 of a matrix", found, supported));
            }
            Format::Bf16 if columns.is_multiple_of(2) => Data::Bf16(Memory::zeroed(count / 2)?),
            Format::F32 | Format::Bf16 => Data::F32(Memory::zeroed(count)?),
            Format::Q8_0 => {
                let scales = Memory::zeroed(count / BLOCK)?;
                Data::Q8 { scales, values: Memory::zeroed(count)? }
            }
        };
        let fits = |segments: &usize| columns.is_multiple_of(segments * unit);
        let segments = [SEGMENTS, 4, 2].into_iter().find(fits).unwrap_or(1);
        Ok(Self { rows, columns, segments, data, bias: None })
    }

    pub(crate) fn format(&self) -> Format {
        match self.data {
            Data::F32(_) => Format::F32,
            Data::Bf16(_) => Format::Bf16,
            Data::Q8 { .. } => Format::Q8_0,
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

    /// Puts a source's rows where `place` says, row by row.
    ///
    /// # Errors
    ///
    /// A dtype that is not a float's, or a number that Q8_0 cannot hold.
    pub(crate) fn pack(
        &mut self,
        source: &Source<'_>,
        place: impl Fn(usize) -> usize,
    ) -> Result<(), LoadError> {
        let mut row = vec![0.0; self.columns];
        for index in 0..source.rows {
            source.read(index, &mut row)?;
            self.set(place(index), &row).map_err(|why| {
                LoadError::unsupported(format!("row {index} of {}", source.name), why, "numbers")
            })?;
        }
        Ok(())
    }

    fn set(&mut self, row: usize, weights: &[f32]) -> Result<(), &'static str> {
        let (tile, lane, columns) = (row / LANES, row % LANES, self.columns);
        match &mut self.data {
            Data::F32(data) => {
                let tile = &mut data[tile * LANES * columns..][..LANES * columns];
                for (column, weight) in weights.iter().enumerate() {
                    tile[column * LANES + lane] = *weight;
                }
            }
            Data::Bf16(data) => {
                let tile = &mut data[tile * LANES * columns / 2..][..LANES * columns / 2];
                for (pair, weights) in weights.as_chunks::<2>().0.iter().enumerate() {
                    let [low, high] = weights.map(f32::to_bits);
                    tile[pair * LANES + lane] = low >> 16 | high & 0xffff_0000;
                }
            }
            Data::Q8 { scales, values } => {
                let blocks = columns / BLOCK;
                for (block, weights) in weights.as_chunks::<BLOCK>().0.iter().enumerate() {
                    let at = tile * blocks + block;
                    let (scale, quantised) = quantised(weights)?;
                    scales[at * LANES + lane] = scale;
                    for (k, value) in quantised.into_iter().enumerate() {
                        values[at * TILE_BLOCK + k / 4 * 4 * LANES + 4 * lane + k % 4] = value;
                    }
                }
            }
        }
        Ok(())
    }

    /// A row, as the products see it.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let (tile, lane, columns) = (row / LANES, row % LANES, self.columns);
        for (column, out) in out[..columns].iter_mut().enumerate() {
            *out = match &self.data {
                Data::F32(data) => data[(tile * columns + column) * LANES + lane],
                Data::Bf16(data) => {
                    let pair = data[(tile * columns + column) / 2 * LANES + lane];
                    f32::from_bits(if column % 2 == 0 { pair << 16 } else { pair & 0xffff_0000 })
                }
                Data::Q8 { scales, values } => {
                    let at = tile * (columns / BLOCK) + column / BLOCK;
                    let k = column % BLOCK;
                    let value = values[at * TILE_BLOCK + k / 4 * 4 * LANES + 4 * lane + k % 4];
                    half::f16::from_bits(scales[at * LANES + lane]).to_f32() * f32::from(value)
                }
            };
        }
    }

    /// How many tiles a thread is to take at once: some 64 KiB of them, in whole multiples.
    pub(crate) fn pieces(&self, multiple: usize) -> usize {
        const BYTES: usize = 64 << 10;
        let tile = self.bytes() / self.tiles().max(1);
        (BYTES / tile.max(1)).max(1).next_multiple_of(multiple)
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(data) => 4 * data.len(),
            Data::Bf16(data) => 4 * data.len(),
            Data::Q8 { scales, values } => 2 * scales.len() + values.len(),
        }
    }
}

/// As GGUF's Q8_0: the scale is rounded to f16 after the values were made with the exact one.
fn quantised(weights: &[f32; BLOCK]) -> Result<(u16, [i8; BLOCK]), &'static str> {
    let mut values = [0; BLOCK];
    let scale = half::f16::from_f32(quantise(weights, &mut values));
    if !scale.is_finite() {
        return Err("a weight beyond what Q8_0 can hold");
    }
    Ok((scale.to_bits(), values))
}

impl Source<'_> {
    /// A row in f32, exactly.
    pub(crate) fn read(&self, row: usize, out: &mut [f32]) -> Result<(), LoadError> {
        let size = if self.dtype == Dtype::F32 { 4 } else { 2 };
        let bytes = &self.bytes[row * out.len() * size..][..out.len() * size];
        let halves = bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        match self.dtype {
            Dtype::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Dtype::BF16 => {
                for (out, bits) in out.iter_mut().zip(halves) {
                    *out = f32::from_bits(u32::from(bits) << 16);
                }
            }
            Dtype::F16 => {
                for (out, bits) in out.iter_mut().zip(halves) {
                    *out = half::f16::from_bits(bits).to_f32();
                }
            }
            other => {
                let (field, found) = (format!("the dtype of {}", self.name), other.to_string());
                return Err(LoadError::unsupported(field, found, "F32, BF16 or F16"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
