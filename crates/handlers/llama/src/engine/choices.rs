//! The replies that one request asks for: one, or several that go on from the same prompt.
//!
//! All of them have their next token in the same step, so that their pieces come in one order,
//! whatever else the engine does: the first token of each, in the order of the choices, then the
//! second of each that has not ended, and so on. The prompt is run once, and its blocks are shared;
//! the block in which it ends is copied by whoever writes to it.

use std::sync::Arc;

use nsbridge_handler::{Error, Finish, FinishReason, Result, TextPiece, Usage};

use crate::grammar::Grammar;
use crate::reply::Reply;
use crate::schedule::Work;
use crate::{Chunk, KvCache, Scratch, Table};

/// The choices of a request, at least one.
#[derive(Debug)]
pub(crate) struct Choices {
    choices: Vec<Choice>,
    /// How many tokens the prompt has.
    prompt: usize,
    /// How many of them need not be computed; known once it was looked up.
    cached: Option<usize>,
}

#[derive(Debug)]
struct Choice {
    reply: Reply,
    /// What has been run of its tokens. Empty, it begins with what another has of the prompt.
    table: Table,
    ended: Option<FinishReason>,
}

impl Choice {
    fn left(&self) -> usize {
        self.reply.tokens().len() - self.table.len()
    }

    fn is_run(&self) -> bool {
        self.left() == 0
    }
}

impl Choices {
    /// Replies to the same prompt; at least one.
    pub(crate) fn new(replies: Vec<Reply>) -> Self {
        let prompt = replies.first().map_or(0, |reply| reply.tokens().len());
        let choice = |reply| Choice { reply, table: Table::default(), ended: None };
        Self { choices: replies.into_iter().map(choice).collect(), prompt, cached: None }
    }

    /// The most pieces that all of them can have.
    pub(crate) fn longest(&self) -> usize {
        let longest = self.choices.iter().map(|choice| choice.reply.longest());
        longest.fold(0, usize::saturating_add)
    }

    /// The blocks of `page` positions that they need at most.
    pub(crate) fn blocks(&self, page: usize) -> usize {
        let shared = self.prompt / page;
        let own = |choice: &Choice| (self.prompt + choice.reply.longest()).div_ceil(page) - shared;
        self.choices.iter().map(own).fold(shared, usize::saturating_add)
    }

    /// Holds each of them to a grammar, from its first token on.
    ///
    /// # Errors
    ///
    /// No token may be the first.
    pub(crate) fn hold_to(&mut self, grammar: &Grammar) -> Result<()> {
        for choice in &mut self.choices {
            choice.reply.hold_to(grammar.clone());
        }
        // They begin alike: what one may begin with, all may.
        self.choices.first_mut().map_or(Ok(()), |choice| choice.reply.check_first())
    }

    /// Takes over what an earlier attempt made; the finish, if that was all.
    ///
    /// # Errors
    ///
    /// The pieces cannot be this request's.
    pub(crate) fn take_resumed(&mut self, pieces: &[TextPiece]) -> Result<Option<Finish>> {
        for piece in pieces {
            let next = self.round().next();
            let Some(next) = next.filter(|next| *next == piece.index as usize) else {
                return Err(Error::bad_input("the resumed pieces are not of this model's making"));
            };
            let choice = &mut self.choices[next];
            choice.ended = choice.reply.take_resumed(piece.token)?;
        }
        Ok(self.finish())
    }

    /// What is to be run before the next token of each.
    pub(crate) fn work(&self) -> Work {
        let Some(first) = self.round().next() else { return Work::default() };
        let first = &self.choices[first];
        if self.awaits_prompt() {
            // The first token of all comes with the prompt's last; a later one needs more.
            let begins = first.reply.made() == 0;
            return Work { tokens: self.prompt - first.table.len(), together: begins.into() };
        }
        let tokens = self.round().map(|index| self.choices[index].left()).sum();
        Work { tokens, together: self.round().count() }
    }

    /// Begins with what the cache remembers. The first time, gives how many tokens of the prompt it
    /// did, and how many it did not.
    pub(crate) fn recall(
        &mut self,
        cache: &mut KvCache,
        scope: &Arc<str>,
    ) -> Option<(usize, usize)> {
        let first = self.round().next()?;
        for (index, choice) in self.choices.iter_mut().enumerate() {
            let Choice { reply, table, ended } = choice;
            if ended.is_none() {
                cache.recall(table, scope, reply.tokens());
                // Less than the prompt is of no use to the others: the first runs it for them.
                if index != first && table.len() < self.prompt {
                    cache.truncate(table, 0);
                }
            }
        }
        let looked_up = self.cached.is_none().then(|| {
            let cached = self.choices[first].table.len().min(self.prompt);
            self.cached = Some(cached);
            (cached, self.prompt - cached)
        });
        self.share_prompt(cache);
        looked_up
    }

    /// Makes room for so many of the tokens of [`work`](Self::work), or gives `false`.
    pub(crate) fn reserve(&mut self, cache: &mut KvCache, tokens: usize) -> bool {
        let parts = self.parts(tokens);
        let mut choices = self.choices.iter_mut().zip(parts);
        choices.all(|(choice, part)| part == 0 || cache.reserve(&mut choice.table, part))
    }

    /// So many of the tokens of [`work`](Self::work), to be run in one step.
    pub(crate) fn chunks(&mut self, tokens: usize) -> impl Iterator<Item = Chunk<'_>> {
        let parts = self.parts(tokens);
        let some = self.choices.iter_mut().zip(parts).filter(|(_, part)| *part > 0);
        some.map(|(choice, part)| {
            let Choice { reply, table, .. } = choice;
            let (done, tokens) = (table.len(), reply.tokens());
            let logits = usize::from(done + part == tokens.len());
            Chunk { table, tokens: &tokens[done..done + part], logits }
        })
    }

    /// After a step: the next piece of each, if all that it needs has been run.
    ///
    /// # Errors
    ///
    /// A choice has no token to choose.
    pub(crate) fn next<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [f32]>,
        scratch: &mut Scratch,
    ) -> Result<Vec<TextPiece>> {
        let round: Vec<usize> = self.round().collect();
        let Some(first) = round.first() else { return Ok(Vec::new()) };
        if !self.choices[*first].is_run() {
            return Ok(Vec::new());
        }
        // Taken even if one of them fails: what follows is others'.
        let run = round.iter().filter(|index| self.choices[**index].is_run()).count();
        let rows: Vec<&[f32]> = rows.take(run).collect();
        let (several, mut rows) = (self.choices.len() > 1, rows.into_iter());
        let (mut pieces, mut row) = (Vec::with_capacity(round.len()), None);
        for index in round {
            let choice = &mut self.choices[index];
            if choice.is_run() {
                row = rows.next();
            }
            // Who has run nothing begins after the same prompt, with the same logits.
            let row = row.ok_or_else(|| Error::fatal("a step gave too few logits"))?;
            let (mut piece, ended) = choice.reply.next(row, scratch)?;
            choice.ended = ended;
            if several {
                (piece.index, piece.finish_reason) = (index as u32, ended);
            }
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Remembers what has been run, for others in this scope.
    pub(crate) fn remember(&mut self, cache: &mut KvCache, scope: &Arc<str>) {
        for Choice { reply, table, .. } in &mut self.choices {
            cache.remember(table, scope, reply.tokens());
        }
    }

    /// Gives the prompt's blocks to those that have none, and takes back those of who has ended.
    pub(crate) fn settle(&mut self, cache: &mut KvCache) {
        self.share_prompt(cache);
        for choice in self.choices.iter_mut().filter(|choice| choice.ended.is_some()) {
            cache.truncate(&mut choice.table, 0);
        }
    }

    /// Takes back all that they have.
    pub(crate) fn release(&mut self, cache: &mut KvCache) {
        self.choices.iter_mut().for_each(|choice| cache.truncate(&mut choice.table, 0));
    }

    /// Whether any of them has memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.choices.iter().any(|choice| !choice.table.blocks().is_empty())
    }

    /// How it ended, if all have. The reason is the first one's; pieces tell that of each.
    pub(crate) fn finish(&self) -> Option<Finish> {
        if self.round().next().is_some() {
            return None;
        }
        let reason = self.choices.first()?.ended?;
        let made = self.choices.iter().map(|choice| choice.reply.made() as u64);
        let usage = Usage {
            input_tokens: self.prompt as u64,
            output_tokens: made.sum(),
            cached_tokens: self.cached.unwrap_or(0) as u64,
        };
        Some(Finish::because(reason).with_usage(usage))
    }

    /// Those whose token is the next: of who has not ended, who has made the fewest.
    fn round(&self) -> impl Iterator<Item = usize> {
        let live = || self.choices.iter().enumerate().filter(|(_, choice)| choice.ended.is_none());
        let fewest = live().map(|(_, choice)| choice.reply.made()).min();
        live()
            .filter(move |(_, choice)| Some(choice.reply.made()) == fewest)
            .map(|(index, _)| index)
    }

    /// Whether some wait for the first of the round to run the prompt.
    fn awaits_prompt(&self) -> bool {
        let Some(first) = self.round().next() else { return false };
        let waits = |(index, choice): (usize, &Choice)| {
            index != first && choice.ended.is_none() && choice.table.is_empty()
        };
        self.choices[first].table.len() < self.prompt && self.choices.iter().enumerate().any(waits)
    }

    /// How many of so many tokens each runs. All, and each of the round has its logits; or less, and
    /// none has.
    fn parts(&self, tokens: usize) -> Vec<usize> {
        let mut parts = vec![0; self.choices.len()];
        if self.awaits_prompt() {
            if let Some(first) = self.round().next() {
                parts[first] = tokens;
            }
            return parts;
        }
        let all = tokens == self.work().tokens;
        let mut room = tokens;
        for index in self.round() {
            let left = self.choices[index].left();
            parts[index] = if all { left } else { left.saturating_sub(1).min(room) };
            room -= parts[index];
        }
        parts
    }

    fn share_prompt(&mut self, cache: &mut KvCache) {
        let prompt = self.prompt;
        let Some(source) = self.choices.iter().position(|choice| choice.table.len() >= prompt)
        else {
            return;
        };
        for index in 0..self.choices.len() {
            if self.choices[index].ended.is_none() && self.choices[index].table.is_empty() {
                let mut table = cache.fork(&self.choices[source].table);
                // Its last token is run for its own logits.
                let most = self.choices[index].reply.tokens().len() - 1;
                cache.truncate(&mut table, prompt.min(most));
                self.choices[index].table = table;
            }
        }
    }
}
