//! A grammar's copy that runs ahead of it.

use super::Grammar;
use crate::{Allowed, TokenSet};

/// A copy of a reply's grammar that has seen the reply's draft too.
///
/// The grammar itself only ever sees the reply's own tokens. Its limits count the work that it has
/// done, and must be met at the same token whether or not anything was drafted.
#[derive(Debug)]
pub(crate) struct Scout {
    grammar: Grammar,
    /// How many tokens it has seen of the reply and its draft.
    seen: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    GoesOn,
    /// Nothing may follow what it has seen.
    Over,
    /// It met a limit: this reply is drafted no more.
    Broken,
}

impl Scout {
    /// Where the grammar of a reply with so many tokens is.
    pub(crate) fn new(grammar: &Grammar, made: usize) -> Self {
        Self { grammar: grammar.clone(), seen: made, state: State::GoesOn }
    }

    /// The tokens that may follow a reply and its draft; none if nothing may.
    pub(crate) fn allowed(&mut self, reply: &[u32], ends: &TokenSet) -> Option<Allowed<'_>> {
        for &token in &reply[self.seen.min(reply.len())..] {
            if self.state == State::GoesOn {
                self.state = match self.grammar.take(token) {
                    Ok(false) => State::GoesOn,
                    Ok(true) => State::Over,
                    Err(_) => State::Broken,
                };
                self.seen += 1;
            }
        }
        if self.state != State::GoesOn {
            return None;
        }
        let allowed = self.grammar.allowed(ends).ok();
        if allowed.is_none() {
            self.state = State::Broken;
        }
        allowed
    }

    /// Forgets what follows the reply's first tokens.
    pub(crate) fn back_to(&mut self, made: usize) {
        if self.seen > made && self.state != State::Broken {
            let back = self.grammar.take_back(self.seen - made);
            self.state = if back { State::GoesOn } else { State::Broken };
            self.seen = made;
        }
    }
}
