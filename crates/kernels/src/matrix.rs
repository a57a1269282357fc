//! Weight matrices packed for the kernels.
//!
//! A tile is sixteen rows, stored column by column, so one load brings one column of sixteen rows.
//! The columns are cut into segments of equal length. Each segment is summed in order, and a
//! pairwise tree adds up the segments. So a shard of whole tiles gives the same rows as the whole
//! matrix, and a shard of whole segments gives the same partial sums.

mod gguf_blocks;
mod pack;
mod product;
mod tile;
mod tile_interleave;

use crate::error::Error;
use crate::format::Format;
use crate::kquants;
use crate::memory::AlignedBuffer;
use crate::q8::TILE_BLOCK;
use crate::row::BLOCK;
use crate::simd::{LANES, Lanes};

pub use self::gguf_blocks::KQuantBlock;
pub use self::pack::Source;
pub use self::product::{Activations, Epilogue, Output, QuantizationBuffers};
use self::tile_interleave::{TILES, TileInterleave};

/// Largest number of segments of a sum, and so the largest tensor-parallel degree with equal bits.
pub const SEGMENTS: usize = 8;

/// Returns the number of equal segments that a sum over `columns` is cut into: the largest of 8, 4,
/// 2 and 1 that divides them. A rank with a share of the columns has the same share of the
/// segments.
pub fn segments(format: Format, columns: usize) -> usize {
    let fits = |segments: &usize| columns.is_multiple_of(segments * format.unit());
    [SEGMENTS, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Matrix `[rows, columns]` that multiplies activations: `y = W x + b`.
///
/// ```
/// use nsbridge_kernels::matrix::{
///     Activations, Matrix, Output, QuantizationBuffers, Source, segments,
/// };
/// use nsbridge_kernels::{Format, ThreadPool, Tier};
///
/// // Two rows of four columns, as a file has them.
/// let weights = [[1.0f32, 2.0, 3.0, 4.0], [0.5, 0.0, 0.0, -1.0]];
/// let bytes: Vec<u8> = weights.as_flattened().iter().flat_map(|x| x.to_le_bytes()).collect();
/// let source = Source { name: "w", format: Format::F32, bytes: &bytes };
///
/// let mut compute = (&mut ThreadPool::new(2), Tier::best());
/// let mut matrix = Matrix::zeroed(Format::Bf16, 2, 4, segments(Format::Bf16, 4))?;
/// matrix.pack((&mut *compute.0, compute.1), &[source], |row| (row < 2).then_some((0, row)))?;
///
/// let x = [1.0, 1.0, 1.0, 2.0];
/// let mut out = vec![0.0; matrix.padded()];
/// let output = Output::new(&mut out, matrix.padded());
/// let x = Activations { numbers: &x, stride: 4 };
/// matrix.multiply(compute, x, 1, &mut QuantizationBuffers::default(), output);
/// assert_eq!(out[..2], [14.0, -1.5]);
/// # Ok::<(), nsbridge_kernels::Error>(())
/// ```
#[derive(Debug)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    segments: usize,
    interleave: TileInterleave,
    data: Data,
    /// Bias, padded to whole tiles.
    bias: Option<Vec<f32>>,
}

/// Weights, stored by interleaved tiles (see [`TileInterleave`]).
#[derive(Debug)]
enum Data {
    /// For each column, the weights of the 16 rows.
    F32(AlignedBuffer<f32>),
    /// For each two columns, the pairs of weights of the 16 rows, the first in the lower half.
    Bf16(AlignedBuffer<u32>),
    /// For each column, the weights of the 16 rows.
    F16(AlignedBuffer<u16>),
    /// For each block of 32 columns, the scales of the 16 rows; the values as in [`TILE_BLOCK`].
    Q8 {
        scales: AlignedBuffer<u16>,
        values: AlignedBuffer<i8>,
    },
    /// Blocks of 256 columns.
    Q4K(AlignedBuffer<kquants::Q4>),
    Q5K(AlignedBuffer<kquants::Q5>),
    Q6K(AlignedBuffer<kquants::Q6>),
}

impl Matrix {
    /// Allocates a matrix of zeros whose columns are cut into `segments` (see [`segments`]).
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short, or if the format does not allow this number of columns.
    pub fn zeroed(
        format: Format,
        rows: usize,
        columns: usize,
        segments: usize,
    ) -> Result<Self, Error> {
        let padded = rows.next_multiple_of(LANES);
        let (count, blocks) = (padded * columns, padded / LANES * (columns / kquants::BLOCK));
        let data = match format {
            Format::Q8_0 | Format::Q4K | Format::Q5K | Format::Q6K
                if !columns.is_multiple_of(format.unit()) =>
            {
                let (found, supported) =
                    (columns.to_string(), format!("a multiple of {}", format.unit()));
                let field = format!("the number of columns of a matrix in {format:?}");
                return Err(Error::Unsupported { field, found, supported });
            }
            Format::Bf16 if columns.is_multiple_of(2) => {
                Data::Bf16(AlignedBuffer::zeroed(count / 2)?)
            }
            Format::F32 | Format::Bf16 => Data::F32(AlignedBuffer::zeroed(count)?),
            Format::F16 => Data::F16(AlignedBuffer::zeroed(count)?),
            Format::Q8_0 => {
                let scales = AlignedBuffer::zeroed(count / BLOCK)?;
                Data::Q8 { scales, values: AlignedBuffer::zeroed(count)? }
            }
            Format::Q4K => Data::Q4K(AlignedBuffer::zeroed(blocks)?),
            Format::Q5K => Data::Q5K(AlignedBuffer::zeroed(blocks)?),
            Format::Q6K => Data::Q6K(AlignedBuffer::zeroed(blocks)?),
        };
        let interleave =
            TileInterleave::new(padded / LANES, columns, columns / segments, format.unit());
        Ok(Self { rows, columns, segments, interleave, data, bias: None })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Sets the bias of each row, padded to whole tiles.
    ///
    /// # Panics
    ///
    /// Panics if there are more or fewer numbers than padded rows.
    pub fn set_bias(&mut self, bias: Vec<f32>) {
        assert_eq!(bias.len(), self.padded(), "a bias has a number for each padded row");
        self.bias = Some(bias);
    }

    /// Returns the format of the weights in memory.
    pub fn format(&self) -> Format {
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

    /// Returns the number of tiles.
    fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Returns the number of rows, padded to whole tiles.
    pub fn padded(&self) -> usize {
        self.tiles() * LANES
    }

    fn bias(&self, tile: usize) -> Option<&Lanes> {
        self.bias.as_ref()?.as_chunks().0.get(tile)
    }

    /// Copies out a row, dequantized to the values that the kernels compute with.
    ///
    /// # Panics
    ///
    /// Panics if there is no such row, or if `out` is shorter than a row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (tile, lane) = (row / LANES, row % LANES);
        for (at, out) in out[..self.columns].chunks_exact_mut(self.interleave.stretch).enumerate() {
            self.stretch(self.interleave.before(tile, at), lane, out);
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
    fn tiles_at_once(&self, rows: usize, threads: usize, multiple: usize) -> usize {
        const BYTES: usize = 64 << 10;
        let tile = self.bytes() / self.tiles().max(1);
        let least = BYTES / tile.max(1);
        let most = self.tiles() / (4 * threads);
        let wanted = least * (4 / rows.max(1)).max(1);
        // Interleaved tiles go to one thread where there are enough tiles for all threads.
        let multiple = if most < TILES { multiple } else { multiple.max(TILES) };
        wanted.min(most.max(least)).max(1).next_multiple_of(multiple)
    }

    /// Returns the size in memory, in bytes.
    pub fn bytes(&self) -> usize {
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
