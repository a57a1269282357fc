//! Pieces of a request's prompt, which come before those of its reply.
//!
//! They echo the prompt's text, have the log-probabilities of its tokens, or both. The
//! log-probability of a token comes from the logits of the row before it. The rows are computed and
//! read chunk by chunk, so the logits of a step are at most those of [`most`](PromptPieces::new)
//! rows, and results are kept only until their pieces have left. Rows whose keys and values come
//! from the prefix cache have no logits, so a prompt takes no row from the cache that is still
//! needed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{Error, Result, TextPiece};

use crate::detokenize::TextStream;
use crate::reply::write_logprobs;
use crate::request::RequestParameters;
use crate::sample::{Logprobs, Scratch, logprobs, rank_of};
use crate::tokenizer::ChatTokenizer;

/// Pieces of a prompt: one for each of its tokens.
pub(crate) struct PromptPieces {
    words: Arc<ChatTokenizer>,
    /// Number of tokens of the prompt, at least one.
    len: usize,
    /// Text of the pieces, if the prompt is echoed.
    text: Option<TextStream>,
    /// Number of most likely tokens of each piece, if it has log-probabilities.
    top: Option<usize>,
    /// True if each token has its text by itself.
    texts: bool,
    /// Maximum number of rows of logits in a step.
    most: usize,
    /// Number of pieces delivered so far.
    told: usize,
    /// First token whose log-probability is still to be computed, at least 1; the length if none
    /// is.
    next: usize,
    /// Results of the tokens before `next` whose pieces have not been delivered.
    scores: VecDeque<Score>,
}

/// Log-probabilities at a token's position.
struct Score {
    logprobs: Logprobs,
    rank: Option<u32>,
}

impl PromptPieces {
    /// Creates the pieces of a prompt of `len` tokens, as the request asks for them. A step computes
    /// at most `most` rows of logits for them.
    pub(crate) fn new(
        words: Arc<ChatTokenizer>,
        len: usize,
        parameters: &RequestParameters,
        most: usize,
    ) -> Self {
        let (top, texts) = (parameters.prompt_logprobs, parameters.token_texts);
        let text = parameters.echo.then(TextStream::plain);
        let next = if top.is_some() { 1 } else { len };
        Self { words, len, text, top, texts, most, told: 0, next, scores: VecDeque::new() }
    }

    /// Returns the number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns true until all pieces are delivered.
    pub(crate) fn remain(&self) -> bool {
        self.told < self.len
    }

    /// Returns the first row whose logits are needed, or `None` if no further one is.
    pub(crate) fn first_row(&self) -> Option<usize> {
        (self.next < self.len).then(|| self.next - 1)
    }

    /// Returns the maximum number of rows of a step while logits are needed.
    pub(crate) fn scored(&self) -> Option<usize> {
        self.first_row().map(|_| self.most)
    }

    /// Returns how many rows of logits are needed of the first `run` tokens of the prompt.
    pub(crate) fn rows(&self, run: usize) -> usize {
        (run + 1).min(self.len).saturating_sub(self.next)
    }

    /// Reads the next rows of logits. `tokens` are those of the prompt.
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
        let Some(top) = self.top else { return Ok(()) };
        for (logits, &token) in rows.iter().zip(&tokens[self.next..]) {
            let logprobs = logprobs(logits, token, top, scratch)
                .ok_or_else(|| Error::retry("the model's logits of the prompt are no numbers"))?;
            let rank = rank_of(logits, token);
            self.scores.push_back(Score { logprobs, rank });
            self.next += 1;
        }
        Ok(())
    }

    /// Returns the next piece, if it is available. `tokens` are those of the prompt.
    pub(crate) fn next_piece(&mut self, tokens: &[u32]) -> Option<TextPiece> {
        let token = *tokens.get(self.told)?;
        let scored = self.told > 0 && self.top.is_some();
        let score = if scored { Some(self.scores.pop_front()?) } else { None };
        let mut piece = self.piece(token);
        if self.texts {
            piece.token_text = Some(self.words.token_text(token));
        }
        if let Some(Score { logprobs, rank }) = score {
            write_logprobs(logprobs, &mut piece, self.texts.then_some(&*self.words));
            // JSON has no infinite number.
            piece.logprob = piece.logprob.filter(|logprob| logprob.is_finite());
            piece.rank = rank;
        }
        Some(piece)
    }

    /// Takes over a piece of an earlier attempt. Returns false if it is not the prompt's next one.
    pub(crate) fn take_resumed(&mut self, tokens: &[u32], piece: &TextPiece) -> bool {
        let Some(&token) = tokens.get(self.told) else { return false };
        let own = self.piece(token);
        self.next = self.next.max(self.told);
        piece.prompt && (own.token, own.text) == (piece.token, piece.text.clone())
    }

    /// Counts a piece as delivered and returns it, without log-probabilities.
    fn piece(&mut self, token: u32) -> TextPiece {
        self.told += 1;
        let last = self.told == self.len;
        let text = match &mut self.text {
            Some(text) => text.push(self.words.bytes(token), last).0,
            None => String::new(),
        };
        TextPiece { prompt: true, ..TextPiece::new(token, text) }
    }
}

impl fmt::Debug for PromptPieces {
    /// Omits the text of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptPieces").field("len", &self.len).finish_non_exhaustive()
    }
}
