//! From a checkpoint's rows to tiles: a tile at a time, on all threads.

#![expect(unsafe_code, reason = "threads fill tiles that do not overlap")]

use std::sync::{Mutex, PoisonError};

use nsbridge_handler::Dtype;

use super::{Data, Matrix};
use crate::LoadError;
use crate::kernel::q8::TILE_BLOCK;
use crate::kernel::row::{BLOCK, quantise};
use crate::kernel::simd::Simd;
use crate::kernel::{LANES, Tier, Work};
use crate::pool::Pool;
use crate::share::Disjoint;

/// A tensor whose rows a matrix is made of.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    /// Little-endian, row by row.
    pub(crate) bytes: &'a [u8],
}

impl Matrix {
    /// Fills the matrix; `place` says which row of which source a row is, if any.
    ///
    /// # Errors
    ///
    /// A dtype that is not a float's, or a number that the format cannot hold: Q8_0 and f16 hold no
    /// infinities.
    pub(crate) fn pack(
        &mut self,
        (pool, tier): (&mut Pool, Tier),
        sources: &[Source<'_>],
        place: impl Fn(usize) -> Option<(usize, usize)> + Sync,
    ) -> Result<(), LoadError> {
        for source in sources {
            if !matches!(source.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
                let (field, found) =
                    (format!("the dtype of {}", source.name), source.dtype.to_string());
                return Err(LoadError::unsupported(field, found, "F32, BF16 or F16"));
            }
        }
        let (columns, tiles) = (self.columns, self.tiles());
        let data = match &mut self.data {
            Data::F32(data) => Tiles::F32(Disjoint::new(data)),
            Data::Bf16(data) => Tiles::Bf16(Disjoint::new(data)),
            Data::F16(data) => Tiles::F16(Disjoint::new(data)),
            Data::Q8 { scales, values } => {
                Tiles::Q8 { scales: Disjoint::new(scales), values: Disjoint::new(values) }
            }
        };
        // The first row that cannot be held, whichever thread found it.
        let refused = Mutex::new(None::<usize>);
        pool.run(tiles, &|number| {
            let mut broken = None;
            tier.run(Pack {
                // SAFETY: each tile is one part's.
                tile: unsafe { data.tile(number, columns) },
                number,
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

/// A matrix's numbers, which threads share out by tiles.
enum Tiles<'a> {
    F32(Disjoint<'a, f32>),
    Bf16(Disjoint<'a, u32>),
    F16(Disjoint<'a, u16>),
    Q8 { scales: Disjoint<'a, u16>, values: Disjoint<'a, i8> },
}

enum Tile<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [u32]),
    F16(&'a mut [u16]),
    Q8 { scales: &'a mut [u16], values: &'a mut [i8] },
}

impl Tiles<'_> {
    /// # Safety
    ///
    /// A tile must not be taken while it is lent.
    unsafe fn tile(&self, tile: usize, columns: usize) -> Tile<'_> {
        let part = |width: usize| (tile * width, width);
        // SAFETY: tiles do not overlap, and the caller takes each but once at a time.
        unsafe {
            match self {
                Self::F32(data) => {
                    let (start, len) = part(columns * LANES);
                    Tile::F32(data.part(start, len))
                }
                Self::Bf16(data) => {
                    let (start, len) = part(columns / 2 * LANES);
                    Tile::Bf16(data.part(start, len))
                }
                Self::F16(data) => {
                    let (start, len) = part(columns * LANES);
                    Tile::F16(data.part(start, len))
                }
                Self::Q8 { scales, values } => {
                    let (start, len) = part(columns * LANES);
                    let values = values.part(start, len);
                    let (start, len) = part(columns / BLOCK * LANES);
                    Tile::Q8 { scales: scales.part(start, len), values }
                }
            }
        }
    }
}

/// Fills one tile.
struct Pack<'a, P> {
    tile: Tile<'a>,
    number: usize,
    sources: &'a [Source<'a>],
    place: &'a P,
    /// Room for a row in f32.
    row: &'a mut [f32],
    /// The first row with a number that the format cannot hold.
    broken: &'a mut Option<usize>,
}

impl<P: Fn(usize) -> Option<(usize, usize)>> Work for Pack<'_, P> {
    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        for lane in 0..LANES {
            let row = self.number * LANES + lane;
            let Some((source, from)) = (self.place)(row) else { continue };
            self.sources[source].read(from, self.row);
            if !self.tile.set(lane, self.row) {
                self.broken.get_or_insert(row);
            }
        }
    }
}

impl Tile<'_> {
    /// Sets one row of the sixteen, and says whether the format can hold it.
    #[inline(always)]
    fn set(&mut self, lane: usize, weights: &[f32]) -> bool {
        let mut held = true;
        match self {
            Self::F32(tile) => {
                for (weight, column) in weights.iter().zip(tile.as_chunks_mut::<LANES>().0) {
                    column[lane] = *weight;
                }
            }
            Self::Bf16(tile) => {
                let pairs = weights.as_chunks::<2>().0.iter().zip(tile.as_chunks_mut::<LANES>().0);
                for (both, pair) in pairs {
                    let [low, high] =
                        both.map(|weight| u32::from(half::bf16::from_f32(weight).to_bits()));
                    pair[lane] = low | high << 16;
                }
            }
            Self::F16(tile) => {
                for (weight, column) in weights.iter().zip(tile.as_chunks_mut::<LANES>().0) {
                    let weight = half::f16::from_f32(*weight);
                    held &= weight.is_finite();
                    column[lane] = weight.to_bits();
                }
            }
            Self::Q8 { scales, values } => {
                let scales = scales.as_chunks_mut::<LANES>().0.iter_mut();
                let blocks = values.as_chunks_mut::<TILE_BLOCK>().0.iter_mut().zip(scales);
                for (weights, (values, scales)) in weights.as_chunks::<BLOCK>().0.iter().zip(blocks)
                {
                    let mut quantised = [0; BLOCK];
                    // As GGUF's Q8_0: the scale is rounded after the values were made with it.
                    let scale = half::f16::from_f32(quantise(weights, &mut quantised));
                    held &= scale.is_finite();
                    scales[lane] = scale.to_bits();
                    let fours = values.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut();
                    for (four, values) in quantised.as_chunks::<4>().0.iter().zip(fours) {
                        values[4 * lane..4 * lane + 4].copy_from_slice(four);
                    }
                }
            }
        }
        held
    }
}

impl Source<'_> {
    /// A row in f32, exactly. What is no float is zeros.
    #[inline(always)]
    pub(crate) fn read(&self, row: usize, out: &mut [f32]) {
        let size = if self.dtype == Dtype::F32 { 4 } else { 2 };
        let bytes = &self.bytes[row * out.len() * size..][..out.len() * size];
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
            _ => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = half::f16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }
}
