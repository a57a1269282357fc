//! What came before a token, counted; undone token by token.

use std::collections::HashMap;

/// The prompt and the reply so far, as the penalties see them.
///
/// A token that is added is taken back by [`pop`](Self::pop) at the cost of one token, so drafted
/// tokens may be added to look beyond them and removed where they are not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Each token that occurred, in the order of its first occurrence.
    seen: Vec<Seen>,
    /// Where in `seen` a token is.
    places: HashMap<u32, usize>,
    /// Prompt and reply.
    tokens: Vec<u32>,
    /// How many of them are the prompt.
    prompt: usize,
}

/// A token that occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) token: u32,
    pub(super) in_prompt: bool,
    /// How often it occurred in the reply.
    pub(super) in_reply: u32,
}

impl History {
    /// The history before the reply's first token.
    pub fn new(prompt: &[u32]) -> Self {
        let tokens = prompt.to_vec();
        let mut history = Self { tokens, prompt: prompt.len(), ..Self::default() };
        for &token in prompt {
            history.seen(token).in_prompt = true;
        }
        history
    }

    /// Adds a token to the reply.
    pub fn push(&mut self, token: u32) {
        self.seen(token).in_reply += 1;
        self.tokens.push(token);
    }

    /// Takes the reply's last token back; none if the reply is empty.
    pub fn pop(&mut self) -> Option<u32> {
        if self.tokens.len() == self.prompt {
            return None;
        }
        let token = self.tokens.pop()?;
        let seen = self.seen(token);
        seen.in_reply -= 1;
        if seen.in_reply == 0 && !seen.in_prompt {
            // What came after its first occurrence has been taken back before it: it is the last.
            self.seen.pop();
            self.places.remove(&token);
        }
        Some(token)
    }

    /// The reply's tokens.
    pub fn reply(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// The prompt's tokens and the reply's.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Each token that occurred in prompt or reply, once.
    pub(super) fn distinct(&self) -> &[Seen] {
        &self.seen
    }

    fn seen(&mut self, token: u32) -> &mut Seen {
        let next = self.seen.len();
        let place = *self.places.entry(token).or_insert(next);
        if place == next {
            self.seen.push(Seen { token, in_prompt: false, in_reply: 0 });
        }
        &mut self.seen[place]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::{History, Seen};

    #[test]
    fn prompt_and_reply_are_counted_apart() {
        let mut history = History::new(&[5, 6, 5]);
        for token in [6, 7, 7] {
            history.push(token);
        }
        let seen = |token, in_prompt, in_reply| Seen { token, in_prompt, in_reply };
        assert_eq!(history.distinct(), [seen(5, true, 0), seen(6, true, 1), seen(7, false, 2)]);
        assert_eq!(history.reply(), [6, 7, 7]);
    }

    #[test]
    fn the_prompt_is_not_taken_back() {
        let mut history = History::new(&[1]);
        assert_eq!(history.pop(), None);
        assert_eq!(history, History::new(&[1]));
    }

    proptest! {
        #[test]
        fn what_is_taken_back_leaves_no_trace(
            prompt in prop::collection::vec(0u32..8, 0..8),
            kept in prop::collection::vec(0u32..8, 0..12),
            drafts in prop::collection::vec(prop::collection::vec(0u32..12, 0..9), 0..4),
            last in any::<u32>(),
        ) {
            let mut history = History::new(&prompt);
            kept.iter().for_each(|&token| history.push(token));
            let before = history.clone();
            for draft in drafts {
                draft.iter().for_each(|&token| history.push(token));
                for &token in draft.iter().rev() {
                    assert_eq!(history.pop(), Some(token));
                }
                assert_eq!(history, before);
            }
            history.push(last);
            assert_eq!(history.pop(), Some(last));
            assert_eq!(history, before);
        }
    }
}
