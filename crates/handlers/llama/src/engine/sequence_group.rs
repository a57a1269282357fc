//! Sequence group of one request: one reply or several to the same prompt.
//!
//! Pieces leave in a fixed order: the first token of each sequence in order of index, then the
//! second of each sequence that has not ended, and so on. All sequences run in the same step; a
//! sequence that gets ahead by accepted drafts keeps its pieces until their turn. The prompt runs
//! once and its blocks are shared; the partly filled last block is copied on write.
//!
//! If the KV cache has no space for all sequences, they run in turns: the last ones wait until an
//! earlier one has ended. A running sequence continues to its end, however far its pieces are
//! ahead, because recomputing a waiting sequence costs more than keeping pieces.
//!
//! The rows of the prompt of a single sequence may be read too, by [`PromptRows`]. If the request
//! asks for no token beyond the prompt, the sequence ends with the last row that is read.

use std::sync::Arc;

use nsbridge_handler::{Error, Finish, FinishReason, Result, TextPiece, Usage};

use super::prompt_rows::PromptRows;
use super::sequence::Sequence;
use crate::grammar::Grammar;
use crate::kv::KvCacheManager;
use crate::network::Chunk;
use crate::reply::{Addition, Reply};
use crate::sample::{Draws, LogitsRow, Scratch};
use crate::schedule::Work;
use crate::speculation::{Tally, Undrafted};
use nsbridge_kernels::attention::PAGE;

/// Maximum number of pieces that a sequence may be ahead of its turn before it waits for the
/// others.
const AHEAD: usize = 16;

/// Sequences of a request, at least one: one for each choice of its reply.
#[derive(Debug)]
pub(crate) struct SequenceGroup {
    sequences: Vec<Sequence>,
    /// Number of tokens of the prompt.
    prompt: usize,
    /// Reader of the prompt's rows, if the request asks for more than a reply. There is one sequence
    /// then.
    prompt_rows: Option<PromptRows>,
    /// Number of prompt tokens found in the prefix cache; `None` before the lookup.
    cached: Option<usize>,
    /// Maximum number of sequences that run in one step.
    most: usize,
    /// True once the KV cache was too small for all sequences at the same time.
    in_turns: bool,
}

impl SequenceGroup {
    /// Creates the sequences from replies to the same prompt, at least one. At most `most` run in a
    /// step.
    pub(crate) fn new(replies: Vec<Reply>, most: usize) -> Self {
        let prompt = replies.first().map_or(0, |reply| reply.tokens().len());
        let sequences = replies.into_iter().map(Sequence::new).collect();
        Self { sequences, prompt, prompt_rows: None, cached: None, most, in_turns: false }
    }

    /// Sets the reader of the prompt's rows, for a group of one sequence.
    pub(crate) fn read_prompt_by(&mut self, reader: PromptRows) {
        for sequence in &mut self.sequences {
            sequence.unread = usize::from(!sequence.has_reply() && !reader.read_last());
        }
        self.prompt_rows = Some(reader);
        self.end_with_prompt();
    }

    /// Ends a sequence without a reply once no further row of its prompt is needed.
    fn end_with_prompt(&mut self) {
        let Self { sequences, prompt_rows: Some(pieces), .. } = self else { return };
        let over = pieces.first_row().is_none();
        for sequence in sequences.iter_mut().filter(|sequence| over && !sequence.has_reply()) {
            sequence.end = Some(Ok(FinishReason::Length));
        }
    }

    /// Assigns ids, counting up from `next`.
    pub(crate) fn number(&mut self, next: &mut u64) {
        for sequence in &mut self.sequences {
            sequence.id = *next;
            *next += 1;
        }
    }

    /// Returns the ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.sequences.iter().map(|sequence| sequence.id)
    }

    /// Returns the maximum number of pieces of all sequences together.
    pub(crate) fn longest(&self) -> usize {
        let longest = self.sequences.iter().map(|sequence| sequence.reply.longest());
        let of_prompt = self.prompt_rows.as_ref().map_or(0, PromptRows::pieces);
        longest.fold(of_prompt, usize::saturating_add)
    }

    /// Returns the number of tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt as u64
    }

    /// Constrains each sequence to a grammar, from its first token on.
    ///
    /// # Errors
    ///
    /// Returns an error if no token may be the first.
    pub(crate) fn constrain(&mut self, grammar: Grammar) -> Result<()> {
        if let Some((last, others)) = self.sequences.split_last_mut() {
            others.iter_mut().for_each(|sequence| sequence.reply.constrain(grammar.clone()));
            last.reply.constrain(grammar);
        }
        // All sequences begin in the same state of the grammar, so checking one is enough.
        self.sequences.first_mut().map_or(Ok(()), |sequence| sequence.reply.check_first())
    }

    /// Takes over the pieces of an earlier attempt. Returns the finish if they are the whole reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the pieces cannot belong to this request.
    pub(crate) fn take_resumed(&mut self, pieces: &[TextPiece]) -> Result<Option<Finish>> {
        for piece in pieces {
            if let Some(of_prompt) = self.prompt_rows.as_mut().filter(|pieces| pieces.remain()) {
                let own = self.sequences.first().map_or(&[][..], |first| first.reply.prompt());
                if !of_prompt.take_resumed(own, piece) {
                    return Err(not_ours());
                }
                self.end_with_prompt();
                continue;
            }
            let Some(next) = self.due().filter(|next| *next == piece.index as usize) else {
                return Err(not_ours());
            };
            let sequence = &mut self.sequences[next];
            sequence.end = sequence.reply.take_resumed(piece.token)?.map(Ok);
            sequence.told += 1;
        }
        self.finish().transpose()
    }

    /// Returns the cost of sampling a token of each sequence, in tokens of a plain reply.
    pub(crate) fn weight(&self) -> usize {
        self.sequences.first().map_or(1, |sequence| sequence.reply.weight())
    }

    /// Returns the tokens to run before each sequence can sample its next one.
    pub(crate) fn work(&self) -> Work {
        let Some(first) = self.round().next() else { return Work::default() };
        let first = &self.sequences[first];
        if self.awaits_prompt() {
            // One run of the prompt yields the first token of every sequence. A resumed sequence
            // needs more tokens.
            let begins = first.reply.made() == 0;
            let (tokens, together) = (self.prompt - first.table.len(), begins.into());
            return Work { tokens, together, scored: None };
        }
        let tokens = self.round().map(|index| self.sequences[index].left()).sum();
        let replies = self.round().filter(|index| self.sequences[*index].has_reply());
        let scored = self.prompt_rows.as_ref().and_then(PromptRows::scored);
        Work { tokens, together: replies.count(), scored }
    }

    /// Returns the tokens of a sequence that its blocks of the prefix cache may hold: all but the last
    /// one or, if rows of the prompt are read, those before the first such row.
    fn known<'a>(sequence: &'a Sequence, prompt_rows: Option<&PromptRows>) -> &'a [u32] {
        let needed = prompt_rows.and_then(PromptRows::first_row);
        let tokens = sequence.reply.tokens();
        needed.map_or(tokens, |row| &tokens[..=row])
    }

    /// Returns the tokens that the prefix cache may hold for the sequence that runs first, if any can
    /// run. At least the last of them is left to run.
    pub(crate) fn prefix(&self) -> Option<&[u32]> {
        let first = self.round().next()?;
        Some(Self::known(&self.sequences[first], self.prompt_rows.as_ref()))
    }

    /// Returns true if the prompt is being run and its next blocks are of use for another sequence
    /// that begins with these tokens.
    pub(crate) fn computes_more_of(&self, tokens: &[u32]) -> bool {
        let Some(first) = self.round().next() else { return false };
        let Sequence { reply, table, .. } = &self.sequences[first];
        if table.blocks().is_empty() || table.len() >= self.prompt {
            return false;
        }
        let own = &reply.tokens()[..self.prompt];
        let equal = own.iter().zip(tokens).take_while(|(own, other)| own == other).count();
        let useful = equal.min(tokens.len().saturating_sub(1)) / PAGE * PAGE;
        table.len() < useful
    }

    /// Starts from the blocks that the prefix cache has. On the first call, returns the numbers of
    /// prompt tokens that were hits and misses.
    pub(crate) fn recall(
        &mut self,
        cache: &mut KvCacheManager,
        scope: &Arc<str>,
    ) -> Option<(usize, usize)> {
        let first = self.round().next()?;
        for (index, sequence) in self.sequences.iter_mut().enumerate() {
            if sequence.goes_on() {
                let mut table = std::mem::take(&mut sequence.table);
                cache.recall(&mut table, scope, Self::known(sequence, self.prompt_rows.as_ref()));
                sequence.table = table;
                let table = &mut sequence.table;
                // A partial prompt is dropped: the first sequence runs it for the others.
                if index != first && table.len() < self.prompt {
                    cache.truncate(table, 0);
                }
            }
        }
        let looked_up = self.cached.is_none().then(|| {
            let cached = self.sequences[first].table.len().min(self.prompt);
            self.cached = Some(cached);
            (cached, self.prompt - cached)
        });
        self.share_prompt(cache);
        looked_up
    }

    /// Reserves memory for `tokens` tokens of [`work`](Self::work). Returns false if there is too
    /// little.
    pub(crate) fn reserve(&mut self, cache: &mut KvCacheManager, tokens: usize) -> bool {
        let parts = self.parts(tokens);
        let mut sequences = self.sequences.iter_mut().zip(parts);
        sequences.all(|(sequence, part)| part == 0 || cache.reserve(&mut sequence.table, part))
    }

    /// Returns the sequences that may have a draft if `tokens` tokens of [`work`](Self::work) run
    /// next: those that run exactly one token.
    pub(crate) fn undrafted<'a>(
        &'a mut self,
        tokens: usize,
        scope: &'a Arc<str>,
    ) -> impl Iterator<Item = Undrafted<'a>> {
        let parts = self.parts(tokens);
        let goes_on = |(sequence, part): &(&mut Sequence, usize)| {
            *part == 1 && sequence.left() == 1 && sequence.has_reply()
        };
        self.sequences.iter_mut().zip(parts).filter(goes_on).map(move |(sequence, _)| {
            let Sequence { reply, table, stats, id, .. } = sequence;
            Undrafted { reply, table, stats, sequence: *id, scope }
        })
    }

    /// Returns the chunks of one step for `tokens` tokens of [`work`](Self::work), with the drafts.
    pub(crate) fn chunks(&mut self, tokens: usize) -> impl Iterator<Item = Chunk<'_>> {
        let parts = self.parts(tokens);
        let pieces = self.prompt_rows.as_ref();
        let some = self.sequences.iter_mut().zip(parts).filter(|(_, part)| *part > 0);
        some.map(move |(sequence, part)| {
            let has_reply = sequence.has_reply();
            let Sequence { reply, table, .. } = sequence;
            let (begin, end) = (table.len(), table.len() + part);
            // A draft follows the last of the sequence's own tokens.
            let whole = end == reply.tokens().len();
            let drafted = if whole { reply.drafted() } else { 0 };
            let of_prompt = pieces.map_or(0, |pieces| pieces.rows(end));
            let logits = of_prompt + if whole && has_reply { 1 + drafted } else { 0 };
            Chunk { table, tokens: &reply.with_draft()[begin..end + drafted], logits }
        })
    }

    /// Adds the tokens of a step that runs `tokens` tokens of [`work`](Self::work) to those that a
    /// device samples. `row` is the group's first row of logits, and then the next group's.
    pub(crate) fn describe(&mut self, tokens: usize, row: &mut u32, draws: &mut Draws) {
        let (parts, round): (_, Vec<usize>) = (self.parts(tokens), self.round().collect());
        // Row of the prompt from which all sequences that begin take their first token.
        let mut shared = None;
        if let (Some(pieces), Some(first)) = (&self.prompt_rows, self.sequences.first()) {
            *row += pieces.rows(first.table.len() + parts[0]) as u32;
        }
        for index in round {
            let sequence = &mut self.sequences[index];
            if !sequence.has_reply() {
                continue;
            }
            let (end, own) = (sequence.table.len() + parts[index], sequence.reply.tokens().len());
            let begins = sequence.reply.made() == 0 && sequence.table.is_empty();
            if parts[index] > 0 && end == own {
                shared = Some(*row);
                sequence.reply.describe(*row, draws);
                *row += 1 + sequence.reply.drafted() as u32;
            } else if let Some(row) = shared.filter(|_| begins && parts[index] == 0) {
                sequence.reply.describe(row, draws);
            }
        }
    }

    /// Takes the rows of logits of these sequences from `rows` after a step, and samples the next
    /// tokens.
    pub(crate) fn next<'a>(
        &mut self,
        rows: &mut impl Iterator<Item = LogitsRow<'a>>,
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) {
        let (round, several): (Vec<usize>, _) = (self.round().collect(), self.sequences.len() > 1);
        let failed = self.read_prompt(rows, scratch).err();
        let mut own: Vec<LogitsRow<'_>> = Vec::new();
        for index in round {
            let sequence = &mut self.sequences[index];
            if !sequence.has_reply() {
                continue;
            }
            let run = sequence.reply.tokens().len() + sequence.reply.drafted();
            if sequence.table.len() == run {
                own.clear();
                own.extend(rows.by_ref().take(1 + sequence.reply.drafted()));
            }
            // A sequence that has run nothing samples from the logits of the shared prompt. Before
            // the prompt is complete, there are no logits.
            let begins = sequence.reply.made() == 0 && sequence.table.is_empty();
            if own.is_empty() || !(sequence.table.len() == run || begins) {
                continue;
            }
            let mut added = sequence.reply.next(&own, scratch);
            if several {
                number(&mut added, index);
            }
            tally.add(&mut sequence.stats, added.drafted, added.accepted);
            sequence.pieces.extend(added.pieces);
            sequence.end = added.end;
        }
        self.end_with_prompt();
        // Only now, since the rows of the reply are taken in any case.
        if let (Some(error), Some(first)) = (failed, self.sequences.first_mut()) {
            first.pieces.clear();
            first.end = Some(Err(error));
        }
    }

    /// Takes the needed rows of the prompt from `rows` and reads them.
    fn read_prompt<'a>(
        &mut self,
        rows: &mut impl Iterator<Item = LogitsRow<'a>>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Self { sequences, prompt_rows: Some(pieces), .. } = self else { return Ok(()) };
        let Some(Sequence { reply, table, .. }) = sequences.first() else { return Ok(()) };
        let rows: Vec<_> = rows.take(pieces.rows(table.len())).map(|row| row.numbers()).collect();
        let rows: Vec<&[f32]> = rows.iter().map(|row| &**row).collect();
        pieces.read(reply.prompt(), &rows, scratch)
    }

    /// Returns the next piece in turn, if it is available.
    pub(crate) fn next_piece(&mut self) -> Option<TextPiece> {
        if let Some(pieces) = self.prompt_rows.as_mut().filter(|pieces| pieces.remain()) {
            return pieces.next_piece(self.sequences.first()?.reply.prompt());
        }
        let due = self.due()?;
        let sequence = &mut self.sequences[due];
        let piece = sequence.pieces.pop_front()?;
        sequence.told += 1;
        Some(piece)
    }

    /// Removes the keys and values of rejected draft tokens.
    pub(crate) fn roll_back(&mut self, cache: &mut KvCacheManager) {
        for Sequence { reply, table, .. } in &mut self.sequences {
            // The last token of a reply is sampled but not run. Capacity beyond it was for a draft.
            if table.len() + 1 >= reply.tokens().len() {
                cache.truncate(table, reply.tokens().len() - 1);
            }
        }
    }

    /// Adds the blocks that were run to the prefix cache of this scope.
    pub(crate) fn remember(&mut self, cache: &mut KvCacheManager, scope: &Arc<str>) {
        for Sequence { reply, table, .. } in &mut self.sequences {
            cache.remember(table, scope, reply.tokens());
        }
    }

    /// Shares the prompt's blocks with sequences that have none, and frees the memory of ended
    /// sequences for those that wait.
    pub(crate) fn settle(&mut self, cache: &mut KvCacheManager, scope: &Arc<str>) {
        let ended =
            |sequence: &Sequence| sequence.end.is_some() && !sequence.table.blocks().is_empty();
        if self.sequences.iter().any(ended) {
            self.wake(cache, scope);
        }
        self.share_prompt(cache);
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.end.is_some()) {
            cache.truncate(&mut sequence.table, 0);
        }
    }

    /// Makes the last running sequence wait until another has ended, and frees its memory. Returns
    /// false if only one sequence is running.
    pub(crate) fn shrink(&mut self, cache: &mut KvCacheManager) -> bool {
        let mut going = self.sequences.iter_mut().filter(|sequence| sequence.goes_on());
        let (Some(_), Some(last)) = (going.next(), going.next_back()) else { return false };
        last.waits = true;
        cache.truncate(&mut last.table, 0);
        self.in_turns = true;
        true
    }

    /// Resumes all waiting sequences from their blocks in the prefix cache. If they are too many
    /// again, the last ones wait again.
    fn wake(&mut self, cache: &mut KvCacheManager, scope: &Arc<str>) {
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.waits) {
            sequence.waits = false;
            let Sequence { reply, table, .. } = sequence;
            cache.recall(table, scope, reply.tokens());
            // Less than the prompt is of no use: the ended sequence still has the whole prompt.
            if table.len() < self.prompt {
                cache.truncate(table, 0);
            }
        }
    }

    /// Frees the memory of all sequences.
    pub(crate) fn release(&mut self, cache: &mut KvCacheManager) {
        self.sequences.iter_mut().for_each(|sequence| cache.truncate(&mut sequence.table, 0));
    }

    /// Returns true if any sequence has memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.sequences.iter().any(|sequence| !sequence.table.blocks().is_empty())
    }

    /// Returns the result of the request once all pieces are delivered. The finish reason is that
    /// of the first sequence; the pieces have that of each sequence. An error ends all sequences at
    /// the turn of the missing piece.
    pub(crate) fn finish(&mut self) -> Option<Result<Finish>> {
        if let Some(due) = self.due() {
            let Sequence { pieces, end, .. } = &mut self.sequences[due];
            let failed = pieces.is_empty() && matches!(end, Some(Err(_)));
            return if failed { end.take()?.err().map(Err) } else { None };
        }
        if self.prompt_rows.as_ref().is_some_and(PromptRows::remain) {
            return None;
        }
        let Some(Ok(reason)) = self.sequences.first()?.end else { return None };
        let sum = |count: fn(&Sequence) -> u64| self.sequences.iter().map(count).sum();
        let made = sum(|sequence| sequence.reply.made() as u64);
        let drafted = sum(|sequence| sequence.stats.drafted());
        let accepted = sum(|sequence| sequence.stats.accepted());
        let usage = Usage::new(self.prompt as u64, made)
            .with_cached(self.cached.unwrap_or(0) as u64)
            .with_drafted(drafted, accepted);
        Some(Ok(Finish::because(reason).with_usage(usage)))
    }

    /// Returns the sequence whose turn it is: of those with more to come, the one with the fewest
    /// pieces delivered.
    fn due(&self) -> Option<usize> {
        let more = |sequence: &Sequence| {
            !sequence.pieces.is_empty() || !matches!(sequence.end, Some(Ok(_)))
        };
        let sequences = self.sequences.iter().enumerate().filter(|(_, sequence)| more(sequence));
        sequences.min_by_key(|(_, sequence)| sequence.told).map(|(index, _)| index)
    }

    /// Returns the sequences that run next, `most` at most: those that go on, without any that is
    /// [`AHEAD`] pieces ahead. In turns, that limit does not apply, since the others cannot run.
    fn round(&self) -> impl Iterator<Item = usize> {
        let far = if self.in_turns { usize::MAX } else { AHEAD };
        let runs = move |sequence: &Sequence| sequence.goes_on() && sequence.pieces.len() < far;
        let sequences = self.sequences.iter().enumerate();
        sequences
            .filter(move |(_, sequence)| runs(sequence))
            .map(|(index, _)| index)
            .take(self.most)
    }

    /// Returns true if other sequences wait for the first of the round to run the prompt.
    fn awaits_prompt(&self) -> bool {
        let Some(first) = self.round().next() else { return false };
        let waits = |(index, sequence): (usize, &Sequence)| {
            index != first && sequence.goes_on() && sequence.table.is_empty()
        };
        self.sequences[first].table.len() < self.prompt
            && self.sequences.iter().enumerate().any(waits)
    }

    /// Splits `tokens` over the sequences. If they are all of the work, each sequence of the round
    /// gets logits; otherwise none does.
    fn parts(&self, tokens: usize) -> Vec<usize> {
        let mut parts = vec![0; self.sequences.len()];
        if self.awaits_prompt() {
            if let Some(first) = self.round().next() {
                parts[first] = tokens;
            }
            return parts;
        }
        let all = tokens == self.work().tokens;
        let mut room = tokens;
        for index in self.round() {
            let left = self.sequences[index].left();
            parts[index] = if all { left } else { left.saturating_sub(1).min(room) };
            room -= parts[index];
        }
        parts
    }

    fn share_prompt(&mut self, cache: &mut KvCacheManager) {
        let prompt = self.prompt;
        let Some(source) =
            self.sequences.iter().position(|sequence| sequence.table.len() >= prompt)
        else {
            return;
        };
        for index in 0..self.sequences.len() {
            if self.sequences[index].goes_on() && self.sequences[index].table.is_empty() {
                let mut table = cache.fork(&self.sequences[source].table);
                // The last prompt token runs again to get its logits.
                let most = self.sequences[index].reply.tokens().len() - 1;
                cache.truncate(&mut table, prompt.min(most));
                self.sequences[index].table = table;
            }
        }
    }
}

fn not_ours() -> Error {
    Error::bad_input("the resumed pieces are not of this model's making")
}

/// Sets the sequence index of each piece, and the finish reason in the last piece of a reply.
fn number(added: &mut Addition, index: usize) {
    added.pieces.iter_mut().for_each(|piece| piece.index = index as u32);
    if let (Some(last), Some(Ok(reason))) = (added.pieces.last_mut(), &added.end) {
        last.finish_reason = Some(*reason);
    }
}
