//! One reply while it grows: from logits to tokens, and from tokens to text.

use std::fmt;
use std::sync::Arc;

use nsbridge_handler::{Error, FinishReason, Result, TextPiece, TokenLogprob};

use crate::detokenise::TextStream;
use crate::grammar::{Grammar, Scout};
use crate::request::Asked;
use crate::text::Text;
use crate::{History, Noise, Sampling, Scratch, Sequences, TokenSet, logprobs, sample};

/// A reply and what it goes on from.
pub(crate) struct Reply {
    words: Arc<Text>,
    vocab_size: usize,
    /// Prompt and reply, and behind them the draft.
    tokens: Vec<u32>,
    /// How many of them are the prompt.
    prompt: usize,
    /// How many of them are the draft: what the reply may go on with.
    drafted: usize,
    /// How many prompt and reply may be.
    room: usize,
    asked: Arc<Asked>,
    /// Of all tokens, the draft's too.
    history: History,
    noise: Noise,
    text: TextStream,
    /// What the text is held to.
    grammar: Option<Grammar>,
    /// The grammar after the draft.
    scout: Option<Scout>,
}

/// What it takes to hold a token to a grammar, in tokens of a plain reply.
pub(crate) const GRAMMAR_WEIGHT: usize = 2;

/// What a step adds to a reply.
#[derive(Debug, Default)]
pub(crate) struct Addition {
    pub(crate) pieces: Vec<TextPiece>,
    /// Why nothing follows these pieces, if nothing does.
    pub(crate) end: Option<Result<FinishReason>>,
    /// How many tokens had been drafted, and how many of them the reply has now.
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
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
        asked: Arc<Asked>,
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
            drafted: 0,
            grammar: None,
            scout: None,
        })
    }

    /// A reply that has not begun either, to the prompt of this one and with its parameters.
    pub(crate) fn beside(&self, seed: u64) -> Self {
        let prompt = &self.tokens[..self.prompt];
        Self {
            words: self.words.clone(),
            vocab_size: self.vocab_size,
            prompt: self.prompt,
            room: self.room,
            history: self.history.clone(),
            noise: Noise::new(seed, prompt),
            text: TextStream::new(self.asked.stops.clone()),
            asked: self.asked.clone(),
            tokens: prompt.to_vec(),
            drafted: 0,
            grammar: None,
            scout: None,
        }
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
        &self.tokens[..self.tokens.len() - self.drafted]
    }

    /// The same, and behind them the draft.
    pub(crate) fn with_draft(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens the draft has.
    pub(crate) fn drafted(&self) -> usize {
        self.drafted
    }

    /// How many tokens the reply has.
    pub(crate) fn made(&self) -> usize {
        self.tokens().len() - self.prompt
    }

    /// What the choice of a token takes, in tokens of a plain reply.
    pub(crate) fn weight(&self) -> usize {
        let grammar = if self.grammar.is_some() { GRAMMAR_WEIGHT } else { 0 };
        1 + grammar + self.asked.weight()
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

    /// How many tokens the draft can have more. Whatever it has, one token follows it.
    pub(crate) fn draft_room(&self) -> usize {
        self.room.saturating_sub(self.tokens.len() + 1)
    }

    /// Adds to the draft what the reply would go on with if these were its logits; whether it could
    /// have more.
    ///
    /// The choice is made as the reply's own will be, with the same noise: logits that are near to
    /// the reply's choose the same token, mostly.
    pub(crate) fn draft(&mut self, logits: &[f32], scratch: &mut Scratch) -> bool {
        let index = self.made() + self.drafted;
        let Self { asked, history, noise, grammar, scout, tokens, prompt, drafted, .. } = self;
        let sampling = &asked.sampling;
        let allowed = match grammar {
            None => None,
            Some(grammar) => {
                let scout = scout.get_or_insert_with(|| Scout::new(grammar, index - *drafted));
                let Some(allowed) = scout.allowed(&tokens[*prompt..], &sampling.ends) else {
                    return false;
                };
                Some(allowed)
            }
        };
        let token = sample(logits, history, sampling, allowed, *noise, index, scratch);
        token.is_some_and(|token| self.push_draft(token))
    }

    /// Adds a token to the draft, unless it could not be of use; whether the draft could have more.
    pub(crate) fn guess(&mut self, token: u32) -> bool {
        let made = self.made();
        let Self { asked, grammar, scout, tokens, prompt, .. } = self;
        if let Some(grammar) = grammar {
            let scout = scout.get_or_insert_with(|| Scout::new(grammar, made));
            let allowed = scout.allowed(&tokens[*prompt..], &asked.sampling.ends);
            if !allowed.is_some_and(|allowed| allowed.has(token)) {
                return false;
            }
        }
        self.push_draft(token)
    }

    fn push_draft(&mut self, token: u32) -> bool {
        // Behind a token that ends the reply there is nothing to foresee.
        let known = (token as usize) < self.vocab_size;
        if self.draft_room() == 0 || !known || self.asked.ends(token) {
            return false;
        }
        self.tokens.push(token);
        self.history.push(token);
        self.drafted += 1;
        self.draft_room() > 0
    }

    /// Takes the draft back; its tokens.
    fn take_draft(&mut self) -> Vec<u32> {
        let draft = self.tokens.split_off(self.tokens.len() - self.drafted);
        for _ in &draft {
            self.history.pop();
        }
        self.drafted = 0;
        let made = self.made();
        if let Some(scout) = &mut self.scout {
            scout.back_to(made);
        }
        draft
    }

    /// Forgets the draft.
    pub(crate) fn drop_draft(&mut self) {
        if self.drafted > 0 {
            self.take_draft();
        }
    }

    /// Chooses the tokens that follow. `rows` are the logits after the reply, and after each token
    /// of its draft: a row is of use as long as the tokens before it are what was chosen.
    pub(crate) fn next(&mut self, rows: &[&[f32]], scratch: &mut Scratch) -> Addition {
        let draft = self.take_draft();
        let mut addition = Addition { drafted: draft.len(), ..Addition::default() };
        for (at, logits) in rows.iter().enumerate() {
            match self.next_piece(logits, scratch) {
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

    /// Chooses the next token; gives its piece and, if it is the last one, why.
    ///
    /// # Errors
    ///
    /// The logits leave no token to choose, or the grammar does.
    fn next_piece(
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
    let (banned, banned_sequences) = (TokenSet::default(), Sequences::default());
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
