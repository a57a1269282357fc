//! Attention over the paged KV cache, for all rows of a step.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::super::plan::Step;
use crate::network::part::Heads;
use nsbridge_kernels::attention::PAGE;

/// Positions and cache slots of a step's rows and of what they attend to.
pub(super) struct Places {
    /// Position of each row, `[rows]`.
    pub(super) positions: Tensor,
    /// Slot of each row's keys and values, repeated for each number: `[rows, key heads, dim]`.
    slots: Tensor,
    chunks: Vec<Chunk>,
}

/// Rows of one sequence.
struct Chunk {
    rows: Range<usize>,
    /// Slots of all positions up to that of the last row.
    context: Tensor,
    /// Attention masks by window, to be added to scores; no entry where each row sees all.
    hidden: HashMap<Option<usize>, Tensor>,
}

impl Places {
    /// Prepares a step on `heads`. `windows` are the windows of the layers.
    pub(super) fn new(
        step: &Step,
        heads: Heads,
        windows: &[Option<usize>],
        device: &Device,
    ) -> Result<Self> {
        let slot = |table: &[u32], position: usize| {
            table[position / PAGE] * PAGE as u32 + (position % PAGE) as u32
        };
        let (mut positions, mut slots, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        for (rows, first, table) in step.chunks() {
            let end = first + rows.len();
            positions.extend((first..end).map(|position| position as u32));
            slots.extend((first..end).map(|position| slot(table, position)));
            let mut hidden = HashMap::new();
            for window in windows {
                if !hidden.contains_key(window)
                    && let Some(scores) = hidden_from(rows.len(), first, *window, device)?
                {
                    hidden.insert(*window, scores);
                }
            }
            let context: Vec<u32> = (0..end).map(|position| slot(table, position)).collect();
            chunks.push(Chunk { rows, context: Tensor::new(context, device)?, hidden });
        }
        let shape = (positions.len(), heads.keys, heads.dim);
        let slots = Tensor::new(slots, device)?.reshape(((), 1, 1))?;
        Ok(Self {
            positions: Tensor::new(positions, device)?,
            slots: slots.broadcast_as(shape)?.contiguous()?,
            chunks,
        })
    }

    /// Writes the keys or values of the rows, `[rows, key heads, dim]`, to their slots.
    pub(super) fn write(&self, rows: &Tensor, all: &Tensor) -> Result<()> {
        all.scatter_set(&self.slots, &rows.to_dtype(all.dtype())?, 0)
    }

    /// Computes attention of queries `[rows, heads, dim]` over keys and values `[slots, key heads,
    /// dim]`.
    ///
    /// A row sees the positions up to its own, or just the last ones if there is a window. Scores
    /// are divided by the square root of `dim`, and their softmax is in f32.
    pub(super) fn attend(
        &self,
        queries: &Tensor,
        (keys, values): (&Tensor, &Tensor),
        window: Option<usize>,
    ) -> Result<Tensor> {
        let (_, heads, dim) = queries.dims3()?;
        let key_heads = keys.dim(1)?;
        let scale = 1.0 / (dim as f64).sqrt();
        let mut attended = Vec::with_capacity(self.chunks.len());
        for Chunk { rows, context, hidden } in &self.chunks {
            let (count, length) = (rows.len(), context.dim(0)?);
            // Heads first; the rows of a group of query heads share one key head.
            let of = |all: &Tensor| {
                let own = all.index_select(context, 0)?.to_dtype(queries.dtype())?;
                own.transpose(0, 1)?.contiguous()
            };
            let own = queries.narrow(0, rows.start, count)?.transpose(0, 1)?.contiguous()?;
            let own = own.reshape((key_heads, heads / key_heads * count, dim))?;
            let scores = own.matmul(&of(keys)?.transpose(1, 2)?)?.to_dtype(DType::F32)?;
            let mut scores = (scores * scale)?;
            if let Some(hidden) = hidden.get(&window) {
                let by_row = scores.reshape((heads, count, length))?.broadcast_add(hidden)?;
                scores = by_row.reshape(scores.shape())?;
            }
            let found =
                softmax_last_dim(&scores)?.to_dtype(queries.dtype())?.matmul(&of(values)?)?;
            attended.push(found.reshape((heads, count, dim))?.transpose(0, 1)?);
        }
        Tensor::cat(&attended, 0)
    }
}

/// Returns the mask `[rows, length]` for rows that begin at position `first`: 0 where a position is
/// visible, else minus infinity. Returns `None` if everything is visible.
fn hidden_from(
    rows: usize,
    first: usize,
    window: Option<usize>,
    device: &Device,
) -> Result<Option<Tensor>> {
    let length = first + rows;
    let seen = |row: usize| {
        let position = first + row;
        let from = window.map_or(0, |window| (position + 1).saturating_sub(window));
        from..=position
    };
    if rows == 1 && *seen(0).start() == 0 {
        return Ok(None);
    }
    let of = |row: usize| {
        let seen = seen(row);
        (0..length).map(move |at| if seen.contains(&at) { 0.0 } else { f32::NEG_INFINITY })
    };
    Tensor::from_vec((0..rows).flat_map(of).collect(), (rows, length), device).map(Some)
}
