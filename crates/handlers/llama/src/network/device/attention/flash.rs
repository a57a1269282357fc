//! Attention by the kernels of FlashAttention-2 (Dao, arXiv:2307.08691), which read the pages
//! through block tables.

#[cfg(feature = "flash-attn")]
use candle_core::{DType, Device, Result, Tensor};

use super::super::super::plan::Step;
#[cfg(feature = "flash-attn")]
use crate::network::part::Heads;
use nsbridge_kernels::attention::PAGE;

/// Sequences of a step, in the kernels' input layout.
#[cfg(feature = "flash-attn")]
pub(super) struct Pages {
    told: Told,
    /// `[sequences + 1]`.
    rows: Tensor,
    lengths: Tensor,
    /// `[sequences, most blocks]`.
    tables: Tensor,
}

/// Kernel inputs, before they are copied to the device.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// Cumulative row counts: the rows before each sequence, then the total. `lengths` has the
    /// cumulative position counts.
    rows: Vec<u32>,
    lengths: Vec<u32>,
    /// Block table of each sequence, padded with zeros to the longest.
    tables: Vec<u32>,
    most_rows: usize,
    most_positions: usize,
}

impl Told {
    fn new(step: &Step) -> Self {
        let most = |of: &dyn Fn(usize, usize) -> usize| {
            step.chunks().map(|(rows, first, _)| of(rows.len(), first)).max().unwrap_or(0)
        };
        let most_rows = most(&|rows, _| rows);
        let most_positions = most(&|rows, first| first + rows);
        let (mut rows, mut lengths, mut tables) = (vec![0], vec![0], Vec::new());
        for (own, first, table) in step.chunks() {
            let length = first + own.len();
            lengths.push(lengths[lengths.len() - 1] + length as u32);
            rows.push(own.end as u32);
            tables.extend(&table[..length.div_ceil(PAGE)]);
            let whole = (rows.len() - 1) * most_positions.div_ceil(PAGE);
            tables.resize(whole, 0);
        }
        Self { rows, lengths, tables, most_rows, most_positions }
    }
}

#[cfg(feature = "flash-attn")]
impl Pages {
    /// Returns `None` where the kernels do not apply: without a GPU, in f32, or if the head
    /// dimension is not a multiple of eight.
    pub(super) fn if_possible(
        step: &Step,
        heads: Heads,
        (kv, device): (DType, &Device),
    ) -> Result<Option<Self>> {
        let known = matches!(kv, DType::BF16 | DType::F16) && heads.dim.is_multiple_of(8);
        if !device.is_cuda() || !known {
            return Ok(None);
        }
        let told = Told::new(step);
        let sequences = told.rows.len() - 1;
        Ok(Some(Self {
            rows: Tensor::new(told.rows.as_slice(), device)?,
            lengths: Tensor::new(told.lengths.as_slice(), device)?,
            tables: Tensor::new(told.tables.as_slice(), device)?.reshape((sequences, ()))?,
            told,
        }))
    }

    /// Computes the same as [`Places::attend`](super::Places::attend), without scores in memory.
    pub(super) fn attend(
        &self,
        queries: &Tensor,
        (keys, values): (&Tensor, &Tensor),
        window: Option<usize>,
    ) -> Result<Tensor> {
        let (_, heads, dim) = keys.dims3()?;
        let pages = |all: &Tensor| all.reshape(((), PAGE, heads, dim));
        let found = candle_flash_attn::flash_attn_varlen_paged_windowed(
            &queries.to_dtype(keys.dtype())?,
            &pages(keys)?,
            &pages(values)?,
            &self.rows,
            &self.lengths,
            &self.tables,
            None,
            self.told.most_rows,
            self.told.most_positions,
            1.0 / (dim as f32).sqrt(),
            // Number of visible positions to the left of a row's own.
            window.map(|window| window - 1),
            Some(0),
            PAGE,
            None,
        )?;
        found.to_dtype(queries.dtype())
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_kernels::attention::PAGE;

    use super::Told;
    use crate::BlockTable;
    use crate::kv::KvCacheManager;
    use crate::network::Chunk;
    use crate::network::plan::Step;

    #[test]
    fn sequences_are_told_by_sums_and_tables_of_one_width() {
        let mut cache: KvCacheManager = KvCacheManager::new(8).unwrap();
        let (mut long, mut short) = (BlockTable::default(), BlockTable::default());
        assert!(cache.reserve(&mut long, PAGE + 3) && cache.reserve(&mut short, 2));
        long.grow(PAGE + 1);
        let blocks = [long.blocks(), short.blocks()].concat();
        let chunks = [
            Chunk { table: &mut long, tokens: &[1, 2], logits: 1 },
            Chunk { table: &mut short, tokens: &[3, 4], logits: 1 },
        ];
        let told = Told::new(&Step::new(&chunks, Vec::new()));
        let right = Told {
            rows: vec![0, 2, 4],
            lengths: vec![0, PAGE as u32 + 3, PAGE as u32 + 5],
            tables: vec![blocks[0], blocks[1], blocks[2], 0],
            most_rows: 2,
            most_positions: PAGE + 3,
        };
        assert_eq!(told, right);
    }
}
