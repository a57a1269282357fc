//! Lossless speculative decoding: draft tokens that the model verifies in one step.
//!
//! A [`Drafter`] guesses the continuation of a reply. The model runs the draft after the reply's
//! last token in one step, which costs little more than a step of one token. From each row of
//! logits, the reply takes the token that it would have taken without a draft; the next row is
//! valid if that is the drafted token. The sampling noise is a hash of the position
//! ([`Noise`](crate::Noise)), and the drafter samples with the same noise. So a draft is right
//! where both distributions choose the same token. For a total variation distance `d`, that has a
//! probability of at least `(1 - d) / (1 + d)` (Daliri, Musco and Suresh, arXiv:2408.07978). The
//! tokens of a reply do not depend on the drafter, on the draft length or on whether there is a
//! drafter.

mod cost;
mod length;
mod model;
mod ngram;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nsbridge_handler::{Error, Result};

use crate::kv::{BlockTable, KvCacheManager};
use crate::network::{Model, Watch};
use crate::reply::Reply;
use crate::sample::{Draws, LogitsRow, Scratch};

pub(crate) use self::cost::Costs;
pub(crate) use self::length::AcceptanceStats;
pub(crate) use self::model::DraftModel;
pub(crate) use self::ngram::NgramProposer;

/// Maximum number of tokens of a draft.
pub(crate) const MAX_DRAFT_TOKENS: usize = 16;

/// Drafter: guesses the continuations of replies. A wrong guess costs time and changes nothing
/// else.
pub trait Drafter: Send {
    /// Extends the drafts of these replies, which are empty.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot continue. The engine then goes on without drafts, as it does
    /// after a panic.
    fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()>;

    /// Drops the state of a reply that has ended or was canceled.
    fn forget(&mut self, sequence: u64) {
        let _ = sequence;
    }

    /// Clears the state kept of ended replies, such as a prefix cache.
    fn forget_all(&mut self) {}

    /// Returns the seconds of one drafter step with `tokens` tokens of all replies together.
    fn cost(&self, tokens: usize) -> f64 {
        let _ = tokens;
        0.0
    }

    /// Returns how many of a reply's `tokens` the drafter must run before its first guess, or
    /// `None` if it cannot draft the reply.
    fn behind(&self, sequence: u64, tokens: usize) -> Option<usize> {
        let _ = (sequence, tokens);
        Some(1)
    }

    /// Runs typical steps once, to measure their costs.
    ///
    /// # Errors
    ///
    /// Returns an error if the drafter cannot run.
    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the progress watch of the drafter's model, if it has one; called once. Without a
    /// watch, [`draft`](Self::draft) has no time limit and a hang is not detected.
    fn watch(&self) -> Option<Watch> {
        None
    }
}

/// Reply that may get a draft.
pub struct Continuation<'a> {
    reply: &'a mut Reply,
    sequence: u64,
    scope: &'a Arc<str>,
    most: usize,
}

impl fmt::Debug for Continuation<'_> {
    /// Omits the tokens, which are text of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Continuation");
        debug.field("sequence", &self.sequence).field("wanted", &self.wanted());
        debug.finish_non_exhaustive()
    }
}

impl Continuation<'_> {
    /// Returns the id of the reply, the same on every call.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the scope that may use what is computed of the reply.
    pub fn scope(&self) -> &Arc<str> {
        self.scope
    }

    /// Returns the tokens of the prompt, the reply so far and the draft.
    pub fn tokens(&self) -> &[u32] {
        self.reply.with_draft()
    }

    /// Returns how many of the tokens are the draft, which another model may reject.
    pub fn drafted(&self) -> usize {
        self.reply.drafted()
    }

    /// Returns the maximum number of tokens to add to the draft.
    pub fn wanted(&self) -> usize {
        (self.most - self.drafted()).min(self.reply.draft_room())
    }

    /// Adds to the draft the token that the reply would take if `logits` were the target's, one for
    /// each token of the vocabulary. Returns true if more tokens are wanted.
    pub fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) -> bool {
        self.choose_from(LogitsRow::Here(logits), scratch)
    }

    fn choose_from(&mut self, row: LogitsRow<'_>, scratch: &mut Scratch) -> bool {
        self.wanted() > 0 && self.reply.draft(row, scratch) && self.wanted() > 0
    }

    /// Adds the token of [`choose`](Self::choose) to those that a device samples, from this row.
    fn describe(&mut self, row: u32, draws: &mut Draws) {
        if self.wanted() > 0 {
            self.reply.describe_draft(row, draws);
        }
    }

    /// Adds a token to the draft. Returns true if more tokens are wanted. A token that cannot be
    /// the reply's next or would end the reply is not added, and then no more tokens are wanted.
    pub fn guess(&mut self, token: u32) -> bool {
        self.wanted() > 0 && self.reply.guess(token) && self.wanted() > 0
    }
}

/// Reply whose next step has one token, which a draft may follow.
pub(crate) struct Undrafted<'a> {
    pub(crate) reply: &'a mut Reply,
    pub(crate) table: &'a mut BlockTable,
    pub(crate) stats: &'a mut AcceptanceStats,
    pub(crate) sequence: u64,
    pub(crate) scope: &'a Arc<str>,
}

/// Settings of the draft length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// Maximum number of tokens of a draft.
    pub(crate) most: usize,
    /// True if the length follows the measured costs and acceptance; if false, it is always `most`.
    pub(crate) adaptive: bool,
}

/// Drafter with its measured costs.
pub(crate) struct Speculation {
    drafter: Box<dyn Drafter>,
    watch: Option<Watch>,
    lengths: Lengths,
    /// Costs of a step of the target model.
    costs: Costs,
}

/// Counts of drafted and accepted tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Acceptance over all replies.
    stats: AcceptanceStats,
    /// Drafted tokens by position in the draft.
    pub(crate) drafted: [u64; MAX_DRAFT_TOKENS],
    /// Accepted tokens by position in the draft.
    pub(crate) accepted: [u64; MAX_DRAFT_TOKENS],
}

impl Tally {
    /// Records a step of a reply in which `accepted` of `drafted` draft tokens were accepted.
    pub(crate) fn add(&mut self, own: &mut AcceptanceStats, drafted: usize, accepted: usize) {
        if drafted == 0 {
            own.rest(length::AFTER_REST);
            self.stats.rest(length::AFTER_REST_OF_ONE);
        }
        own.learn(drafted, accepted);
        self.stats.learn(drafted, accepted);
        let add = |counts: &mut [u64; MAX_DRAFT_TOKENS], count: usize| {
            counts.iter_mut().take(count).for_each(|count| *count += 1);
        };
        add(&mut self.drafted, drafted);
        add(&mut self.accepted, accepted);
    }

    /// Returns the probability that a drafted token is right if those before it are.
    fn acceptance(&self) -> f64 {
        self.stats.acceptance(length::GUESS)
    }
}

impl Speculation {
    pub(crate) fn new(drafter: Box<dyn Drafter>, lengths: Lengths) -> Self {
        let lengths = Lengths { most: lengths.most.min(MAX_DRAFT_TOKENS), ..lengths };
        Self { watch: drafter.watch(), drafter, lengths, costs: Costs::default() }
    }

    /// Measures the step costs of the target and of the drafter, the target's only for adaptive
    /// lengths.
    ///
    /// # Errors
    ///
    /// Returns an error if one of them cannot run.
    pub(crate) fn warm_up(&mut self, model: &mut Model, most: usize) -> Result<()> {
        if self.lengths.adaptive {
            self.costs = Costs::of_model(model, most)?;
        }
        self.drafter.warm_up()
    }

    /// Returns the maximum number of tokens of a draft.
    pub(crate) fn longest(&self) -> usize {
        self.lengths.most
    }

    /// Returns the progress watch of the drafter's model.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    pub(crate) fn drafter(&mut self) -> &mut dyn Drafter {
        &mut *self.drafter
    }

    /// Records that a step of the target with `rows` rows took `seconds`.
    pub(crate) fn learn_cost(&mut self, rows: usize, seconds: f64) {
        self.costs.learn(rows, seconds);
    }

    /// Drafts some of these replies. Their step has `rows` rows and room for `room` more.
    ///
    /// # Errors
    ///
    /// Returns an error if the drafter cannot continue. All drafts are then removed.
    pub(crate) fn draft(
        &mut self,
        replies: Vec<Undrafted<'_>>,
        (rows, room): (usize, usize),
        tally: &Tally,
        cache: &mut KvCacheManager,
    ) -> Result<()> {
        let wanted = self.wanted(&replies, rows, room, tally);
        let mut drafted: Vec<Continuation<'_>> = Vec::new();
        for (reply, most) in replies.into_iter().zip(wanted) {
            let Undrafted { reply, table, stats, sequence, scope } = reply;
            // Drafts only use memory that no request holds.
            let room = most > 0 && cache.reserve(table, 1 + most);
            stats.length = if room { most } else { 0 };
            if room {
                drafted.push(Continuation { reply, sequence, scope, most });
            }
        }
        if drafted.is_empty() {
            return Ok(());
        }
        let drafts = AssertUnwindSafe(|| self.drafter.draft(&mut drafted));
        let panicked = |_| Err(Error::fatal("the drafter panicked"));
        let result = catch_unwind(drafts).unwrap_or_else(panicked);
        if result.is_err() {
            drafted.into_iter().for_each(|continuation| continuation.reply.drop_draft());
        }
        result
    }

    /// Returns the draft length of each reply.
    fn wanted(
        &self,
        replies: &[Undrafted<'_>],
        rows: usize,
        room: usize,
        tally: &Tally,
    ) -> Vec<usize> {
        let all = tally.acceptance();
        let budget = |Undrafted { reply, stats, sequence, .. }: &Undrafted<'_>| {
            let behind = self.drafter.behind(*sequence, reply.tokens().len());
            let most = behind.map_or(0, |_| reply.draft_room().min(self.lengths.most));
            let acceptance = stats.acceptance(all);
            length::DraftBudget { acceptance, most, now: stats.length, behind: behind.unwrap_or(0) }
        };
        let budgets: Vec<_> = replies.iter().map(budget).collect();
        if !self.lengths.adaptive {
            let mut left = room;
            let wanted = budgets.iter().map(|budget| {
                let wanted = budget.most.min(left);
                left -= wanted;
                wanted
            });
            return wanted.collect();
        }
        let step = length::Step { rows, room, costs: &self.costs };
        length::choose(&budgets, step, &|tokens| self.drafter.cost(tokens))
    }
}
