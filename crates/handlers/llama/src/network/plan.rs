//! Step plan: the rows, block tables and outputs of a step, the same for each rank.

use std::ops::Range;

use nsbridge_kernels::attention::Token;

use super::Chunk;
use crate::sample::Draws;

/// Position of a token in its sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) chunk: usize,
    pub(super) position: usize,
}

/// Plan of a step, the same for each rank.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: Vec<Row>,
    /// Block table of each chunk's sequence.
    pub(super) tables: Vec<Vec<u32>>,
    /// Rows whose logits are requested, ascending.
    pub(super) wanted: Vec<usize>,
    /// Block copies to do first.
    pub(super) copies: Vec<(u32, u32)>,
    /// Tokens to sample on the device, which then keeps the logits. A CPU does not sample here.
    pub(super) draws: Option<Draws>,
}

impl Step {
    pub(super) fn new(chunks: &[Chunk<'_>], copies: Vec<(u32, u32)>) -> Self {
        let (mut rows, mut wanted) = (Vec::new(), Vec::new());
        for (chunk, Chunk { table, tokens, logits }) in chunks.iter().enumerate() {
            rows.extend((0..tokens.len()).map(|i| Row { chunk, position: table.len() + i }));
            wanted.extend(rows.len() - logits..rows.len());
        }
        let tokens = chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect();
        let tables = chunks.iter().map(|chunk| chunk.table.blocks().to_vec()).collect();
        Self { tokens, rows, tables, wanted, copies, draws: None }
    }

    /// Returns the tokens by their block tables, so that sequences with a common prefix are
    /// neighbors.
    pub(super) fn by_table(&self) -> Vec<Token<'_>> {
        let mut chunks: Vec<_> = self.chunks().collect();
        chunks.sort_by_key(|(_, _, table)| *table);
        let tokens = chunks.into_iter().flat_map(|(rows, first, table)| {
            rows.zip(first..).map(move |(row, position)| Token { row, position, table })
        });
        tokens.collect()
    }

    /// Returns, for each chunk, its rows, the position of the first one, and the block table of its
    /// sequence.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (Range<usize>, usize, &[u32])> {
        let mut end = 0;
        self.rows.chunk_by(|a, b| a.chunk == b.chunk).map(move |rows| {
            let first = end;
            end += rows.len();
            (first..end, rows[0].position, &*self.tables[rows[0].chunk])
        })
    }
}
