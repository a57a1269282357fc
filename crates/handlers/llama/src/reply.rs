//! Reply (sequence) in progress: samples tokens from logits and turns them into text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{Error, FinishReason, Result, TextPiece, TokenLogprob};

use crate::detokenize::TextStream;
use crate::grammar::{Grammar, Lookahead};
use crate::request::RequestParameters;
use crate::sample::{
    Draws, History, LogitsRow, Logprobs, Noise, Sampling, Scratch, Sequences, TokenSet, Wanted,
};
use crate::tokenizer::{ChatTokenizer, no_room, no_row};

/// Reply with its prompt and its draft.
pub(crate) struct Reply {
    words: Arc<ChatTokenizer>,
    vocab_size: usize,
    /// Tokens of the prompt, then of the reply, then of the draft.
    tokens: Vec<u32>,
    /// Number of tokens of the prompt.
    prompt: usize,
    /// Number of tokens of the draft, a guess at the reply's continuation.
    drafted: usize,
    /// Maximum number of tokens of prompt and reply together.
    room: usize,
    parameters: Arc<RequestParameters>,
    /// Counts of all tokens, including those of the draft.
    history: History,
    noise: Noise,
    text: TextStream,
    /// Grammar that constrains the text.
    grammar: Option<Grammar>,
    /// State of the grammar after the draft.
    lookahead: Option<Lookahead>,
}

/// Cost of checking a token against a grammar, in tokens of a plain reply.
pub(crate) const GRAMMAR_WEIGHT: usize = 2;

/// Pieces that a step adds to a reply.
#[derive(Debug, Default)]
pub(crate) struct Addition {
    pub(crate) pieces: Vec<TextPiece>,
    /// Result of the reply if these pieces end it.
    pub(crate) end: Option<Result<FinishReason>>,
    /// Number of drafted tokens, and how many of them were accepted.
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
}

impl Reply {
    /// Creates a reply to a prompt of token ids, wherever they come from.
    ///
    /// # Errors
    ///
    /// Returns an error if the prompt leaves no room in the context for a token of the reply, if
    /// the reply may have any, or if the embedding has no row for a token.
    pub(crate) fn new(
        words: Arc<ChatTokenizer>,
        vocab_size: usize,
        context: usize,
        prompt: Vec<u32>,
        parameters: Arc<RequestParameters>,
        seed: u64,
    ) -> Result<Self> {
        if prompt.len() + parameters.max_tokens.min(1) > context {
            return Err(no_room(prompt.len(), context));
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= vocab_size) {
            return Err(no_row(*token, vocab_size));
        }
        Ok(Self {
            words,
            vocab_size,
            prompt: prompt.len(),
            room: prompt.len().saturating_add(parameters.max_tokens).min(context),
            history: History::new(&prompt),
            noise: Noise::new(seed, &prompt),
            text: TextStream::new(parameters.stops.clone()),
            parameters,
            tokens: prompt,
            drafted: 0,
            grammar: None,
            lookahead: None,
        })
    }

    /// Returns another new reply to the same prompt, with the same parameters and its own seed.
    pub(crate) fn beside(&self, seed: u64) -> Self {
        let prompt = &self.tokens[..self.prompt];
        Self {
            words: self.words.clone(),
            vocab_size: self.vocab_size,
            prompt: self.prompt,
            room: self.room,
            history: self.history.clone(),
            noise: Noise::new(seed, prompt),
            text: TextStream::new(self.parameters.stops.clone()),
            parameters: self.parameters.clone(),
            tokens: prompt.to_vec(),
            drafted: 0,
            grammar: None,
            lookahead: None,
        }
    }

    /// Constrains the text to a grammar, from its first token on.
    pub(crate) fn constrain(&mut self, grammar: Grammar) {
        self.grammar = Some(grammar);
    }

    /// Checks that some token may be the first, whatever the logits.
    ///
    /// # Errors
    ///
    /// Returns an error if no token may be the first.
    pub(crate) fn check_first(&mut self) -> Result<()> {
        let logits = vec![0.0; self.vocab_size];
        self.choose(LogitsRow::Here(&logits), &mut Scratch::default()).map(drop)
    }

    /// Returns the tokens of the prompt and the reply so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.drafted]
    }

    /// Returns the tokens of the prompt, the reply and the draft.
    pub(crate) fn with_draft(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the tokens of the prompt.
    pub(crate) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// Returns the number of tokens of the draft.
    pub(crate) fn drafted(&self) -> usize {
        self.drafted
    }

    /// Returns the number of tokens of the reply.
    pub(crate) fn made(&self) -> usize {
        self.tokens().len() - self.prompt
    }

    /// Returns the cost of sampling a token, in tokens of a plain reply.
    pub(crate) fn weight(&self) -> usize {
        let grammar = if self.grammar.is_some() { GRAMMAR_WEIGHT } else { 0 };
        1 + grammar + self.parameters.weight()
    }

    /// Returns the maximum number of tokens of the reply.
    pub(crate) fn longest(&self) -> usize {
        self.room - self.prompt
    }

    /// Takes over a token of an earlier attempt. Returns the finish reason if it ended the reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the token cannot belong to this request.
    pub(crate) fn take_resumed(&mut self, token: u32) -> Result<Option<FinishReason>> {
        let known = (token as usize) < self.vocab_size;
        if !known || !self.allows(token)? {
            return Err(Error::bad_input("the resumed pieces are not of this model's making"));
        }
        Ok(self.take(token)?.1)
    }

    /// Returns how many tokens the draft can still take. Room for one more token after it is kept
    /// free.
    pub(crate) fn draft_room(&self) -> usize {
        self.room.saturating_sub(self.tokens.len() + 1)
    }

    /// Drafts the token that the reply would take if `logits` were the target's. Returns true if
    /// the draft can take more.
    ///
    /// The choice is made as for the reply itself, with the same noise. So logits close to the
    /// target's mostly choose the same token.
    pub(crate) fn draft(&mut self, row: LogitsRow<'_>, scratch: &mut Scratch) -> bool {
        let Some(wanted) = self.wanted_of_draft() else { return false };
        let token = row.sample(wanted, scratch);
        token.is_some_and(|token| self.push_draft(token))
    }

    /// Adds the next token of the draft to those that a device samples, from this row.
    pub(crate) fn describe_draft(&mut self, row: u32, draws: &mut Draws) {
        if let Some(wanted) = self.wanted_of_draft() {
            draws.add(wanted, row, None);
        }
    }

    /// Returns how to sample the token after the draft, or `None` if no token may follow.
    fn wanted_of_draft(&mut self) -> Option<Wanted<'_>> {
        let index = self.made() + self.drafted;
        let Self {
            parameters, history, noise, grammar, lookahead, tokens, prompt, drafted, ..
        } = self;
        let sampling = &parameters.sampling;
        let allowed = match grammar {
            None => None,
            Some(grammar) => {
                let lookahead =
                    lookahead.get_or_insert_with(|| Lookahead::new(grammar, index - *drafted));
                Some(lookahead.allowed(&tokens[*prompt..], &sampling.ends)?)
            }
        };
        Some(Wanted { history, sampling, allowed, noise: *noise, index })
    }

    /// Adds the tokens of the next step to those that a device samples: one from the row `first`, and
    /// one from the row after it for each token of the draft, as if they were all accepted.
    pub(crate) fn describe(&mut self, first: u32, draws: &mut Draws) {
        let (draft, made) = (self.tokens[self.tokens.len() - self.drafted..].to_vec(), self.made());
        for _ in &draft {
            self.history.pop();
        }
        if let Some(lookahead) = &mut self.lookahead {
            lookahead.back_to(made);
        }
        let Self { parameters, history, noise, grammar, lookahead, tokens, prompt, .. } = self;
        let sampling = &parameters.sampling;
        let mut is_open = true;
        for at in 0..=draft.len() {
            let allowed = match grammar {
                None => Some(None),
                Some(grammar) if at == 0 => grammar.allowed(&sampling.ends).ok().map(Some),
                Some(grammar) => {
                    let ahead = lookahead.get_or_insert_with(|| Lookahead::new(grammar, made));
                    let reply = &tokens[*prompt..][..made + at];
                    ahead.allowed(reply, &sampling.ends).map(Some)
                }
            };
            // No row is valid after one from which nothing can be chosen.
            is_open &= allowed.is_some();
            if let Some(allowed) = allowed.filter(|_| is_open) {
                let wanted = Wanted { history, sampling, allowed, noise: *noise, index: made + at };
                draws.add(wanted, first + at as u32, parameters.logprobs);
            }
            if let Some(token) = draft.get(at) {
                history.push(*token);
            }
        }
    }

    /// Adds a token to the draft if it can be of use. Returns true if the draft can take more.
    pub(crate) fn guess(&mut self, token: u32) -> bool {
        let made = self.made();
        let Self { parameters, grammar, lookahead, tokens, prompt, .. } = self;
        if let Some(grammar) = grammar {
            let lookahead = lookahead.get_or_insert_with(|| Lookahead::new(grammar, made));
            let allowed = lookahead.allowed(&tokens[*prompt..], &parameters.sampling.ends);
            if !allowed.is_some_and(|allowed| allowed.has(token)) {
                return false;
            }
        }
        self.push_draft(token)
    }

    fn push_draft(&mut self, token: u32) -> bool {
        // A draft is of no use after a token that ends the reply.
        let known = (token as usize) < self.vocab_size;
        if self.draft_room() == 0 || !known || self.parameters.ends(token) {
            return false;
        }
        self.tokens.push(token);
        self.history.push(token);
        self.drafted += 1;
        self.draft_room() > 0
    }

    /// Removes the draft and returns its tokens.
    fn take_draft(&mut self) -> Vec<u32> {
        let draft = self.tokens.split_off(self.tokens.len() - self.drafted);
        for _ in &draft {
            self.history.pop();
        }
        self.drafted = 0;
        let made = self.made();
        if let Some(lookahead) = &mut self.lookahead {
            lookahead.back_to(made);
        }
        draft
    }

    /// Discards the draft.
    pub(crate) fn drop_draft(&mut self) {
        if self.drafted > 0 {
            self.take_draft();
        }
    }

    /// Samples the next tokens. `rows` are the logits after the reply and after each token of its
    /// draft. A row is valid only if the tokens before it are those that were chosen.
    pub(crate) fn next(&mut self, rows: &[LogitsRow<'_>], scratch: &mut Scratch) -> Addition {
        let draft = self.take_draft();
        let mut addition = Addition { drafted: draft.len(), ..Addition::default() };
        for (at, row) in rows.iter().enumerate() {
            match self.next_piece(*row, scratch) {
                Ok((piece, ended)) => {
                    let foreseen = draft.get(at) == Some(&piece.token);
                    addition.accepted += usize::from(foreseen);
                    addition.pieces.push(piece);
                    addition.end = ended.map(Ok);
                    if !foreseen || addition.end.is_some() {
                        break;
                    }
                }
                Err(error) => {
                    addition.end = Some(Err(error));
                    break;
                }
            }
        }
        addition
    }

    /// Samples the next token. Returns its piece, and the finish reason if it is the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the logits or the grammar leave no token to choose.
    fn next_piece(
        &mut self,
        row: LogitsRow<'_>,
        scratch: &mut Scratch,
    ) -> Result<(TextPiece, Option<FinishReason>)> {
        let token = self.choose(row, scratch)?;
        let told = self.logprobs(row, token, scratch);
        let (mut piece, ended) = self.take(token)?;
        if let Some(told) = told {
            write_logprobs(told, &mut piece, self.parameters.token_texts.then_some(&*self.words));
        }
        Ok((piece, ended))
    }

    fn choose(&mut self, row: LogitsRow<'_>, scratch: &mut Scratch) -> Result<u32> {
        let index = self.made();
        let Self { parameters, history, noise, grammar, .. } = self;
        let sampling = &parameters.sampling;
        let Some(grammar) = grammar else {
            let wanted = Wanted { history, sampling, allowed: None, noise: *noise, index };
            return row.sample(wanted, scratch).ok_or_else(no_logits);
        };
        let allowed = Some(grammar.allowed(&sampling.ends)?);
        let wanted = Wanted { history, sampling, allowed, noise: *noise, index };
        row.sample(wanted, scratch).ok_or_else(|| {
            let (unbanned, logits) = (without_bans(sampling), row.numbers());
            let wanted = Wanted { sampling: &unbanned, ..wanted };
            match LogitsRow::Here(&logits).sample(wanted, scratch) {
                Some(_) => banned(sampling, index),
                None => no_logits(),
            }
        })
    }

    /// Returns true if the grammar allows this token next.
    fn allows(&mut self, token: u32) -> Result<bool> {
        let Some(grammar) = &mut self.grammar else { return Ok(true) };
        Ok(grammar.allowed(&self.parameters.sampling.ends)?.has(token))
    }

    /// Returns the requested log-probabilities of the next token, if there are any.
    fn logprobs(&self, row: LogitsRow<'_>, token: u32, scratch: &mut Scratch) -> Option<Logprobs> {
        let (top, index) = (self.parameters.logprobs?, self.made());
        let Self { parameters, history, noise, .. } = self;
        let sampling = &parameters.sampling;
        let wanted = Wanted { history, sampling, allowed: None, noise: *noise, index };
        row.logprobs((token, wanted), top, scratch)
    }

    /// Appends a token. Returns its piece, and the finish reason if it is the last one.
    fn take(&mut self, token: u32) -> Result<(TextPiece, Option<FinishReason>)> {
        self.tokens.push(token);
        self.history.push(token);
        let ended = self.parameters.ends(token);
        // A text that the grammar allows nothing after needs no end token.
        let complete = match &mut self.grammar {
            Some(grammar) if !ended => grammar.take(token)?,
            _ => ended,
        };
        let full = self.tokens.len() == self.room;
        let bytes = match (ended, self.parameters.special_texts) {
            (true, _) => Cow::Borrowed([].as_slice()),
            (false, false) => Cow::Borrowed(self.words.bytes(token)),
            (false, true) => self.words.spelled(token),
        };
        let (text, met) = self.text.push(&bytes, complete || full);
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
    /// Omits the tokens, which are text of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("prompt", &self.prompt).finish_non_exhaustive()
    }
}

/// Adds log-probabilities to a piece, with the tokens' texts by `words`.
pub(crate) fn write_logprobs(
    Logprobs { chosen, top }: Logprobs,
    piece: &mut TextPiece,
    words: Option<&ChatTokenizer>,
) {
    let text = |token| words.map(|words| words.token_text(token));
    let each = |(token, logprob)| {
        let mut each = TokenLogprob::new(token, logprob);
        each.text = text(token);
        each
    };
    piece.token_text = text(piece.token);
    piece.logprob = Some(chosen);
    piece.top_logprobs = top.into_iter().map(each).collect();
}

fn no_logits() -> Error {
    Error::retry("the model's logits leave no token to choose")
}

fn without_bans(sampling: &Sampling) -> Sampling {
    let (banned, banned_sequences) = (TokenSet::default(), Sequences::default());
    Sampling { banned, banned_sequences, min_tokens: 0, ..sampling.clone() }
}

/// Error for a step in which every token that the grammar allows is banned; `index` is the token's
/// position in the reply.
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
