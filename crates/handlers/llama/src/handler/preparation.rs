//! All that comes before the first step: from an input to replies that have not begun.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_handler::{Error, Finish, Result, TextInput, TextPiece};

use crate::engine::Choices;
use crate::grammar::{Grammars, Rule};
use crate::limits::{FORMAT_REPLIES, IN_PLACE, PART_OF_STEP, PROMPT_TOKENS};
use crate::reply::{GRAMMAR_WEIGHT, Reply};
use crate::request::Asked;
use crate::text::Text;

/// Resumed pieces that are taken over on the calls' own thread, at a microsecond each.
const FEW_PIECES: usize = 1000;

/// What a template takes for each message, in bytes of text.
const MESSAGE: usize = 64;

/// What a request's replies are made from; it owns all of it, so that a thread may.
pub(super) struct Preparation {
    pub(super) text: Arc<Text>,
    pub(super) grammars: Arc<Grammars>,
    pub(super) vocab_size: usize,
    pub(super) context: usize,
    /// Tokens of a step.
    pub(super) step_tokens: usize,
    pub(super) asked: Arc<Asked>,
    pub(super) seed: u64,
    pub(super) submitted_at: SystemTime,
    /// How many replies are asked for, at least one.
    pub(super) replies: u64,
    pub(super) input: TextInput,
    pub(super) resumed: Vec<TextPiece>,
}

/// Replies of a request that go on in one step: no request makes a step long for others, who wait for
/// its end.
fn replies_at_once(step_tokens: usize, weight: usize) -> usize {
    (step_tokens / PART_OF_STEP / weight).max(1)
}

impl Preparation {
    /// Whether it takes a millisecond or two at most, as long as there is no format.
    pub(super) fn is_short(&self) -> bool {
        let bytes = self.bytes().saturating_mul(self.replies as usize);
        bytes <= IN_PLACE && self.resumed.len() <= FEW_PIECES
    }

    /// Bytes of input, and what the template takes for a message though it is empty.
    fn bytes(&self) -> usize {
        Text::bytes_of(&self.input) + MESSAGE * self.input.messages.len()
    }

    /// What it is charged, in bytes of input or their like.
    pub(super) fn cost(&self) -> u64 {
        let bytes = self.bytes() + self.resumed.len();
        // A grammar takes as long as some 64 KiB of text, at most some MiB.
        let format = if self.input.response_format.is_some() { 64 << 10 } else { 0 };
        (bytes + format) as u64
    }

    /// The replies, with what an earlier attempt made of them; how they ended, if that was all.
    ///
    /// # Errors
    ///
    /// A sentence that names the field.
    pub(super) fn prepare(self) -> Result<(Choices, Option<Finish>)> {
        let Self { text, input, asked, vocab_size, context, seed, .. } = self;
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
        let first = Reply::new(text, vocab_size, context, prompt, asked, seed)?;
        let others = (1..self.replies).map(|index| first.beside(seed.wrapping_add(index)));
        let others: Vec<Reply> = others.collect();
        let replies: Vec<Reply> = std::iter::once(first).chain(others).collect();
        let weight = replies.first().map_or(1, Reply::weight);
        let weight = weight + rule.as_ref().map_or(0, |_| GRAMMAR_WEIGHT);
        let mut choices = Choices::new(replies, replies_at_once(self.step_tokens, weight));
        if let Some(rule) = rule {
            choices.hold_to(&self.grammars.compile(&rule)?)?;
        }
        let finish = choices.take_resumed(&self.resumed)?;
        Ok((choices, finish))
    }
}
