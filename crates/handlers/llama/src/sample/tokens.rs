//! Sets of tokens and of sequences, with lookup costs that do not depend on the input lists.

use std::collections::HashMap;

/// Set of token ids, one bit each.
///
/// ```
/// use nsbridge_llama::TokenSet;
///
/// let mut ends = TokenSet::default();
/// ends.insert(2);
/// assert!(ends.contains(2) && !ends.contains(3));
/// assert_eq!(ends.iter().collect::<Vec<_>>(), [2]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u32>,
}

/// Number of tokens in a word.
const WORD: usize = u32::BITS as usize;

impl TokenSet {
    /// Adds a token. The set takes one bit for each id up to the largest.
    pub fn insert(&mut self, token: u32) {
        let word = token as usize / WORD;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (token as usize % WORD);
    }

    /// Returns true if the token is in the set.
    pub fn contains(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / WORD).copied().unwrap_or_default();
        word >> (token as usize % WORD) & 1 == 1
    }

    /// Returns true if no token is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns how many tokens are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Iterates over the tokens, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some((at * WORD) as u32 + bit)
            })
        })
    }

    /// Returns the bits: token `t` is bit `t % 32` of word `t / 32`.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }
}

impl Extend<u32> for TokenSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, tokens: I) {
        tokens.into_iter().for_each(|token| self.insert(token));
    }
}

impl FromIterator<u32> for TokenSet {
    fn from_iter<I: IntoIterator<Item = u32>>(tokens: I) -> Self {
        let mut set = Self::default();
        set.extend(tokens);
        set
    }
}

impl From<&[u32]> for TokenSet {
    fn from(tokens: &[u32]) -> Self {
        tokens.iter().copied().collect()
    }
}

impl From<Vec<u32>> for TokenSet {
    fn from(tokens: Vec<u32>) -> Self {
        tokens.into_iter().collect()
    }
}

/// Set of token sequences, indexed by the tokens before their last ones.
///
/// The index is a trie of those tokens, from the second to last backwards. A lookup follows the
/// history backwards and costs one step for each matching token, however many sequences there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequences {
    list: Vec<Vec<u32>>,
    /// Child of a node by token; node 0 is the root.
    edges: HashMap<(u32, u32), u32>,
    /// Last tokens of the sequences whose other tokens end at a node.
    last: Vec<Vec<u32>>,
}

impl Sequences {
    /// Returns the sequences as they were given.
    pub fn list(&self) -> &[Vec<u32>] {
        &self.list
    }

    /// Returns true if there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Calls `each` with every token that would complete a sequence. `before` gives the tokens of
    /// the history, the last one first.
    pub(super) fn completed(
        &self,
        mut before: impl Iterator<Item = u32>,
        mut each: impl FnMut(u32),
    ) {
        let mut node = 0u32;
        while let Some(last) = self.last.get(node as usize) {
            last.iter().for_each(|token| each(*token));
            let next = before.next().and_then(|token| self.edges.get(&(node, token)));
            let Some(next) = next else { return };
            node = *next;
        }
    }
}

impl From<Vec<Vec<u32>>> for Sequences {
    fn from(list: Vec<Vec<u32>>) -> Self {
        let (mut edges, mut last) = (HashMap::new(), Vec::<Vec<u32>>::new());
        for sequence in &list {
            let Some((&end, before)) = sequence.split_last() else { continue };
            if last.is_empty() {
                last.push(Vec::new());
            }
            let node = before.iter().rev().fold(0, |node, &token| {
                *edges.entry((node, token)).or_insert_with(|| {
                    last.push(Vec::new());
                    last.len() as u32 - 1
                })
            });
            let ends = &mut last[node as usize];
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        Self { list, edges, last }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sequences, TokenSet};

    #[test]
    fn a_set_has_what_was_put_into_it_once() {
        let set = TokenSet::from(vec![64, 3, 3, 31, 32, 3]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 31, 32, 64]);
        assert_eq!(
            (set.len(), set.contains(31), set.contains(33), set.contains(999)),
            (4, true, false, false)
        );
        assert!(TokenSet::default().is_empty() && !set.is_empty());
    }

    #[test]
    fn sequences_are_completed_by_their_last_tokens() {
        let all = vec![vec![1, 2, 3], vec![2, 4], vec![5], vec![], vec![2, 4], vec![9, 2, 3]];
        let sequences = Sequences::from(all);
        let completed = |before: &[u32]| {
            let mut found = Vec::new();
            sequences.completed(before.iter().rev().copied(), |token| found.push(token));
            found
        };
        assert_eq!(completed(&[]), [5]);
        assert_eq!(completed(&[7, 2]), [5, 4]);
        assert_eq!(completed(&[1, 2]), [5, 4, 3]);
        assert_eq!(completed(&[9, 2]), [5, 4, 3]);
    }
}
