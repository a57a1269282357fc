//! What a step is to run, the same for each rank.

use std::ops::Range;

use super::Chunk;

/// A token's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) chunk: usize,
    pub(super) position: usize,
}

/// What is to be run: the same for each rank.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: Vec<Row>,
    /// Of each chunk, the blocks of its sequence.
    pub(super) tables: Vec<Vec<u32>>,
    /// Rows whose logits are wanted, ascending.
    pub(super) wanted: Vec<usize>,
    /// Blocks to be copied first.
    pub(super) copies: Vec<(u32, u32)>,
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
        Self { tokens, rows, tables, wanted, copies }
    }

    /// Of each chunk its rows, the position of the first, and the blocks of its sequence.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (Range<usize>, usize, &[u32])> {
        let mut end = 0;
        self.rows.chunk_by(|a, b| a.chunk == b.chunk).map(move |rows| {
            let first = end;
            end += rows.len();
            (first..end, rows[0].position, &*self.tables[rows[0].chunk])
        })
    }
}
