//! Weight matrices packed for the kernels.
//!
//! A tile is sixteen rows, stored column by column, so one load brings one column of sixteen rows.
//! The columns are cut into segments of equal length. Each segment is summed in order, and a
//! pairwise tree adds up the segments. So a shard of whole tiles gives the same rows as the whole
//! matrix, and a shard of whole segments gives the same partial sums.

mod activations;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod blocks;
mod data;
mod gguf_blocks;
mod matmul;
mod operands;
mod pack;
mod pair_blocks;
mod runs;
mod store;
mod tile;
mod tile_interleave;
mod tile_products;

use crate::error::Error;
use crate::format::Format;
use crate::q8::TILE_BLOCK;
use crate::rowwise::BLOCK;
use crate::simd::{Bf16Order, LANES, Lanes, Tier};

pub use self::gguf_blocks::KQuantBlock;
pub use self::matmul::{Activations, Epilogue, Output, QuantizationBuffers};
pub use self::pack::Source;

use self::data::Data;
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
    format: Format,
    interleave: TileInterleave,
    /// Order of the additions if activations are rounded to bf16, as the weights are.
    bf16_order: Option<Bf16Order>,
    data: Data,
    /// Bias, padded to whole tiles.
    bias: Option<Vec<f32>>,
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
        let unit = format.unit();
        if format.block_in_file().0 > 1 && !columns.is_multiple_of(unit) {
            let (found, supported) = (columns.to_string(), format!("a multiple of {unit}"));
            let field = format!("the number of columns of a matrix in {format:?}");
            return Err(Error::Unsupported { field, found, supported });
        }
        let format = match format.in_memory() {
            // Columns are stored in pairs.
            Format::Bf16 if !columns.is_multiple_of(2) => Format::F32,
            format => format,
        };
        let padded = rows.next_multiple_of(LANES);
        let interleave = TileInterleave::new(padded / LANES, columns, columns / segments, unit);
        let data = Data::zeroed(format, padded, columns)?;
        Ok(Self { rows, columns, segments, format, interleave, bf16_order: None, data, bias: None })
    }

    /// Lays a matrix that is not packed yet out for a tier. This does not change the products, but other
    /// tiers are slower.
    ///
    /// With the 32 registers of AVX-512, the sums of several interleaved tiles stay in registers, so
    /// that weights without blocks alternate column by column.
    #[must_use]
    pub fn for_tier(mut self, tier: Tier) -> Self {
        let columns = match self.format {
            Format::Bf16 => 2,
            Format::F32 | Format::F16 => 1,
            _ => return self,
        };
        if tier >= Tier::Avx512 {
            self.interleave = self.interleave.by_unit(columns);
        }
        self
    }

    /// Selects products in bf16 for a matrix in bf16 that is not packed yet: activations are rounded
    /// to bf16, and the products are added in the order of an instruction. The bits are others than
    /// without, and the same in every tier. Tiers [without the instruction](Tier::bf16_order) are slow.
    /// Matrices in other formats stay as they are.
    #[must_use]
    pub fn in_bf16(mut self, order: Bf16Order) -> Self {
        if self.format == Format::Bf16 {
            self.bf16_order = Some(order);
            self.interleave = self.interleave.by_unit(self.format.unit());
        }
        self
    }

    /// Returns the order of the additions if products are [in bf16](Self::in_bf16).
    pub fn bf16_order(&self) -> Option<Bf16Order> {
        self.bf16_order
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
        self.format
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
        if let Some(blocks) = self.data.blocks() {
            return blocks.stretch(before, lane, out);
        }
        let first = before * out.len();
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
                _ => unreachable!("other blocks are read whole"),
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
            other => other.blocks().map_or(0, |blocks| blocks.bytes()),
        }
    }
}

#[cfg(test)]
mod tests;
