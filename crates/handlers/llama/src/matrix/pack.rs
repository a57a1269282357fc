//! Packing of a checkpoint's rows into tiles, one tile at a time, on all threads.

#![expect(unsafe_code, reason = "threads fill tiles that do not overlap")]

use std::sync::{Mutex, PoisonError};

use nsbridge_handler::{Dtype, TensorInfo};

use super::ggml::{Small, Wide};
use super::turns::Turns;
use super::{Data, Format, Matrix};
use crate::LoadError;
use crate::kernel::q8::TILE_BLOCK;
use crate::kernel::row::{BLOCK, quantise};
use crate::kernel::simd::Simd;
use crate::kernel::{LANES, Tier, Work, kquants};
use crate::pool::Pool;
use crate::share::Disjoint;

/// Checkpoint tensor that supplies rows of a matrix.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    /// Little-endian, row by row.
    pub(crate) bytes: &'a [u8],
}

impl Matrix {
    /// Fills the matrix. `place` maps a row of the matrix to a source and a row in it, or to none.
    ///
    /// # Errors
    ///
    /// Returns an error if a dtype cannot be converted to the format, or if the format cannot hold
    /// a weight: Q8_0 and f16 do not hold infinities.
    pub(crate) fn pack(
        &mut self,
        (pool, tier): (&mut Pool, Tier),
        sources: &[Source<'_>],
        place: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    ) -> Result<(), LoadError> {
        for source in sources {
            if !self.format().can_be_made_of(source.dtype) {
                let field = format!("the dtype of {}", source.name);
                let supported = format!("what can become {:?}", self.format());
                return Err(LoadError::unsupported(field, source.dtype.to_string(), supported));
            }
        }
        let (columns, tiles, turns) = (self.columns, self.tiles(), self.turns);
        let data = match &mut self.data {
            Data::F32(data) => Tiles::F32(Disjoint::new(data)),
            Data::Bf16(data) => Tiles::Bf16(Disjoint::new(data)),
            Data::F16(data) => Tiles::F16(Disjoint::new(data)),
            Data::Q8 { scales, values } => {
                Tiles::Q8 { scales: Disjoint::new(scales), values: Disjoint::new(values) }
            }
            Data::Q4K(data) => Tiles::Q4K(Disjoint::new(data)),
            Data::Q5K(data) => Tiles::Q5K(Disjoint::new(data)),
            Data::Q6K(data) => Tiles::Q6K(Disjoint::new(data)),
        };
        // The lowest failing row is reported, whichever thread finds it.
        let refused = Mutex::new(None::<usize>);
        pool.run(tiles, &|number| {
            let mut broken = None;
            tier.run(Pack {
                // SAFETY: each tile belongs to a single part of the job.
                tile: unsafe { data.tile(turns, number) },
                number,
                stretch: turns.stretch,
                sources,
                place: &place,
                row: &mut vec![0.0; columns],
                broken: &mut broken,
            });
            if let Some(row) = broken {
                let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                *refused = Some(refused.map_or(row, |before| before.min(row)));
            }
        });
        let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some((source, row)) = refused.and_then(place) else { return Ok(()) };
        Err(LoadError::unsupported(
            format!("row {row} of {}", sources[source].name),
            "a weight that is too large or no number",
            "finite ones",
        ))
    }
}

/// Weights of a matrix, which threads fill by tiles.
enum Tiles<'a> {
    F32(Disjoint<'a, f32>),
    Bf16(Disjoint<'a, u32>),
    F16(Disjoint<'a, u16>),
    Q8 { scales: Disjoint<'a, u16>, values: Disjoint<'a, i8> },
    Q4K(Disjoint<'a, kquants::Q4>),
    Q5K(Disjoint<'a, kquants::Q5>),
    Q6K(Disjoint<'a, kquants::Q6>),
}

/// Weights of one tile, as a list of stretches.
enum Tile<'a> {
    F32(Vec<&'a mut [f32]>),
    Bf16(Vec<&'a mut [u32]>),
    F16(Vec<&'a mut [u16]>),
    Q8 { scales: Vec<&'a mut [u16]>, values: Vec<&'a mut [i8]> },
    Q4K(Vec<&'a mut [kquants::Q4]>),
    Q5K(Vec<&'a mut [kquants::Q5]>),
    Q6K(Vec<&'a mut [kquants::Q6]>),
}

impl Tiles<'_> {
    /// Borrows one tile.
    ///
    /// # Safety
    ///
    /// A tile must not be borrowed twice at the same time.
    unsafe fn tile(&self, turns: Turns, tile: usize) -> Tile<'_> {
        let Turns { stretch, .. } = turns;
        // SAFETY: the caller borrows each tile at most once at a time.
        unsafe {
            match self {
                Self::F32(data) => Tile::F32(stretches(data, turns, tile, stretch * LANES)),
                Self::Bf16(data) => Tile::Bf16(stretches(data, turns, tile, stretch / 2 * LANES)),
                Self::F16(data) => Tile::F16(stretches(data, turns, tile, stretch * LANES)),
                Self::Q8 { scales, values } => Tile::Q8 {
                    scales: stretches(scales, turns, tile, stretch / BLOCK * LANES),
                    values: stretches(values, turns, tile, stretch * LANES),
                },
                Self::Q4K(data) => {
                    Tile::Q4K(stretches(data, turns, tile, stretch / kquants::BLOCK))
                }
                Self::Q5K(data) => {
                    Tile::Q5K(stretches(data, turns, tile, stretch / kquants::BLOCK))
                }
                Self::Q6K(data) => {
                    Tile::Q6K(stretches(data, turns, tile, stretch / kquants::BLOCK))
                }
            }
        }
    }
}

/// Returns the stretches of a tile, each of `len` numbers or blocks.
///
/// # Safety
///
/// As for [`Tiles::tile`].
#[expect(clippy::mut_from_ref, reason = "as what it calls")]
unsafe fn stretches<'a, T>(
    data: &'a Disjoint<'_, T>,
    turns: Turns,
    tile: usize,
    len: usize,
) -> Vec<&'a mut [T]> {
    let start = |stretch| turns.before(tile, stretch) * len;
    // SAFETY: no stretch is in two tiles.
    (0..turns.count).map(|stretch| unsafe { data.part(start(stretch), len) }).collect()
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
        match (self, source.dtype) {
            (Self::Q8 { scales, values }, Dtype::Q8_0) => {
                let mut held = true;
                let places = blocks_of::<_, TILE_BLOCK>(values).zip(blocks_of::<_, LANES>(scales));
                for ((values, scales), bytes) in places.zip(bytes.as_chunks().0) {
                    let block = Small::read(bytes);
                    held &= block.is_sound();
                    scales[lane] = block.d;
                    put(values, lane, &block.values);
                }
                Some(held)
            }
            (Self::Q4K(blocks), Dtype::Q4_K) => Some(take_wide(blocks, lane, source, bytes)),
            (Self::Q5K(blocks), Dtype::Q5_K) => Some(take_wide(blocks, lane, source, bytes)),
            (Self::Q6K(blocks), Dtype::Q6_K) => Some(take_wide(blocks, lane, source, bytes)),
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
                    let mut quantised = [0; BLOCK];
                    // As in GGUF's Q8_0, the scale is rounded after the values are computed with
                    // it.
                    let scale = half::f16::from_f32(quantise(weights, &mut quantised));
                    held &= scale.is_finite();
                    scales[lane] = scale.to_bits();
                    put(values, lane, &quantised);
                }
            }
            // No conversion to these formats happens here.
            Self::Q4K(_) | Self::Q5K(_) | Self::Q6K(_) => held = false,
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

fn take_wide<B: kquants::Block>(
    blocks: &mut [&mut [B]],
    lane: usize,
    source: &Source<'_>,
    bytes: &[u8],
) -> bool {
    let mut held = true;
    let size = source.dtype.block().1;
    for (block, bytes) in
        blocks.iter_mut().flat_map(|one| one.iter_mut()).zip(bytes.chunks_exact(size))
    {
        let row = Wide::read(source.dtype, bytes);
        held &= row.is_sound();
        let Wide { d, min, scales, least, values } = &row;
        block.set(lane, &kquants::Row { d: *d, min: *min, scales, least, values });
    }
    held
}

impl Format {
    /// Returns true if weights of this dtype can be stored in this format: exactly, rounded, or
    /// unchanged.
    fn can_be_made_of(self, dtype: Dtype) -> bool {
        let same = |format, own| self == format && dtype == own;
        let known = matches!(
            dtype,
            Dtype::F32
                | Dtype::BF16
                | Dtype::F16
                | Dtype::Q8_0
                | Dtype::Q4_K
                | Dtype::Q5_K
                | Dtype::Q6_K
        );
        match self {
            Self::Q4K | Self::Q5K | Self::Q6K => {
                same(Self::Q4K, Dtype::Q4_K)
                    || same(Self::Q5K, Dtype::Q5_K)
                    || same(Self::Q6K, Dtype::Q6_K)
            }
            _ => known,
        }
    }

    /// Returns the matrix format with the longest blocks; among equal lengths, the one with the
    /// most weights. Vectors do not count, since they are f32 beside any format.
    pub fn coarsest(tensors: &[TensorInfo]) -> Self {
        Self::kept(stored(tensors)).0
    }

    /// Returns the average bytes of a weight of these tensors in memory, each stored in its default
    /// format.
    pub fn mean_width(tensors: &[TensorInfo]) -> f64 {
        Self::kept(stored(tensors)).1
    }

    /// Returns both the coarsest format and the mean width, for tensors of these dtypes and shapes.
    pub(crate) fn kept(tensors: impl Iterator<Item = (Dtype, Vec<usize>)>) -> (Self, f64) {
        let (mut bytes, mut all) = (0.0, 0.0);
        let mut matrices: Vec<(Self, f64)> = Vec::new();
        for (dtype, shape) in tensors {
            let format = Self::of(dtype);
            let elements: f64 = shape.iter().map(|n| *n as f64).product();
            (bytes, all) = (bytes + elements * format.width(), all + elements);
            match matrices.iter_mut().find(|(known, _)| *known == format) {
                _ if shape.len() < 2 => {}
                Some((_, count)) => *count += elements,
                None => matrices.push((format, elements)),
            }
        }
        let coarsest = matrices
            .into_iter()
            .max_by(|(a, of_a), (b, of_b)| a.unit().cmp(&b.unit()).then(of_a.total_cmp(of_b)));
        (
            coarsest.map_or(Self::F32, |(format, _)| format),
            if all > 0.0 { bytes / all } else { 0.0 },
        )
    }

    /// Returns the default storage format for weights of this dtype.
    pub(crate) fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::BF16 => Self::Bf16,
            Dtype::F16 => Self::F16,
            Dtype::Q8_0 => Self::Q8_0,
            Dtype::Q4_K => Self::Q4K,
            Dtype::Q5_K => Self::Q5K,
            Dtype::Q6_K => Self::Q6K,
            _ => Self::F32,
        }
    }
}

fn stored(tensors: &[TensorInfo]) -> impl Iterator<Item = (Dtype, Vec<usize>)> {
    tensors.iter().map(|tensor| (tensor.dtype, tensor.shape.clone()))
}

impl Source<'_> {
    /// Returns the bytes of a row.
    #[inline(always)]
    fn row(&self, row: usize, columns: usize) -> &[u8] {
        let (count, size) = self.dtype.block();
        let size = columns / count * size;
        &self.bytes[row * size..][..size]
    }

    /// Reads a row into f32; floats are exact. Unknown dtypes give zeros.
    #[inline(always)]
    pub(crate) fn read(&self, row: usize, out: &mut [f32]) {
        let bytes = self.row(row, out.len());
        match self.dtype {
            Dtype::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Dtype::BF16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            Dtype::F16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = half::f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Dtype::Q8_0 => {
                for (out, bytes) in out.chunks_exact_mut(BLOCK).zip(bytes.as_chunks().0) {
                    Small::read(bytes).numbers(out);
                }
            }
            Dtype::Q4_K | Dtype::Q5_K | Dtype::Q6_K => {
                let (count, size) = self.dtype.block();
                for (out, bytes) in out.chunks_exact_mut(count).zip(bytes.chunks_exact(size)) {
                    Wide::read(self.dtype, bytes).numbers(self.dtype, out);
                }
            }
            _ => out.fill(0.0),
        }
    }
}
