//! Phrases and words of lists, found by one automaton (Aho and Corasick, CACM 18, 1975).

use std::collections::HashSet;

use aho_corasick::AhoCorasick;
use nsbridge_handler::{Error, Result};

use super::fold;
use crate::judge::Finding;

/// Maximum length of a word or a phrase, in characters. A longer one would hold back more of a reply.
const MAX_PHRASE_CHARS: usize = 200;
/// Maximum number of words and phrases.
const MAX_PHRASES: usize = 20_000;
/// Maximum length of all of them, in characters. All beginnings are kept in memory.
const MOST_CHARACTERS: usize = 400_000;

/// Words and phrases by category.
#[derive(Debug)]
pub(super) struct Lists {
    automaton: Option<AhoCorasick>,
    patterns: Vec<Pattern>,
    /// Beginnings of all patterns, and the patterns.
    beginnings: HashSet<String>,
    longest: usize,
}

#[derive(Debug)]
struct Pattern {
    category: usize,
    text: String,
    /// Number of characters.
    length: usize,
    /// True if the text begins with a letter or digit of ASCII, before which there is no other.
    begins_word: bool,
    /// True if the text ends with one.
    ends_word: bool,
}

impl Lists {
    /// Creates the lists from pairs of a category's index and a text.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many texts, or one is empty or too long.
    pub(super) fn new(texts: Vec<(usize, String)>) -> Result<Self> {
        if texts.len() > MAX_PHRASES {
            let count = texts.len();
            return Err(Error::fatal(format!(
                "[judge] words has {count} words, and may have {MAX_PHRASES}"
            )));
        }
        let all: usize = texts.iter().map(|(_, text)| text.chars().count()).sum();
        if all > MOST_CHARACTERS {
            return Err(Error::fatal(format!(
                "[judge] words has texts of {all} characters, and may have {MOST_CHARACTERS}"
            )));
        }
        let (mut patterns, mut beginnings) = (Vec::new(), HashSet::new());
        for (category, text) in texts {
            let folded = fold::characters(text.trim());
            let [first, .., last] = [folded.first(), folded.last()].map(Option::<&char>::copied);
            let length = folded.len();
            let (Some(first), Some(last)) = (first, last) else {
                return Err(Error::fatal("[judge] words has an empty word"));
            };
            if length > MAX_PHRASE_CHARS {
                return Err(Error::fatal(format!(
                    "[judge] words has a text of {length} characters, and it may have {MAX_PHRASE_CHARS}"
                )));
            }
            let mut beginning = String::new();
            for character in &folded {
                beginning.push(*character);
                beginnings.insert(beginning.clone());
            }
            patterns.push(Pattern {
                category,
                text: beginning,
                length,
                begins_word: first.is_ascii_alphanumeric(),
                ends_word: last.is_ascii_alphanumeric(),
            });
        }
        let automaton = match patterns.is_empty() {
            true => None,
            false => Some(AhoCorasick::new(patterns.iter().map(|it| &it.text))?),
        };
        let longest = patterns.iter().map(|pattern| pattern.length).max().unwrap_or(0);
        Ok(Self { automaton, patterns, beginnings, longest })
    }

    /// Returns the length of the longest pattern, in characters.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the categories and the folded texts.
    pub(super) fn patterns(&self) -> impl Iterator<Item = (usize, &str)> {
        self.patterns.iter().map(|pattern| (pattern.category, pattern.text.as_str()))
    }

    /// Finds all occurrences in folded characters.
    pub(super) fn find(&self, text: &[char], findings: &mut Vec<Finding>) {
        let Some(automaton) = &self.automaton else { return };
        let joined: String = text.iter().collect();
        // The matches come in the order of their ends.
        let (mut end, mut bytes) = (0, 0);
        for found in automaton.find_overlapping_iter(&joined) {
            end += joined[bytes..found.end()].chars().count();
            bytes = found.end();
            let Some(pattern) = self.patterns.get(found.pattern().as_usize()) else { continue };
            let begin = end - pattern.length;
            let is_word = |at: usize| text.get(at).is_some_and(char::is_ascii_alphanumeric);
            let inside = pattern.begins_word && begin > 0 && is_word(begin - 1)
                || pattern.ends_word && is_word(end);
            if !inside {
                let Pattern { category, .. } = *pattern;
                findings.push(Finding { category, score: 1.0, range: begin..end });
            }
        }
    }

    /// Returns the length of the longest end of the text that begins a pattern, in characters.
    pub(super) fn open(&self, tail: &[char]) -> usize {
        let tail = &tail[tail.len().saturating_sub(self.longest)..];
        let joined: String = tail.iter().collect();
        let mut ends = joined.char_indices().zip((1..=tail.len()).rev());
        ends.find(|((at, _), _)| self.beginnings.contains(&joined[*at..]))
            .map_or(0, |(_, length)| length)
    }
}

/// Returns the phrases that try to override a model's instructions.
pub(super) fn injections() -> Vec<String> {
    let lines = include_str!("injections.txt").lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).flat_map(expand).collect()
}

/// Returns all texts that a line stands for: `{a|b}` is `a` or `b`, and `{a |}` is `a ` or nothing.
fn expand(line: &str) -> Vec<String> {
    let parts = line.split_once('{').and_then(|(before, rest)| {
        rest.split_once('}').map(|(choices, after)| (before, choices, after))
    });
    let Some((before, choices, after)) = parts else { return vec![line.to_owned()] };
    let after = expand(after);
    let each = choices
        .split('|')
        .flat_map(|choice| after.iter().map(move |after| format!("{before}{choice}{after}")));
    each.collect()
}
