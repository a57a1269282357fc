//! One reply while it grows: from logits to tokens, and from tokens to text.

use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{Error, FinishReason, Result, TextPiece, TokenLogprob};

use crate::detokenise::TextStream;
use crate::grammar::Grammar;
use crate::request::Asked;
use crate::text::Text;
use crate::{History, Noise, Sampling, Scratch, logprobs, sample};

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
    /// What the text is held to.
    grammar: Option<Grammar>,
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
            grammar: None,
        })
    }

    /// Holds the text to a grammar, from its first token on.
    pub(crate) fn hold_to(&mut self, grammar: Grammar) {
        self.grammar = Some(grammar);
    }

    /// Whether some token may be the first, whatever the model thinks of them.
    ///
    /// # Errors
    ///
    /// None may.
    pub(crate) fn check_first(&mut self) -> Result<()> {
        let logits = vec![0.0; self.vocab_size];
        self.choose(&logits, &mut Scratch::default()).map(drop)
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
    /// The token cannot be this request's.
    pub(crate) fn take_resumed(&mut self, token: u32) -> Result<Option<FinishReason>> {
        let known = (token as usize) < self.vocab_size;
        if !known || !self.allows(token)? {
            return Err(Error::bad_input("the resumed pieces are not of this model's making"));
        }
        Ok(self.take(token)?.1)
    }

    /// Chooses the next token; gives its piece and, if it is the last one, why.
    ///
    /// # Errors
    ///
    /// The logits leave no token to choose, or the grammar does.
    pub(crate) fn next(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(TextPiece, Option<FinishReason>)> {
        let token = self.choose(logits, scratch)?;
        let (mut piece, ended) = self.take(token)?;
        self.tell_logprobs(logits, &mut piece, scratch);
        Ok((piece, ended))
    }

    fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) -> Result<u32> {
        let index = self.made();
        let Self { asked, history, noise, grammar, .. } = self;
        let sampling = &asked.sampling;
        let Some(grammar) = grammar else {
            let token = sample(logits, history, sampling, None, *noise, index, scratch);
            return token.ok_or_else(no_logits);
        };
        let allowed = Some(grammar.allowed(&sampling.ends)?);
        let mut choice =
            |sampling: &_| sample(logits, history, sampling, allowed, *noise, index, scratch);
        choice(sampling).ok_or_else(|| match choice(&without_bans(sampling)) {
            Some(_) => banned(sampling, index),
            None => no_logits(),
        })
    }

    /// Whether the grammar allows this token next.
    fn allows(&mut self, token: u32) -> Result<bool> {
        let Some(grammar) = &mut self.grammar else { return Ok(true) };
        Ok(grammar.allowed(&self.asked.sampling.ends)?.has(token))
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
    fn take(&mut self, token: u32) -> Result<(TextPiece, Option<FinishReason>)> {
        self.tokens.push(token);
        self.history.push(token);
        let ended = self.asked.ends(token);
        // A text that nothing may follow needs no end token.
        let complete = match &mut self.grammar {
            Some(grammar) if !ended => grammar.take(token)?,
            _ => ended,
        };
        let full = self.tokens.len() == self.room;
        let bytes = if ended { &[] } else { self.words.bytes(token) };
        let (text, met) = self.text.push(bytes, complete || full);
        let reason = match (met, complete, full) {
            (true, ..) => Some(FinishReason::StopText),
            (_, true, _) => Some(FinishReason::Stop),
            (_, _, true) => Some(FinishReason::Length),
            _ => None,
        };
        Ok((TextPiece { token, text, ..TextPiece::default() }, reason))
    }
}

impl fmt::Debug for Reply {
    /// Leaves out the tokens, which are text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("prompt", &self.prompt).finish_non_exhaustive()
    }
}

fn no_logits() -> Error {
    Error::retry("the model's logits leave no token to choose")
}

fn without_bans(sampling: &Sampling) -> Sampling {
    let (banned, banned_sequences) = (Vec::new(), Vec::new());
    Sampling { banned, banned_sequences, min_tokens: 0, ..sampling.clone() }
}

/// The error where every token that the grammar allows next is banned, at place `index`.
fn banned(sampling: &Sampling, index: usize) -> Error {
    let fields: Vec<&str> = [
        ("`bad_token_ids`", !sampling.banned.is_empty()),
        ("`bad_token_sequences`", !sampling.banned_sequences.is_empty()),
        ("`min_tokens`", index < sampling.min_tokens),
    ]
    .into_iter()
    .filter_map(|(field, given)| given.then_some(field))
    .collect();
    let fields = fields.join(" and ");
    Error::bad_input(format!("{fields} leave no token to choose that `response_format` allows"))
}
