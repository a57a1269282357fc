//! Choices of one request (sequence group): one reply or several to the same prompt.
//!
//! Pieces leave in a fixed order: the first token of each choice in order of index, then the second
//! of each choice that has not ended, and so on. All choices run in the same step; a choice that
//! gets ahead by accepted drafts keeps its pieces until their turn. The prompt runs once and its
//! blocks are shared; the partly filled last block is copied on write.
//!
//! If the KV cache has no space for all choices, they run in turns: the last ones wait until an
//! earlier one has ended. A running choice continues to its end, however far its pieces are ahead,
//! because recomputing a waiting choice costs more than keeping pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use nsbridge_handler::{Error, Finish, FinishReason, Result, TextPiece, Usage};

use crate::grammar::Grammar;
use crate::reply::{Addition, Reply};
use crate::schedule::Work;
use crate::speculation::{Outlook, Tally, Undrafted};
use crate::{Chunk, KvCache, Scratch, Table};

/// Maximum number of pieces that a choice may be ahead of its turn before it waits for the others.
const AHEAD: usize = 16;

/// Choices of a request, at least one.
#[derive(Debug)]
pub(crate) struct Choices {
    choices: Vec<Choice>,
    /// Number of tokens of the prompt.
    prompt: usize,
    /// Number of prompt tokens found in the prefix cache; `None` before the lookup.
    cached: Option<usize>,
    /// Maximum number of choices that run in one step.
    most: usize,
    /// True once the KV cache was too small for all choices at the same time.
    in_turns: bool,
}

#[derive(Debug)]
struct Choice {
    reply: Reply,
    /// Block table of the tokens that were run. An empty table starts as a fork of another choice's
    /// prompt.
    table: Table,
    /// Pieces whose turn has not come.
    pieces: VecDeque<TextPiece>,
    end: Option<Result<FinishReason>>,
    /// True while the choice has no memory and waits for another one to end.
    waits: bool,
    /// Number of pieces delivered so far.
    told: usize,
    /// Sequence id for drafters.
    sequence: u64,
    outlook: Outlook,
}

impl Choice {
    fn new(reply: Reply) -> Self {
        Self {
            reply,
            table: Table::default(),
            pieces: VecDeque::new(),
            end: None,
            waits: false,
            told: 0,
            sequence: 0,
            outlook: Outlook::default(),
        }
    }

    fn left(&self) -> usize {
        self.reply.tokens().len() - self.table.len()
    }

    /// Returns true if the choice is neither ended nor waiting.
    fn goes_on(&self) -> bool {
        self.end.is_none() && !self.waits
    }
}

impl Choices {
    /// Creates the choices from replies to the same prompt, at least one. At most `most` run in a
    /// step.
    pub(crate) fn new(replies: Vec<Reply>, most: usize) -> Self {
        let prompt = replies.first().map_or(0, |reply| reply.tokens().len());
        let choices = replies.into_iter().map(Choice::new).collect();
        Self { choices, prompt, cached: None, most, in_turns: false }
    }

    /// Assigns sequence ids, counting up from `next`.
    pub(crate) fn number(&mut self, next: &mut u64) {
        for choice in &mut self.choices {
            choice.sequence = *next;
            *next += 1;
        }
    }

    /// Returns the sequence ids.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.choices.iter().map(|choice| choice.sequence)
    }

    /// Returns the maximum number of pieces of all choices together.
    pub(crate) fn longest(&self) -> usize {
        let longest = self.choices.iter().map(|choice| choice.reply.longest());
        longest.fold(0, usize::saturating_add)
    }

    /// Constrains each choice to a grammar, from its first token on.
    ///
    /// # Errors
    ///
    /// Returns an error if no token may be the first.
    pub(crate) fn hold_to(&mut self, grammar: Grammar) -> Result<()> {
        if let Some((last, others)) = self.choices.split_last_mut() {
            others.iter_mut().for_each(|choice| choice.reply.hold_to(grammar.clone()));
            last.reply.hold_to(grammar);
        }
        // All choices begin in the same state of the grammar, so checking one is enough.
        self.choices.first_mut().map_or(Ok(()), |choice| choice.reply.check_first())
    }

    /// Takes over the pieces of an earlier attempt. Returns the finish if they are the whole reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the pieces cannot belong to this request.
    pub(crate) fn take_resumed(&mut self, pieces: &[TextPiece]) -> Result<Option<Finish>> {
        for piece in pieces {
            let Some(next) = self.due().filter(|next| *next == piece.index as usize) else {
                return Err(Error::bad_input("the resumed pieces are not of this model's making"));
            };
            let choice = &mut self.choices[next];
            choice.end = choice.reply.take_resumed(piece.token)?.map(Ok);
            choice.told += 1;
        }
        self.finish().transpose()
    }

    /// Returns the cost of sampling a token of each choice, in tokens of a plain reply.
    pub(crate) fn weight(&self) -> usize {
        self.choices.first().map_or(1, |choice| choice.reply.weight())
    }

    /// Returns the tokens to run before each choice can sample its next one.
    pub(crate) fn work(&self) -> Work {
        let Some(first) = self.round().next() else { return Work::default() };
        let first = &self.choices[first];
        if self.awaits_prompt() {
            // One run of the prompt yields the first token of every choice. A resumed choice needs
            // more tokens.
            let begins = first.reply.made() == 0;
            return Work { tokens: self.prompt - first.table.len(), together: begins.into() };
        }
        let tokens = self.round().map(|index| self.choices[index].left()).sum();
        Work { tokens, together: self.round().count() }
    }

    /// Starts from the blocks that the prefix cache has. On the first call, returns the numbers of
    /// prompt tokens that were hits and misses.
    pub(crate) fn recall(
        &mut self,
        cache: &mut KvCache,
        scope: &Arc<str>,
    ) -> Option<(usize, usize)> {
        let first = self.round().next()?;
        for (index, choice) in self.choices.iter_mut().enumerate() {
            if choice.goes_on() {
                let Choice { reply, table, .. } = choice;
                cache.recall(table, scope, reply.tokens());
                // A partial prompt is dropped: the first choice runs it for the others.
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

    /// Reserves memory for `tokens` tokens of [`work`](Self::work). Returns false if there is too
    /// little.
    pub(crate) fn reserve(&mut self, cache: &mut KvCache, tokens: usize) -> bool {
        let parts = self.parts(tokens);
        let mut choices = self.choices.iter_mut().zip(parts);
        choices.all(|(choice, part)| part == 0 || cache.reserve(&mut choice.table, part))
    }

    /// Returns the choices that may have a draft if `tokens` tokens of [`work`](Self::work) run
    /// next: those that run exactly one token.
    pub(crate) fn undrafted<'a>(
        &'a mut self,
        tokens: usize,
        scope: &'a Arc<str>,
    ) -> impl Iterator<Item = Undrafted<'a>> {
        let parts = self.parts(tokens);
        let goes_on = |(choice, part): &(&mut Choice, usize)| *part == 1 && choice.left() == 1;
        self.choices.iter_mut().zip(parts).filter(goes_on).map(move |(choice, _)| {
            let Choice { reply, table, outlook, sequence, .. } = choice;
            Undrafted { reply, table, outlook, sequence: *sequence, scope }
        })
    }

    /// Returns the chunks of one step for `tokens` tokens of [`work`](Self::work), with the drafts.
    pub(crate) fn chunks(&mut self, tokens: usize) -> impl Iterator<Item = Chunk<'_>> {
        let parts = self.parts(tokens);
        let some = self.choices.iter_mut().zip(parts).filter(|(_, part)| *part > 0);
        some.map(|(choice, part)| {
            let Choice { reply, table, .. } = choice;
            let (begin, end) = (table.len(), table.len() + part);
            // A draft follows the last of the choice's own tokens.
            let whole = end == reply.tokens().len();
            let drafted = if whole { reply.drafted() } else { 0 };
            let logits = if whole { 1 + drafted } else { 0 };
            Chunk { table, tokens: &reply.with_draft()[begin..end + drafted], logits }
        })
    }

    /// Takes the rows of logits of these choices from `rows` after a step, and samples the next
    /// tokens.
    pub(crate) fn next<'a>(
        &mut self,
        rows: &mut impl Iterator<Item = &'a [f32]>,
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) {
        let (round, several): (Vec<usize>, _) = (self.round().collect(), self.choices.len() > 1);
        let mut own: Vec<&[f32]> = Vec::new();
        for index in round {
            let choice = &mut self.choices[index];
            let run = choice.reply.tokens().len() + choice.reply.drafted();
            if choice.table.len() == run {
                own.clear();
                own.extend(rows.by_ref().take(1 + choice.reply.drafted()));
            }
            // A choice that has run nothing samples from the logits of the shared prompt. Before
            // the prompt is complete, there are no logits.
            let begins = choice.reply.made() == 0 && choice.table.is_empty();
            if own.is_empty() || !(choice.table.len() == run || begins) {
                continue;
            }
            let mut added = choice.reply.next(&own, scratch);
            if several {
                number(&mut added, index);
            }
            tally.add(&mut choice.outlook, added.drafted, added.accepted);
            choice.pieces.extend(added.pieces);
            choice.end = added.end;
        }
    }

    /// Returns the next piece in turn, if it is available.
    pub(crate) fn next_piece(&mut self) -> Option<TextPiece> {
        let due = self.due()?;
        let choice = &mut self.choices[due];
        let piece = choice.pieces.pop_front()?;
        choice.told += 1;
        Some(piece)
    }

    /// Removes the keys and values of rejected draft tokens.
    pub(crate) fn roll_back(&mut self, cache: &mut KvCache) {
        for Choice { reply, table, .. } in &mut self.choices {
            // The last token of a reply is sampled but not run. Capacity beyond it was for a draft.
            if table.len() + 1 >= reply.tokens().len() {
                cache.truncate(table, reply.tokens().len() - 1);
            }
        }
    }

    /// Adds the blocks that were run to the prefix cache of this scope.
    pub(crate) fn remember(&mut self, cache: &mut KvCache, scope: &Arc<str>) {
        for Choice { reply, table, .. } in &mut self.choices {
            cache.remember(table, scope, reply.tokens());
        }
    }

    /// Shares the prompt's blocks with choices that have none, and frees the memory of ended
    /// choices for those that wait.
    pub(crate) fn settle(&mut self, cache: &mut KvCache, scope: &Arc<str>) {
        let ended = |choice: &Choice| choice.end.is_some() && !choice.table.blocks().is_empty();
        if self.choices.iter().any(ended) {
            self.wake(cache, scope);
        }
        self.share_prompt(cache);
        for choice in self.choices.iter_mut().filter(|choice| choice.end.is_some()) {
            cache.truncate(&mut choice.table, 0);
        }
    }

    /// Makes the last running choice wait until another has ended, and frees its memory. Returns
    /// false if only one choice is running.
    pub(crate) fn shrink(&mut self, cache: &mut KvCache) -> bool {
        let mut going = self.choices.iter_mut().filter(|choice| choice.goes_on());
        let (Some(_), Some(last)) = (going.next(), going.next_back()) else { return false };
        last.waits = true;
        cache.truncate(&mut last.table, 0);
        self.in_turns = true;
        true
    }

    /// Resumes all waiting choices from their blocks in the prefix cache. If they are too many
    /// again, the last ones wait again.
    fn wake(&mut self, cache: &mut KvCache, scope: &Arc<str>) {
        for choice in self.choices.iter_mut().filter(|choice| choice.waits) {
            choice.waits = false;
            let Choice { reply, table, .. } = choice;
            cache.recall(table, scope, reply.tokens());
            // Less than the prompt is of no use: the ended choice still has the whole prompt.
            if table.len() < self.prompt {
                cache.truncate(table, 0);
            }
        }
    }

    /// Frees the memory of all choices.
    pub(crate) fn release(&mut self, cache: &mut KvCache) {
        self.choices.iter_mut().for_each(|choice| cache.truncate(&mut choice.table, 0));
    }

    /// Returns true if any choice has memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.choices.iter().any(|choice| !choice.table.blocks().is_empty())
    }

    /// Returns the result of the request once all pieces are delivered. The finish reason is that
    /// of the first choice; the pieces have that of each choice. An error ends all choices at the
    /// turn of the missing piece.
    pub(crate) fn finish(&mut self) -> Option<Result<Finish>> {
        if let Some(due) = self.due() {
            let Choice { pieces, end, .. } = &mut self.choices[due];
            let failed = pieces.is_empty() && matches!(end, Some(Err(_)));
            return if failed { end.take()?.err().map(Err) } else { None };
        }
        let Some(Ok(reason)) = self.choices.first()?.end else { return None };
        let sum = |count: fn(&Choice) -> u64| self.choices.iter().map(count).sum();
        let usage = Usage {
            input_tokens: self.prompt as u64,
            output_tokens: sum(|choice| choice.reply.made() as u64),
            cached_tokens: self.cached.unwrap_or(0) as u64,
            drafted_tokens: sum(|choice| choice.outlook.drafted()),
            accepted_tokens: sum(|choice| choice.outlook.accepted()),
        };
        Some(Ok(Finish::because(reason).with_usage(usage)))
    }

    /// Returns the choice whose turn it is: of those with more to come, the one with the fewest
    /// pieces delivered.
    fn due(&self) -> Option<usize> {
        let more =
            |choice: &Choice| !choice.pieces.is_empty() || !matches!(choice.end, Some(Ok(_)));
        let choices = self.choices.iter().enumerate().filter(|(_, choice)| more(choice));
        choices.min_by_key(|(_, choice)| choice.told).map(|(index, _)| index)
    }

    /// Returns the choices that run next, `most` at most: those that go on, without any that is
    /// [`AHEAD`] pieces ahead. In turns, that limit does not apply, since the others cannot run.
    fn round(&self) -> impl Iterator<Item = usize> {
        let far = if self.in_turns { usize::MAX } else { AHEAD };
        let runs = move |choice: &Choice| choice.goes_on() && choice.pieces.len() < far;
        let choices = self.choices.iter().enumerate();
        choices.filter(move |(_, choice)| runs(choice)).map(|(index, _)| index).take(self.most)
    }

    /// Returns true if other choices wait for the first of the round to run the prompt.
    fn awaits_prompt(&self) -> bool {
        let Some(first) = self.round().next() else { return false };
        let waits = |(index, choice): (usize, &Choice)| {
            index != first && choice.goes_on() && choice.table.is_empty()
        };
        self.choices[first].table.len() < self.prompt && self.choices.iter().enumerate().any(waits)
    }

    /// Splits `tokens` over the choices. If they are all of the work, each choice of the round gets
    /// logits; otherwise none does.
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
            if self.choices[index].goes_on() && self.choices[index].table.is_empty() {
                let mut table = cache.fork(&self.choices[source].table);
                // The last prompt token runs again to get its logits.
                let most = self.choices[index].reply.tokens().len() - 1;
                cache.truncate(&mut table, prompt.min(most));
                self.choices[index].table = table;
            }
        }
    }
}

/// Sets the choice index of each piece, and the finish reason in the last piece of a reply.
fn number(added: &mut Addition, index: usize) {
    added.pieces.iter_mut().for_each(|piece| piece.index = index as u32);
    if let (Some(last), Some(Ok(reason))) = (added.pieces.last_mut(), &added.end) {
        last.finish_reason = Some(*reason);
    }
}
