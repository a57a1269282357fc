//! One reply while it grows: from logits to tokens, and from tokens to text.

use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{Error, FinishReason, Result, TextPiece, TokenLogprob};

use crate::detokenise::TextStream;
use crate::request::Asked;
use crate::text::Text;
use crate::{History, Noise, Scratch, logprobs, sample};

/// A reply and what it goes on from.
pub(crate) struct Reply {
    words: Arc<Text>,
    vocab_size: usize,
    /// Prompt and reply.
    tokens: Vec<u32>,
    /// How many of them are the prompt.
    prompt: usize,
    /// How many there may be.
    room: usize,
    asked: Asked,
    history: History,
    noise: Noise,
    text: TextStream,
}

impl Reply {
    /// # Errors
    ///
    /// The prompt leaves no room in the context.
    pub(crate) fn new(
        words: Arc<Text>,
        vocab_size: usize,
        context: usize,
        prompt: Vec<u32>,
        asked: Asked,
        seed: u64,
    ) -> Result<Self> {
        if prompt.len() >= context {
            return Err(Error::bad_input(format!(
                "the prompt has {} tokens, which leaves no room in this model's context of {context}",
                prompt.len()
            )));
        }
        Ok(Self {
            words,
            vocab_size,
            prompt: prompt.len(),
            room: prompt.len().saturating_add(asked.max_tokens).min(context),
            history: History::new(&prompt),
            noise: Noise::new(seed, &prompt),
            text: TextStream::new(asked.stops.clone()),
            asked,
            tokens: prompt,
        })
    }

    /// The prompt's tokens and the reply's so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens the reply has.
    pub(crate) fn made(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// The most tokens that the reply can have.
    pub(crate) fn longest(&self) -> usize {
        self.room - self.prompt
    }

    /// Takes over a token that an earlier attempt made; why the reply has ended, if it has.
    ///
    /// # Errors
    ///
    /// The token cannot be this model's.
    pub(crate) fn take_resumed(&mut self, token: u32) -> Result<Option<FinishReason>> {
        if token as usize >= self.vocab_size {
            return Err(Error::bad_input("the resumed pieces are not of this model's making"));
        }
        Ok(self.take(token).1)
    }

    /// Chooses the next token; gives its piece and, if it is the last one, why.
    ///
    /// # Errors
    ///
    /// The logits leave no token to choose.
    pub(crate) fn next(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(TextPiece, Option<FinishReason>)> {
        let index = self.made();
        let sampling = &self.asked.sampling;
        let token = sample(logits, &self.history, sampling, self.noise, index, scratch)
            .ok_or_else(|| Error::retry("the model's logits leave no token to choose"))?;
        let (mut piece, ended) = self.take(token);
        self.tell_logprobs(logits, &mut piece, scratch);
        Ok((piece, ended))
    }

    /// Adds the log-probabilities that were asked for.
    fn tell_logprobs(&self, logits: &[f32], piece: &mut TextPiece, scratch: &mut Scratch) {
        let Some(top) = self.asked.logprobs else { return };
        let Some(told) = logprobs(logits, piece.token, top, scratch) else { return };
        let each = |(token, logprob)| TokenLogprob { token, logprob };
        piece.logprob = Some(told.chosen);
        piece.top_logprobs = told.top.into_iter().map(each).collect();
    }

    /// Adds a token.
    fn take(&mut self, token: u32) -> (TextPiece, Option<FinishReason>) {
        self.tokens.push(token);
        self.history.push(token);
        let ended = self.asked.ends(token);
        let full = self.tokens.len() == self.room;
        let bytes = if ended { &[] } else { self.words.bytes(token) };
        let (text, met) = self.text.push(bytes, ended || full);
        let reason = match (met, ended, full) {
            (true, ..) => Some(FinishReason::StopText),
            (_, true, _) => Some(FinishReason::Stop),
            (_, _, true) => Some(FinishReason::Length),
            _ => None,
        };
        (TextPiece { token, text, ..TextPiece::default() }, reason)
    }
}

impl fmt::Debug for Reply {
    /// Leaves out the tokens, which are text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("prompt", &self.prompt).finish_non_exhaustive()
    }
}
