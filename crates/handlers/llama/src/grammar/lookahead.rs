//! Copy of a grammar that runs ahead of it for drafts.

use super::Grammar;
use crate::panics::caught;
use crate::sample::{Allowed, TokenSet};

/// Copy of a reply's grammar that has also taken the tokens of the draft.
///
/// The grammar itself only takes the reply's own tokens. Its limits count its work, and must be
/// reached at the same token with and without drafts.
#[derive(Debug)]
pub(crate) struct Lookahead {
    /// `None` if the reply's grammar cannot be copied.
    grammar: Option<Grammar>,
    /// Number of tokens taken of the reply and its draft.
    seen: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    GoesOn,
    /// Only an end may follow the tokens taken.
    Over,
    /// A limit was reached, so this reply gets no more drafts.
    Broken,
}

impl Lookahead {
    /// Copies the grammar of a reply that has `made` tokens.
    pub(crate) fn new(grammar: &Grammar, made: usize) -> Self {
        let grammar = caught(|| grammar.clone()).ok();
        let state = if grammar.is_some() { State::GoesOn } else { State::Broken };
        Self { grammar, seen: made, state }
    }

    /// Returns the token mask after a reply and its draft, or `None` if no token may follow.
    pub(crate) fn allowed(&mut self, reply: &[u32], ends: &TokenSet) -> Option<Allowed<'_>> {
        let grammar = self.grammar.as_mut()?;
        for &token in &reply[self.seen.min(reply.len())..] {
            if self.state == State::GoesOn {
                self.state = match grammar.take(token) {
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
        let allowed = grammar.allowed(ends).ok();
        if allowed.is_none() {
            self.state = State::Broken;
        }
        allowed
    }

    /// Takes back all tokens after the first `made`.
    pub(crate) fn back_to(&mut self, made: usize) {
        if self.seen > made && self.state != State::Broken {
            let back =
                self.grammar.as_mut().is_some_and(|grammar| grammar.take_back(self.seen - made));
            self.state = if back { State::GoesOn } else { State::Broken };
            self.seen = made;
        }
    }
}
