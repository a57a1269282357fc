//! Reader of a prompt's rows: of logits for pieces of the prompt, or of hidden states for a vector.

use nsbridge_handler::{Result, TextPiece};

use super::pool::Pool;
use super::prompt_pieces::PromptPieces;
use crate::sample::Scratch;

/// Reader of the rows of a request's prompt. The request has one sequence.
#[derive(Debug)]
pub(crate) enum PromptRows {
    /// Pieces of the prompt before those of its reply.
    Pieces(PromptPieces),
    /// Vector of the prompt, which has no reply.
    Pool(Pool),
}

impl PromptRows {
    /// Returns the number of pieces.
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Self::Pieces(pieces) => pieces.len(),
            Self::Pool(_) => 0,
        }
    }

    /// Returns true until all pieces are delivered, or the vector is.
    pub(crate) fn remain(&self) -> bool {
        match self {
            Self::Pieces(pieces) => pieces.remain(),
            Self::Pool(pool) => pool.first_row().is_some(),
        }
    }

    /// Returns true if the last token of the prompt must run, although no reply follows it.
    pub(crate) fn read_last(&self) -> bool {
        matches!(self, Self::Pool(_))
    }

    /// Returns the first row that is still needed, or `None` if no further one is.
    pub(crate) fn first_row(&self) -> Option<usize> {
        match self {
            Self::Pieces(pieces) => pieces.first_row(),
            Self::Pool(pool) => pool.first_row(),
        }
    }

    /// Returns how many rows are needed of the first `run` tokens of the prompt.
    pub(crate) fn rows(&self, run: usize) -> usize {
        match self {
            Self::Pieces(pieces) => pieces.rows(run),
            Self::Pool(pool) => pool.rows(run),
        }
    }

    /// Returns the maximum number of rows of logits in a step while they are needed. Rows of hidden
    /// states take no product with the vocabulary.
    pub(crate) fn scored(&self) -> Option<usize> {
        match self {
            Self::Pieces(pieces) => pieces.scored(),
            Self::Pool(_) => None,
        }
    }

    /// Reads the next rows. `tokens` are those of the prompt.
    ///
    /// # Errors
    ///
    /// Returns an error if a row has no numbers.
    pub(crate) fn read(
        &mut self,
        tokens: &[u32],
        rows: &[&[f32]],
        scratch: &mut Scratch,
    ) -> Result<()> {
        match self {
            Self::Pieces(pieces) => pieces.read(tokens, rows, scratch),
            Self::Pool(pool) => pool.read(rows),
        }
    }

    /// Returns the next piece, if it is available.
    pub(crate) fn next_piece(&mut self, tokens: &[u32]) -> Option<TextPiece> {
        match self {
            Self::Pieces(pieces) => pieces.next_piece(tokens),
            Self::Pool(_) => None,
        }
    }

    /// Takes over a piece of an earlier attempt. Returns false if it is not the prompt's next one.
    pub(crate) fn take_resumed(&mut self, tokens: &[u32], piece: &TextPiece) -> bool {
        match self {
            Self::Pieces(pieces) => pieces.take_resumed(tokens, piece),
            Self::Pool(_) => false,
        }
    }
}
