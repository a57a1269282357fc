//! Attention over pages, of all rows of a step.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::super::plan::Step;
use crate::kernel::attention::PAGE;

/// Where the rows of a step and what they look at lie.
pub(super) struct Places {
    /// Of each row, `[rows]`.
    pub(super) positions: Tensor,
    /// Where its keys and values go.
    slots: Tensor,
    chunks: Vec<Chunk>,
}

/// Rows of one sequence.
struct Chunk {
    rows: Range<usize>,
    /// The position of its first row.
    first: usize,
    /// Slots of all positions up to its last row's.
    context: Tensor,
}

impl Places {
    pub(super) fn new(step: &Step, device: &Device) -> Result<Self> {
        let slot = |table: &[u32], position: usize| {
            table[position / PAGE] * PAGE as u32 + (position % PAGE) as u32
        };
        let (mut positions, mut slots, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        for (rows, first, table) in step.chunks() {
            let end = first + rows.len();
            positions.extend((first..end).map(|position| position as u32));
            slots.extend((first..end).map(|position| slot(table, position)));
            let context: Vec<u32> = (0..end).map(|position| slot(table, position)).collect();
            chunks.push(Chunk { rows, first, context: Tensor::new(context, device)? });
        }
        let (positions, slots) = (Tensor::new(positions, device)?, Tensor::new(slots, device)?);
        Ok(Self { positions, slots, chunks })
    }

    /// Puts the rows' keys or values, `[rows, heads, dim]`, where they belong.
    pub(super) fn write(&self, rows: &Tensor, all: &Tensor) -> Result<()> {
        let slots = self.slots.reshape(((), 1, 1))?.broadcast_as(rows.shape())?.contiguous()?;
        all.scatter_set(&slots, rows, 0)
    }
}

/// What queries `[rows, heads, dim]` find in keys and values `[slots, key heads, dim]`.
///
/// A row sees the positions up to its own, and of a window its last ones only. Scores are scaled
/// by the root of `dim`, and their softmax is in f32.
pub(super) fn attend(
    queries: &Tensor,
    (keys, values): (&Tensor, &Tensor),
    places: &Places,
    window: Option<usize>,
) -> Result<Tensor> {
    let (_, heads, dim) = queries.dims3()?;
    let groups = heads / keys.dim(1)?;
    let scale = 1.0 / (dim as f64).sqrt();
    let mut attended = Vec::with_capacity(places.chunks.len());
    for Chunk { rows, first, context } in &places.chunks {
        let length = context.dim(0)?;
        // Heads first; a head of keys is looked at by a group of queries.
        let of = |all: &Tensor| {
            let own = all.index_select(context, 0)?.transpose(0, 1)?.unsqueeze(1)?;
            let key_heads = own.dim(0)?;
            own.broadcast_as((key_heads, groups, length, dim))?.reshape((heads, length, dim))
        };
        let own = queries.narrow(0, rows.start, rows.len())?.transpose(0, 1)?.contiguous()?;
        let scores = own.matmul(&of(keys)?.transpose(1, 2)?)?.to_dtype(DType::F32)?;
        let hidden = hidden(rows.len(), *first, length, window, queries.device())?;
        let shares = softmax_last_dim(&(scores * scale)?.broadcast_add(&hidden)?)?;
        let found = shares.to_dtype(queries.dtype())?.matmul(&of(values)?)?;
        attended.push(found.transpose(0, 1)?);
    }
    Tensor::cat(&attended, 0)
}

/// What is added to scores `[rows, length]`: nothing, or an infinity below.
fn hidden(
    rows: usize,
    first: usize,
    length: usize,
    window: Option<usize>,
    device: &Device,
) -> Result<Tensor> {
    let of = |row: usize| {
        let position = first + row;
        let from = window.map_or(0, |window| (position + 1).saturating_sub(window));
        (0..length).map(
            move |at| {
                if (from..=position).contains(&at) { 0.0 } else { f32::NEG_INFINITY }
            },
        )
    };
    Tensor::from_vec((0..rows).flat_map(of).collect(), (rows, length), device)
}
