//! Token counts of prompt and reply, which can be undone token by token.

use std::collections::HashMap;
use std::sync::Arc;

/// History of the prompt and the reply so far, for the penalties.
///
/// Clones share the prompt, so the replies to one prompt store it once. [`pop`](Self::pop) removes
/// the last token at the cost of one token. So drafted tokens can be added in order to sample after
/// them, and removed if they are rejected.
///
/// ```
/// use nsbridge_llama::History;
///
/// let mut history = History::new(&[1, 2]);
/// history.push(7);
/// history.push(8);
/// assert_eq!((history.pop(), history.reply()), (Some(8), &[7][..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    prompt: Arc<Prompt>,
    reply: Vec<u32>,
    /// Distinct tokens of the reply in order of first occurrence, with their counts.
    counts: Vec<(u32, u32)>,
    /// Index of a token in `counts`.
    places: HashMap<u32, usize>,
}

/// Prompt, shared by all replies to it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prompt {
    tokens: Vec<u32>,
    /// Distinct tokens of the prompt.
    distinct: Vec<u32>,
}

impl History {
    /// Creates the history before the reply's first token.
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

    /// Removes and returns the reply's last token, or returns `None` if the reply is empty.
    pub fn pop(&mut self) -> Option<u32> {
        let token = self.reply.pop()?;
        let place = *self.places.get(&token)?;
        let count = &mut self.counts[place].1;
        *count -= 1;
        if *count == 0 {
            // All tokens after its first occurrence were removed before, so its entry is the last
            // one.
            self.counts.pop();
            self.places.remove(&token);
        }
        Some(token)
    }

    /// Returns the reply's tokens.
    pub fn reply(&self) -> &[u32] {
        &self.reply
    }

    /// Iterates over the tokens of prompt and reply, from the last one backwards.
    pub(super) fn backwards(&self) -> impl Iterator<Item = u32> {
        self.reply.iter().rev().chain(self.prompt.tokens.iter().rev()).copied()
    }

    /// Returns the distinct tokens of the prompt.
    pub(super) fn in_prompt(&self) -> &[u32] {
        &self.prompt.distinct
    }

    /// Iterates over the distinct tokens of the reply with their counts.
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
