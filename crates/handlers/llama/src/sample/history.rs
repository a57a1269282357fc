//! Token counts of prompt and reply, which can be undone token by token.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Number of tokens in a word.
const WORD: usize = u32::BITS as usize;

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
    /// Distinct tokens of the reply, with their counts.
    counts: BTreeMap<u32, u32>,
}

/// Prompt, shared by all replies to it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prompt {
    tokens: Vec<u32>,
    /// Distinct tokens of the prompt, in ascending order.
    distinct: Vec<u32>,
    /// A bit for each token up to the largest one of the prompt, set for those in it.
    words: OnceLock<Vec<u32>>,
}

impl History {
    /// Creates the history before the reply's first token.
    pub fn new(prompt: &[u32]) -> Self {
        let mut distinct = prompt.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let prompt = Prompt { tokens: prompt.to_vec(), distinct, words: OnceLock::new() };
        Self { prompt: Arc::new(prompt), ..Self::default() }
    }

    /// Adds a token to the reply.
    pub fn push(&mut self, token: u32) {
        *self.counts.entry(token).or_insert(0) += 1;
        self.reply.push(token);
    }

    /// Removes and returns the reply's last token, or returns `None` if the reply is empty.
    pub fn pop(&mut self) -> Option<u32> {
        let token = self.reply.pop()?;
        let count = self.counts.get_mut(&token)?;
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&token);
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

    /// Returns the distinct tokens of the prompt in ascending order.
    pub(super) fn in_prompt(&self) -> &[u32] {
        &self.prompt.distinct
    }

    /// Returns words with a bit for each token up to the prompt's largest, set for those in it.
    pub(super) fn prompt_words(&self) -> &[u32] {
        self.prompt.words.get_or_init(|| {
            let last = self.prompt.distinct.last().map_or(0, |token| *token as usize + 1);
            let mut words = vec![0; last.div_ceil(WORD)];
            for token in &self.prompt.distinct {
                words[*token as usize / WORD] |= 1 << (*token as usize % WORD);
            }
            words
        })
    }

    /// Iterates over the distinct tokens of the reply in ascending order, with their counts.
    pub(super) fn in_reply(&self) -> impl Iterator<Item = (u32, u32)> {
        self.counts.iter().map(|(token, count)| (*token, *count))
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
        assert_eq!(history.prompt_words(), [1 << 5 | 1 << 6]);
        assert_eq!(History::new(&[31, 64, 31]).prompt_words(), [1 << 31, 0, 1]);
        assert_eq!(History::default().prompt_words(), [0u32; 0]);
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
