//! Weights of a matrix in memory, by format.

use super::blocks::Buffer;
use crate::error::Error;
use crate::format::Format;
use crate::memory::AlignedBuffer;
use crate::rowwise::BLOCK;
use crate::simd::LANES;
use crate::{blocks32, kquants};

/// Weights, stored by interleaved tiles (see [`TileInterleave`](super::TileInterleave)).
#[derive(Debug)]
pub(super) enum Data {
    /// For each column, the weights of the 16 rows.
    F32(AlignedBuffer<f32>),
    /// For each two columns, the pairs of weights of the 16 rows, the first in the lower half.
    Bf16(AlignedBuffer<u32>),
    /// For each column, the weights of the 16 rows.
    F16(AlignedBuffer<u16>),
    /// For each block of 32 columns, the scales of the 16 rows; the values as in
    /// [`TILE_BLOCK`](crate::q8::TILE_BLOCK).
    Q8 {
        scales: AlignedBuffer<u16>,
        values: AlignedBuffer<i8>,
    },
    /// Blocks of 32 columns.
    Q4_0(AlignedBuffer<blocks32::Q4_0>),
    Q4_1(AlignedBuffer<blocks32::Q4_1>),
    Q5_0(AlignedBuffer<blocks32::Q5_0>),
    Q5_1(AlignedBuffer<blocks32::Q5_1>),
    Iq4Nl(AlignedBuffer<blocks32::Iq4Nl>),
    Mxfp4(AlignedBuffer<blocks32::Mxfp4>),
    /// Blocks of 256 columns.
    Q2K(AlignedBuffer<kquants::Q2>),
    Q3K(AlignedBuffer<kquants::Q3>),
    Q4K(AlignedBuffer<kquants::Q4>),
    Q5K(AlignedBuffer<kquants::Q5>),
    Q6K(AlignedBuffer<kquants::Q6>),
    Iq4Xs(AlignedBuffer<kquants::Iq4Xs>),
}

/// Finds the blocks of any type; `None` in other formats.
macro_rules! of_any_type {
    ($data:expr) => {
        Some(match $data {
            Self::F32(_) | Self::Bf16(_) | Self::F16(_) | Self::Q8 { .. } => return None,
            Self::Q4_0(blocks) => blocks,
            Self::Q4_1(blocks) => blocks,
            Self::Q5_0(blocks) => blocks,
            Self::Q5_1(blocks) => blocks,
            Self::Iq4Nl(blocks) => blocks,
            Self::Mxfp4(blocks) => blocks,
            Self::Q2K(blocks) => blocks,
            Self::Q3K(blocks) => blocks,
            Self::Q4K(blocks) => blocks,
            Self::Q5K(blocks) => blocks,
            Self::Q6K(blocks) => blocks,
            Self::Iq4Xs(blocks) => blocks,
        })
    };
}

impl Data {
    /// Allocates zeros for `padded` rows, whole tiles of them, of a format as it is [in
    /// memory](Format::in_memory).
    pub(super) fn zeroed(format: Format, padded: usize, columns: usize) -> Result<Self, Error> {
        let (count, tiles) = (padded * columns, padded / LANES);
        let (of_32, of_256) = (tiles * (columns / BLOCK), tiles * (columns / kquants::BLOCK));
        Ok(match format {
            Format::F32 => Self::F32(AlignedBuffer::zeroed(count)?),
            Format::Bf16 => Self::Bf16(AlignedBuffer::zeroed(count / 2)?),
            Format::F16 => Self::F16(AlignedBuffer::zeroed(count)?),
            Format::Q8_0 | Format::Q8_1 => {
                let scales = AlignedBuffer::zeroed(count / BLOCK)?;
                Self::Q8 { scales, values: AlignedBuffer::zeroed(count)? }
            }
            Format::Q4_0 => Self::Q4_0(AlignedBuffer::zeroed(of_32)?),
            Format::Q4_1 => Self::Q4_1(AlignedBuffer::zeroed(of_32)?),
            Format::Q5_0 => Self::Q5_0(AlignedBuffer::zeroed(of_32)?),
            Format::Q5_1 => Self::Q5_1(AlignedBuffer::zeroed(of_32)?),
            Format::Iq4Nl => Self::Iq4Nl(AlignedBuffer::zeroed(of_32)?),
            Format::Mxfp4 => Self::Mxfp4(AlignedBuffer::zeroed(of_32)?),
            Format::Q2K => Self::Q2K(AlignedBuffer::zeroed(of_256)?),
            Format::Q3K => Self::Q3K(AlignedBuffer::zeroed(of_256)?),
            Format::Q4K => Self::Q4K(AlignedBuffer::zeroed(of_256)?),
            Format::Q5K => Self::Q5K(AlignedBuffer::zeroed(of_256)?),
            Format::Q6K => Self::Q6K(AlignedBuffer::zeroed(of_256)?),
            Format::Iq4Xs => Self::Iq4Xs(AlignedBuffer::zeroed(of_256)?),
        })
    }

    /// Returns the blocks of a format that has a type of blocks.
    pub(super) fn blocks(&self) -> Option<&dyn Buffer> {
        of_any_type!(self)
    }

    /// Returns the blocks of a format that has a type of blocks.
    pub(super) fn blocks_mut(&mut self) -> Option<&mut dyn Buffer> {
        of_any_type!(self)
    }
}
