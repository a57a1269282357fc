//! Speculative decoding without loss: a guess of the tokens that follow, run in one step.
//!
//! A [`Drafter`] guesses how a reply goes on. The model runs the guess behind the reply's last token
//! in one step, which costs little more than a step of one token, and the reply takes from each row
//! of logits the token that it would have taken without a draft: as long as that is the guessed one,
//! the next row is of use too. The noise of a draw is a hash of where it is made
//! ([`Noise`](crate::Noise)), so a draft that is drawn with the same noise is right where both
//! distributions choose the same token, with a probability of at least `(1 - d) / (1 + d)` for a
//! total variation distance `d` (Daliri, Musco and Suresh, arXiv:2408.07978), and the tokens of a
//! reply do not depend on the drafter, on how much it guesses, or on whether there is one.

mod cost;
mod length;
mod lookup;
mod model;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nsbridge_handler::{Error, Result};

use crate::reply::Reply;
use crate::{KvCache, Model, Scratch, Table, Watch};

pub(crate) use self::cost::Costs;
pub(crate) use self::length::Outlook;
pub(crate) use self::lookup::Lookup;
pub(crate) use self::model::DraftModel;

/// The most tokens of a draft.
pub(crate) const LONGEST: usize = 16;

/// Guesses how replies go on. A wrong guess costs time and changes nothing else.
pub trait Drafter: Send {
    /// Adds to the drafts of these replies, which are empty.
    ///
    /// # Errors
    ///
    /// It cannot go on: the engine goes on without it, as it does if this panics.
    fn draft(&mut self, replies: &mut [Continuation<'_>]) -> Result<()>;

    /// A reply has come to its end, or was given up.
    fn forget(&mut self, sequence: u64) {
        let _ = sequence;
    }

    /// Nothing of ended replies is to be used any more.
    fn forget_all(&mut self) {}

    /// The seconds of one of its steps, with so many tokens of all replies together.
    fn cost(&self, tokens: usize) -> f64 {
        let _ = tokens;
        0.0
    }

    /// How many of a reply's `tokens` it must run before its first guess; `None` if it has none.
    fn behind(&self, sequence: u64, tokens: usize) -> Option<usize> {
        let _ = (sequence, tokens);
        Some(1)
    }

    /// Runs once what it will run often, so that it knows its costs.
    ///
    /// # Errors
    ///
    /// It cannot be run.
    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }

    /// Who sees how far it is, if it runs a model; asked once. Without, [`draft`](Self::draft) may take
    /// as long as it likes, and nobody sees when it hangs.
    fn watch(&self) -> Option<Watch> {
        None
    }
}

/// A reply that may be drafted.
pub struct Continuation<'a> {
    reply: &'a mut Reply,
    sequence: u64,
    scope: &'a Arc<str>,
    most: usize,
}

impl fmt::Debug for Continuation<'_> {
    /// Leaves out the tokens, which are text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Continuation");
        debug.field("sequence", &self.sequence).field("wanted", &self.wanted());
        debug.finish_non_exhaustive()
    }
}

impl Continuation<'_> {
    /// The same number whenever it is the same reply.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Who may see what is computed of it.
    pub fn scope(&self) -> &Arc<str> {
        self.scope
    }

    /// The tokens of its prompt and the reply so far, and of the draft behind them.
    pub fn tokens(&self) -> &[u32] {
        self.reply.with_draft()
    }

    /// How many of the tokens are the draft: another model may know better.
    pub fn drafted(&self) -> usize {
        self.reply.drafted()
    }

    /// How many tokens the draft is to have more, at most.
    pub fn wanted(&self) -> usize {
        (self.most - self.drafted()).min(self.reply.draft_room())
    }

    /// Adds to the draft the token that the reply would take if these were its logits, one for each
    /// token of the vocabulary; whether more is wanted.
    pub fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) -> bool {
        self.wanted() > 0 && self.reply.draft(logits, scratch) && self.wanted() > 0
    }

    /// Adds a token to the draft; whether more is wanted. One that cannot be the reply's next, or
    /// would end it, is not added, and nothing is wanted behind it.
    pub fn guess(&mut self, token: u32) -> bool {
        self.wanted() > 0 && self.reply.guess(token) && self.wanted() > 0
    }
}

/// A reply whose next step has one token, and may have a draft behind it.
pub(crate) struct Undrafted<'a> {
    pub(crate) reply: &'a mut Reply,
    pub(crate) table: &'a mut Table,
    pub(crate) outlook: &'a mut Outlook,
    pub(crate) sequence: u64,
    pub(crate) scope: &'a Arc<str>,
}

/// How drafts are decided on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// The most tokens of a draft.
    pub(crate) most: usize,
    /// Whether a draft has as many as pay, by what was measured; else it has `most`.
    pub(crate) adaptive: bool,
}

/// A drafter, and what was learnt of it.
pub(crate) struct Speculation {
    drafter: Box<dyn Drafter>,
    watch: Option<Watch>,
    lengths: Lengths,
    /// What a step of the model costs.
    costs: Costs,
}

/// What became of drafts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Of all replies.
    outlook: Outlook,
    /// Tokens that were drafted at the first place, the second, and so on.
    pub(crate) drafted: [u64; LONGEST],
    /// And accepted.
    pub(crate) accepted: [u64; LONGEST],
}

impl Tally {
    /// A reply has had a step with so many drafted tokens, of which it took so many.
    pub(crate) fn add(&mut self, own: &mut Outlook, drafted: usize, accepted: usize) {
        if drafted == 0 {
            own.rest(length::AFTER_REST);
            self.outlook.rest(length::AFTER_REST_OF_ONE);
        }
        own.learn(drafted, accepted);
        self.outlook.learn(drafted, accepted);
        let add = |counts: &mut [u64; LONGEST], count: usize| {
            counts.iter_mut().take(count).for_each(|count| *count += 1);
        };
        add(&mut self.drafted, drafted);
        add(&mut self.accepted, accepted);
    }

    /// How likely a drafted token is right if those before it are.
    fn acceptance(&self) -> f64 {
        self.outlook.acceptance(length::GUESS)
    }
}

impl Speculation {
    pub(crate) fn new(drafter: Box<dyn Drafter>, lengths: Lengths) -> Self {
        let lengths = Lengths { most: lengths.most.min(LONGEST), ..lengths };
        Self { watch: drafter.watch(), drafter, lengths, costs: Costs::default() }
    }

    /// Measures what steps cost, of the model and of the drafter, if anything depends on it.
    ///
    /// # Errors
    ///
    /// One of them cannot be run.
    pub(crate) fn warm_up(&mut self, model: &mut Model, most: usize) -> Result<()> {
        if self.lengths.adaptive {
            self.costs = Costs::of_model(model, most)?;
        }
        self.drafter.warm_up()
    }

    /// The most tokens of a draft.
    pub(crate) fn longest(&self) -> usize {
        self.lengths.most
    }

    /// Who sees how far the drafter is.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    pub(crate) fn drafter(&mut self) -> &mut dyn Drafter {
        &mut *self.drafter
    }

    /// A step of the model with so many rows took so many seconds.
    pub(crate) fn learn_cost(&mut self, rows: usize, seconds: f64) {
        self.costs.learn(rows, seconds);
    }

    /// Drafts some of these, which are part of a step with `rows` rows and room for so many more.
    ///
    /// # Errors
    ///
    /// The drafter cannot go on. No draft is left.
    pub(crate) fn draft(
        &mut self,
        replies: Vec<Undrafted<'_>>,
        (rows, room): (usize, usize),
        tally: &Tally,
        cache: &mut KvCache,
    ) -> Result<()> {
        let wanted = self.wanted(&replies, rows, room, tally);
        let mut drafted: Vec<Continuation<'_>> = Vec::new();
        for (reply, most) in replies.into_iter().zip(wanted) {
            let Undrafted { reply, table, outlook, sequence, scope } = reply;
            // Memory that others hold is not asked for.
            let room = most > 0 && cache.reserve(table, 1 + most);
            outlook.length = if room { most } else { 0 };
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

    /// How many tokens each is to have drafted.
    fn wanted(
        &self,
        replies: &[Undrafted<'_>],
        rows: usize,
        room: usize,
        tally: &Tally,
    ) -> Vec<usize> {
        let all = tally.acceptance();
        let wish = |Undrafted { reply, outlook, sequence, .. }: &Undrafted<'_>| {
            let behind = self.drafter.behind(*sequence, reply.tokens().len());
            let most = behind.map_or(0, |_| reply.draft_room().min(self.lengths.most));
            let acceptance = outlook.acceptance(all);
            length::Wish { acceptance, most, now: outlook.length, behind: behind.unwrap_or(0) }
        };
        let wishes: Vec<_> = replies.iter().map(wish).collect();
        if !self.lengths.adaptive {
            let mut left = room;
            let wanted = wishes.iter().map(|wish| {
                let wanted = wish.most.min(left);
                left -= wanted;
                wanted
            });
            return wanted.collect();
        }
        let step = length::Step { rows, room, costs: &self.costs };
        length::choose(&wishes, step, &|tokens| self.drafter.cost(tokens))
    }
}
