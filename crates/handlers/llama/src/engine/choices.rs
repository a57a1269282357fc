//! The replies that one request asks for: one, or several that go on from the same prompt.
//!
//! Their pieces come in one order, whatever the engine does: the first token of each, in the order
//! of the choices, then the second of each that has not ended, and so on. All of them run in the same
//! step, and one whose drafts carry it ahead of the others keeps its pieces until their turn. The
//! prompt is run once, and its blocks are shared; the block in which it ends is copied by whoever
//! writes to it.
//!
//! Where there is no room for all of them, they run in turns: the last ones wait until one before
//! them has ended. Those that run go on to their ends, however far ahead their pieces are: what waits
//! must be computed again, so a change costs more than pieces that are kept.

use std::collections::VecDeque;
use std::sync::Arc;

use nsbridge_handler::{Error, Finish, FinishReason, Result, TextPiece, Usage};

use crate::grammar::Grammar;
use crate::reply::{Addition, Reply};
use crate::schedule::Work;
use crate::speculation::{Outlook, Tally, Undrafted};
use crate::{Chunk, KvCache, Scratch, Table};

/// How many pieces a choice may be ahead of its turn before it waits for the others.
const AHEAD: usize = 16;

/// The choices of a request, at least one.
#[derive(Debug)]
pub(crate) struct Choices {
    choices: Vec<Choice>,
    /// How many tokens the prompt has.
    prompt: usize,
    /// How many of them need not be computed; known once it was looked up.
    cached: Option<usize>,
    /// How many of them may run in a step.
    most: usize,
    /// Whether there was no room for all of them at once.
    in_turns: bool,
}

#[derive(Debug)]
struct Choice {
    reply: Reply,
    /// What has been run of its tokens. Empty, it begins with what another has of the prompt.
    table: Table,
    /// Pieces whose turn has not come, and what is behind them.
    pieces: VecDeque<TextPiece>,
    end: Option<Result<FinishReason>>,
    /// Whether it has no memory, and gets none before another has ended.
    waits: bool,
    /// How many pieces have had their turn.
    told: usize,
    /// By which drafters know it.
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

    /// Whether more is to be made of it now.
    fn goes_on(&self) -> bool {
        self.end.is_none() && !self.waits
    }
}

impl Choices {
    /// Replies to the same prompt, at least one, of which at most so many run in a step.
    pub(crate) fn new(replies: Vec<Reply>, most: usize) -> Self {
        let prompt = replies.first().map_or(0, |reply| reply.tokens().len());
        let choices = replies.into_iter().map(Choice::new).collect();
        Self { choices, prompt, cached: None, most, in_turns: false }
    }

    /// Numbers them from the first number that no other has.
    pub(crate) fn number(&mut self, next: &mut u64) {
        for choice in &mut self.choices {
            choice.sequence = *next;
            *next += 1;
        }
    }

    /// Their numbers.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.choices.iter().map(|choice| choice.sequence)
    }

    /// The most pieces that all of them can have.
    pub(crate) fn longest(&self) -> usize {
        let longest = self.choices.iter().map(|choice| choice.reply.longest());
        longest.fold(0, usize::saturating_add)
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
            let Some(next) = self.due().filter(|next| *next == piece.index as usize) else {
                return Err(Error::bad_input("the resumed pieces are not of this model's making"));
            };
            let choice = &mut self.choices[next];
            choice.end = choice.reply.take_resumed(piece.token)?.map(Ok);
            choice.told += 1;
        }
        self.finish().transpose()
    }

    /// What the choice of a token takes for each of them, in tokens of a plain reply.
    pub(crate) fn weight(&self) -> usize {
        self.choices.first().map_or(1, |choice| choice.reply.weight())
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
            if choice.goes_on() {
                let Choice { reply, table, .. } = choice;
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

    /// If so many of the tokens of [`work`](Self::work) are run next: those that go on by a token
    /// each, and may have a draft behind it.
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

    /// So many of the tokens of [`work`](Self::work), to be run in one step, with the drafts.
    pub(crate) fn chunks(&mut self, tokens: usize) -> impl Iterator<Item = Chunk<'_>> {
        let parts = self.parts(tokens);
        let some = self.choices.iter_mut().zip(parts).filter(|(_, part)| *part > 0);
        some.map(|(choice, part)| {
            let Choice { reply, table, .. } = choice;
            let (begin, end) = (table.len(), table.len() + part);
            // A draft is behind all of them.
            let whole = end == reply.tokens().len();
            let drafted = if whole { reply.drafted() } else { 0 };
            let logits = if whole { 1 + drafted } else { 0 };
            Chunk { table, tokens: &reply.with_draft()[begin..end + drafted], logits }
        })
    }

    /// After a step: takes the rows of logits that are theirs, and chooses what follows.
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
            // Who has run nothing begins after the same prompt, with the same logits. While the
            // prompt is not run, there are none.
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

    /// The next piece in turn, if it is made.
    pub(crate) fn next_piece(&mut self) -> Option<TextPiece> {
        let due = self.due()?;
        let choice = &mut self.choices[due];
        let piece = choice.pieces.pop_front()?;
        choice.told += 1;
        Some(piece)
    }

    /// Forgets what was run of drafts and turned out not to be of the replies.
    pub(crate) fn roll_back(&mut self, cache: &mut KvCache) {
        for Choice { reply, table, .. } in &mut self.choices {
            // The last token of a reply was chosen, and not run. Room for more was a draft's.
            if table.len() + 1 >= reply.tokens().len() {
                cache.truncate(table, reply.tokens().len() - 1);
            }
        }
    }

    /// Remembers what has been run, for others in this scope.
    pub(crate) fn remember(&mut self, cache: &mut KvCache, scope: &Arc<str>) {
        for Choice { reply, table, .. } in &mut self.choices {
            cache.remember(table, scope, reply.tokens());
        }
    }

    /// Gives the prompt's blocks to those that have none, and takes back those of who has ended, for
    /// those that wait.
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

    /// Lets the last of those that go on wait until another has ended, and takes back its memory;
    /// `false` if there is only one.
    pub(crate) fn shrink(&mut self, cache: &mut KvCache) -> bool {
        let mut going = self.choices.iter_mut().filter(|choice| choice.goes_on());
        let (Some(_), Some(last)) = (going.next(), going.next_back()) else { return false };
        last.waits = true;
        cache.truncate(&mut last.table, 0);
        self.in_turns = true;
        true
    }

    /// Lets all go on that wait, with what the cache remembers of them. Where that is too many
    /// again, the last ones wait again.
    fn wake(&mut self, cache: &mut KvCache, scope: &Arc<str>) {
        for choice in self.choices.iter_mut().filter(|choice| choice.waits) {
            choice.waits = false;
            let Choice { reply, table, .. } = choice;
            cache.recall(table, scope, reply.tokens());
            // Less than the prompt is of no use: who has ended still has that.
            if table.len() < self.prompt {
                cache.truncate(table, 0);
            }
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

    /// How it ended, once the last piece has had its turn. The reason is the first one's; pieces
    /// tell that of each. An error ends all of them where its piece would have been.
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

    /// Whose turn it is: of those that have more to come, who has had the fewest turns.
    fn due(&self) -> Option<usize> {
        let more =
            |choice: &Choice| !choice.pieces.is_empty() || !matches!(choice.end, Some(Ok(_)));
        let choices = self.choices.iter().enumerate().filter(|(_, choice)| more(choice));
        choices.min_by_key(|(_, choice)| choice.told).map(|(index, _)| index)
    }

    /// Those that run next: all that go on, but for who is too far ahead of the others, unless those
    /// cannot run.
    fn round(&self) -> impl Iterator<Item = usize> {
        let far = if self.in_turns { usize::MAX } else { AHEAD };
        let runs = move |choice: &Choice| choice.goes_on() && choice.pieces.len() < far;
        let choices = self.choices.iter().enumerate();
        choices.filter(move |(_, choice)| runs(choice)).map(|(index, _)| index).take(self.most)
    }

    /// Whether some wait for the first of the round to run the prompt.
    fn awaits_prompt(&self) -> bool {
        let Some(first) = self.round().next() else { return false };
        let waits = |(index, choice): (usize, &Choice)| {
            index != first && choice.goes_on() && choice.table.is_empty()
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
            if self.choices[index].goes_on() && self.choices[index].table.is_empty() {
                let mut table = cache.fork(&self.choices[source].table);
                // Its last token is run for its own logits.
                let most = self.choices[index].reply.tokens().len() - 1;
                cache.truncate(&mut table, prompt.min(most));
                self.choices[index].table = table;
            }
        }
    }
}

/// Says in each piece whose it is, and in the last one of a reply why it is.
fn number(added: &mut Addition, index: usize) {
    added.pieces.iter_mut().for_each(|piece| piece.index = index as u32);
    if let (Some(last), Some(Ok(reason))) = (added.pieces.last_mut(), &added.end) {
        last.finish_reason = Some(*reason);
    }
}
