//! What came before a token, counted; undone token by token.

use std::collections::HashMap;
use std::sync::Arc;

/// The prompt and the reply so far, as the penalties see them.
///
/// Copies share the prompt, so that the replies to one prompt hold it once. A token that is added is
/// taken back by [`pop`](Self::pop) at the cost of one token, so drafted tokens may be added to look
/// beyond them and removed where they are not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    prompt: Arc<Prompt>,
    reply: Vec<u32>,
    /// Each token that occurred in the reply, in the order of its first occurrence, and how often.
    counts: Vec<(u32, u32)>,
    /// Where in `counts` a token is.
    places: HashMap<u32, usize>,
}

/// What is alike for all replies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prompt {
    tokens: Vec<u32>,
    /// Each token that occurred, once.
    distinct: Vec<u32>,
}

impl History {
    /// The history before the reply's first token.
    pub fn new(prompt: &[u32]) -> Self {
        let mut distinct = prompt.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        Self { prompt: Arc::new(Prompt { tokens: prompt.to_vec(), distinct }), ..Self::default() }
    }

    /// Adds a token to the reply.
    pub fn push(&mut self, token: u32) {
        let next = self.counts.len();
        let place = *self.places.entry(token).or_insert(next);
        if place == next {
            self.counts.push((token, 0));
        }
        self.counts[place].1 += 1;
        self.reply.push(token);
    }

    /// Takes the reply's last token back; none if the reply is empty.
    pub fn pop(&mut self) -> Option<u32> {
        let token = self.reply.pop()?;
        let place = *self.places.get(&token)?;
        let count = &mut self.counts[place].1;
        *count -= 1;
        if *count == 0 {
            // What came after its first occurrence has been taken back before it: it is the last.
            self.counts.pop();
            self.places.remove(&token);
        }
        Some(token)
    }

    /// The reply's tokens.
    pub fn reply(&self) -> &[u32] {
        &self.reply
    }

    /// The prompt's tokens and the reply's, the last one first.
    pub(super) fn backwards(&self) -> impl Iterator<Item = u32> {
        self.reply.iter().rev().chain(self.prompt.tokens.iter().rev()).copied()
    }

    /// Each token that occurred in the prompt, once.
    pub(super) fn in_prompt(&self) -> &[u32] {
        &self.prompt.distinct
    }

    /// Each token that occurred in the reply, once, and how often.
    pub(super) fn in_reply(&self) -> impl Iterator<Item = (u32, u32)> {
        self.counts.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::History;

    #[test]
    fn prompt_and_reply_are_counted_apart() {
        let mut history = History::new(&[5, 6, 5]);
        for token in [6, 7, 7] {
            history.push(token);
        }
        assert_eq!(history.in_prompt(), [5, 6]);
        assert_eq!(history.in_reply().collect::<Vec<_>>(), [(6, 1), (7, 2)]);
        assert_eq!(history.backwards().collect::<Vec<_>>(), [7, 7, 6, 5, 6, 5]);
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
