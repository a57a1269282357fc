//! Preparation of a request before its first step: makes replies from an input.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_handler::{Error, Finish, Result, TextInput, TextPiece};

use crate::engine::{PromptPieces, PromptRows, SequenceGroup};
use crate::grammar::{Grammars, Rule};
use crate::limits::{
    BYTES_PER_BYTE, FORMAT_REPLIES, GRAMMAR_BYTES, IN_PLACE, PART_OF_STEP, PROMPT_TOKENS,
};
use crate::reply::{GRAMMAR_WEIGHT, Reply};
use crate::request::RequestParameters;
use crate::tokenizer::ChatTokenizer;

/// Maximum number of resumed pieces that are processed on the thread of the calls, at 1 µs each.
const FEW_PIECES: usize = 1000;

/// Cost of a message in a chat template, in bytes of text.
const MESSAGE: usize = 64;

/// Owned data from which a request's replies are made, so that another thread can make them.
pub(super) struct Preparation {
    pub(super) text: Arc<ChatTokenizer>,
    pub(super) grammars: Arc<Grammars>,
    pub(super) vocab_size: usize,
    pub(super) context: usize,
    /// Maximum number of tokens of a step.
    pub(super) step_tokens: usize,
    pub(super) parameters: Arc<RequestParameters>,
    pub(super) seed: u64,
    pub(super) submitted_at: SystemTime,
    /// Number of requested replies, at least one.
    pub(super) replies: u64,
    pub(super) input: TextInput,
    pub(super) resumed: Vec<TextPiece>,
}

/// Returns the number of replies of a request that run in one step. The limit keeps the step short
/// for other requests, which wait for its end.
fn replies_at_once(step_tokens: usize, weight: usize) -> usize {
    (step_tokens / PART_OF_STEP / weight).max(1)
}

impl Preparation {
    /// Returns true if the preparation takes 2 ms at most, provided that there is no response
    /// format.
    pub(super) fn is_short(&self) -> bool {
        let bytes = self.bytes().saturating_mul(self.replies as usize);
        bytes <= IN_PLACE && self.resumed.len() <= FEW_PIECES
    }

    /// Returns the bytes of input, with the fixed cost of each message in the template.
    fn bytes(&self) -> usize {
        ChatTokenizer::bytes_of(&self.input) + MESSAGE * self.input.messages.len()
    }

    /// Returns the cost that the tenant is charged, in bytes of input or their equivalent.
    pub(super) fn cost(&self) -> u64 {
        let bytes = self.bytes() + self.resumed.len();
        // A grammar takes as long as some 64 KiB of text, at most some MiB.
        let format = if self.input.response_format.is_some() { 64 << 10 } else { 0 };
        (bytes + format) as u64
    }

    /// Returns the memory that the request takes while it is held, in bytes; an estimate from
    /// above.
    pub(super) fn memory(&self) -> u64 {
        let tokens = (self.bytes() as u64).saturating_mul(BYTES_PER_BYTE);
        let format = if self.input.response_format.is_some() { GRAMMAR_BYTES } else { 0 };
        tokens.saturating_add(format).saturating_mul(self.replies)
    }

    /// Returns the replies, continued by the pieces of an earlier attempt, and the finish if those
    /// pieces are complete.
    ///
    /// # Errors
    ///
    /// Returns an error that names the invalid field.
    pub(super) fn prepare(self) -> Result<(SequenceGroup, Option<Finish>)> {
        let Self { text, input, parameters, vocab_size, context, seed, .. } = self;
        let rule = input.response_format.as_ref().map(Rule::of).transpose()?.flatten();
        if rule.is_some() && self.replies > FORMAT_REPLIES {
            return Err(Error::bad_input(format!(
                "`n` must be from 1 to {FORMAT_REPLIES} with `response_format`"
            )));
        }
        let prompt = text.prompt(&input, self.submitted_at, context)?;
        if prompt.len().saturating_mul(self.replies as usize) > PROMPT_TOKENS {
            return Err(Error::bad_input(format!(
                "`n` is {}, and {} are the most for a prompt of {} tokens",
                self.replies,
                PROMPT_TOKENS / prompt.len(),
                prompt.len()
            )));
        }
        parameters.refuse_large_prompt(prompt.len())?;
        let of_prompt = (parameters.echo || parameters.prompt_logprobs.is_some()).then(|| {
            let most = replies_at_once(self.step_tokens, 1);
            PromptRows::Pieces(PromptPieces::new(text.clone(), prompt.len(), &parameters, most))
        });
        let first = Reply::new(text, vocab_size, context, prompt, parameters, seed)?;
        let others = (1..self.replies).map(|index| first.beside(seed.wrapping_add(index)));
        let others: Vec<Reply> = others.collect();
        let replies: Vec<Reply> = std::iter::once(first).chain(others).collect();
        let weight = replies.first().map_or(1, Reply::weight);
        let weight = weight + rule.as_ref().map_or(0, |_| GRAMMAR_WEIGHT);
        let mut group = SequenceGroup::new(replies, replies_at_once(self.step_tokens, weight));
        if let Some(rows) = of_prompt {
            group.read_prompt_by(rows);
        }
        if let Some(rule) = rule {
            group.constrain(self.grammars.compile(&rule)?)?;
        }
        let finish = group.take_resumed(&self.resumed)?;
        Ok((group, finish))
    }
}
