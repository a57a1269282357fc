//! Drafter that runs a smaller model.

use std::collections::HashMap;
use std::time::Instant;

use nsbridge_handler::Result;

use super::{Continuation, Costs, Drafter};
use crate::kv::BlockTable;
use crate::network::{Chunk, Model, Watch};
use crate::sample::Scratch;

/// Draft model with the target's vocabulary. It drafts several replies in one batch.
pub(crate) struct DraftModel {
    model: Model,
    /// Maximum number of tokens of a step.
    step: usize,
    /// True if it has a prefix cache.
    caching: bool,
    known: HashMap<u64, Known>,
    costs: Costs,
    scratch: Scratch,
    /// Number of calls so far. Sequences drafted least recently are evicted first.
    calls: u64,
}

/// State of a sequence in the draft model.
#[derive(Default)]
struct Known {
    table: BlockTable,
    /// The part of the last draft that the table has, and its first position. The reply may have
    /// continued otherwise.
    from: usize,
    draft: Vec<u32>,
    call: u64,
}

impl DraftModel {
    /// Creates a drafter with steps of at most `step` tokens. `caching` turns on its prefix cache.
    pub(crate) fn new(model: Model, step: usize, caching: bool) -> Self {
        Self {
            model,
            step,
            caching,
            known: HashMap::new(),
            costs: Costs::default(),
            scratch: Scratch::default(),
            calls: 0,
        }
    }

    /// Truncates the table to what the reply and the last draft have in common.
    fn settle(&mut self, reply: &Continuation<'_>) -> Known {
        let mut known = self.known.remove(&reply.sequence()).unwrap_or_default();
        let tokens = &reply.tokens()[known.from.min(reply.tokens().len())..];
        let alike = known.draft.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is run for its logits, even if it was run before.
        let most = (known.from + alike).min(reply.tokens().len() - 1);
        self.model.cache().truncate(&mut known.table, most);
        known.call = self.calls;
        known
    }

    /// Reserves memory for `tokens` more tokens, evicting sequences that are not drafted now if
    /// needed.
    fn reserve(&mut self, table: &mut BlockTable, tokens: usize) -> bool {
        while !self.model.cache().reserve(table, tokens) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.call);
            let Some((&sequence, _)) = oldest else { return false };
            self.forget(sequence);
        }
        true
    }

    /// Returns how many tokens of each reply to run before its first guess, within the token
    /// budget of a step. Replies that lack the fewest tokens come first.
    fn lacking(&mut self, replies: &[Continuation<'_>], known: &mut [Known]) -> Vec<usize> {
        if self.caching {
            for (reply, known) in replies.iter().zip(&mut *known) {
                self.model.cache().recall(&mut known.table, reply.scope(), reply.tokens());
            }
        }
        let lack =
            |(reply, known): (&Continuation<'_>, &Known)| reply.tokens().len() - known.table.len();
        let mut parts: Vec<usize> = replies.iter().zip(&*known).map(lack).collect();
        let mut turns: Vec<usize> = (0..parts.len()).collect();
        turns.sort_by_key(|turn| parts[*turn]);
        let mut room = self.step;
        for turn in turns {
            let part = parts[turn].min(room);
            parts[turn] = if self.reserve(&mut known[turn].table, part) { part } else { 0 };
            room -= parts[turn];
        }
        parts
    }

    /// Returns one token to run for each draft that goes on.
    fn last(&mut self, replies: &[Continuation<'_>], known: &mut [Known]) -> Vec<usize> {
        let mut part = |(reply, known): (&Continuation<'_>, &mut Known)| {
            let tokens = reply.tokens().len();
            let wants = reply.drafted() > 0 && reply.wanted() > 0;
            // If the last choice was not added to the draft, the table already has all tokens of
            // the draft.
            let goes_on = wants && known.table.len() + 1 == tokens;
            let within = tokens <= self.model.context();
            usize::from(goes_on && within && self.reserve(&mut known.table, 1))
        };
        replies.iter().zip(known).map(&mut part).collect()
    }

    /// Runs `parts` tokens of each reply, and drafts the next token of each reply that is complete.
    /// Returns the number of tokens run.
    fn run(
        &mut self,
        replies: &mut [Continuation<'_>],
        known: &mut [Known],
        parts: &[usize],
    ) -> Result<usize> {
        let mut draws = self.model.draws();
        if let Some(draws) = &mut draws {
            let mut row = 0;
            for ((reply, known), part) in replies.iter_mut().zip(&*known).zip(parts) {
                if *part > 0 && known.table.len() + part == reply.tokens().len() {
                    reply.describe(row, draws);
                    row += 1;
                }
            }
        }
        let chunks = replies.iter().zip(&mut *known).zip(parts).filter(|(_, part)| **part > 0);
        let mut chunks: Vec<Chunk<'_>> = chunks
            .map(|((reply, known), part)| {
                let (begin, end) = (known.table.len(), known.table.len() + part);
                let logits = usize::from(end == reply.tokens().len());
                Chunk { table: &mut known.table, tokens: &reply.tokens()[begin..end], logits }
            })
            .collect();
        if chunks.is_empty() {
            return Ok(0);
        }
        let results = self.model.forward_drawn(&mut chunks, draws)?;
        let mut rows = results.rows();
        for ((reply, known), part) in replies.iter_mut().zip(known).zip(parts) {
            let whole = *part > 0 && known.table.len() == reply.tokens().len();
            if let Some(row) = whole.then(|| rows.next()).flatten() {
                reply.choose_from(row, &mut self.scratch);
            }
        }
        Ok(parts.iter().sum())
    }

    /// Extends all drafts, by one token of each at a time.
    fn draft_all(&mut self, replies: &mut [Continuation<'_>], known: &mut [Known]) -> Result<()> {
        let parts = self.lacking(replies, known);
        self.run(replies, known, &parts)?;
        if self.caching {
            for (reply, known) in replies.iter().zip(&mut *known) {
                // No token of the draft has been run yet.
                let tokens = &reply.tokens()[..reply.tokens().len() - reply.drafted()];
                self.model.cache().remember(&mut known.table, reply.scope(), tokens);
            }
        }
        loop {
            let parts = self.last(replies, known);
            let begun = Instant::now();
            let count = self.run(replies, known, &parts)?;
            if count == 0 {
                return Ok(());
            }
            self.costs.learn(count, begun.elapsed().as_secs_f64());
        }
    }
}

impl Drafter for DraftModel {
    fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()> {
        self.calls += 1;
        let mut known: Vec<Known> = replies.iter().map(|reply| self.settle(reply)).collect();
        let result = self.draft_all(replies, &mut known);
        for (reply, mut known) in replies.iter().zip(known) {
            let (tokens, run) = (reply.tokens(), known.table.len());
            known.from = (tokens.len() - reply.drafted()).min(run);
            known.draft = tokens[known.from..run].to_vec();
            self.known.insert(reply.sequence(), known);
        }
        result
    }

    fn forget(&mut self, sequence: u64) {
        if let Some(known) = self.known.remove(&sequence) {
            self.model.cache().release(known.table);
        }
    }

    fn forget_all(&mut self) {
        self.model.cache().forget_all();
    }

    fn cost(&self, tokens: usize) -> f64 {
        // A cost of zero until the first measurement makes the drafter run once.
        if self.costs.are_measured() { self.costs.of(tokens) } else { 0.0 }
    }

    fn behind(&self, sequence: u64, tokens: usize) -> Option<usize> {
        let run = self.known.get(&sequence).map_or(0, |known| known.table.len());
        (tokens <= self.model.context()).then(|| tokens.saturating_sub(run))
    }

    fn watch(&self) -> Option<Watch> {
        Some(self.model.watch())
    }

    fn warm_up(&mut self) -> Result<()> {
        self.costs = Costs::of_model(&mut self.model, self.step)?;
        Ok(())
    }
}
