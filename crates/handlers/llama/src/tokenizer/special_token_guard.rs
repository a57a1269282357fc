//! Protection against special tokens in messages: their text stays text.
//!
//! A template combines the users' text with its own special tokens into one text. So before
//! rendering, a mark is inserted after the first character of each special token's text in a
//! message. The mark is a character that no text has (a noncharacter, Unicode 23.7). The rendered
//! text is then split at special tokens, which no longer match the marked texts. The marks are
//! removed from the parts in between, which are tokenized as plain text.
//!
//! A message can also end in the beginning of a special token, or begin with the end of one, and
//! the template or the next message can complete it. In that case a mark is placed at its end or
//! beginning, inside the whitespace that templates trim. Matching ignores case, so a template may
//! change it. A template that removes characters from the users' text could still assemble a
//! special token.
//!
//! Messages of `assistant` keep added tokens that are not special, such as `<think>`, because the
//! text of replies contains them and comes back in a later turn. Tools and variables of the template
//! are protected like the text of users.

use aho_corasick::AhoCorasick;
use nsbridge_handler::{Error, Result};
use tokenizers::{Model, OffsetType, PreTokenizer, Tokenizer};

use crate::template::Chat;

/// Noncharacters from which a mark is chosen that no message contains.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// First bytes of each mark in UTF-8.
const MARK_BYTES: [u8; 2] = [0xef, 0xb7];

/// Texts that messages must not turn into tokens.
#[derive(Debug)]
pub(super) struct Shield {
    /// Texts of all added tokens.
    added: Texts,
    /// Texts of the added tokens that are special.
    special: Texts,
}

#[derive(Debug)]
struct Texts {
    texts: Vec<String>,
    finder: Option<AhoCorasick>,
}

impl Shield {
    /// Creates the shield of a tokenizer. Returns `None` if it has no added tokens.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let tokens = tokenizer.get_added_tokens_decoder();
        let texts = |all: bool| {
            let some = tokens.values().filter(|token| all || token.special);
            let texts: Vec<String> = some.map(|token| token.content.clone()).collect();
            Texts::new(texts)
        };
        (!tokens.is_empty()).then(|| Self { added: texts(true), special: texts(false) })
    }

    /// Inserts marks into the texts of a chat, and returns the mark if there is any.
    ///
    /// # Errors
    ///
    /// Returns an error if the chat contains texts of special tokens and every character that could
    /// be a mark.
    pub(super) fn protect(&self, chat: &mut Chat) -> Result<Option<char>> {
        let texts = |own: bool| if own { &self.special } else { &self.added };
        let (mut any, mut marks) = (false, MARKS.collect::<Vec<char>>());
        chat.visit(&mut |text, own| {
            any = any || !texts(own).places(text).is_empty();
            // Each mark is the three bytes EF B7 90 to EF B7 AF.
            if text.as_bytes().windows(2).any(|bytes| bytes == MARK_BYTES) {
                marks.retain(|mark| !text.contains(*mark));
            }
        });
        if !any {
            return Ok(None);
        }
        let mark = *marks.first().ok_or_else(|| {
            Error::bad_input("`messages` have all of the noncharacters U+FDD0 to U+FDEF")
        })?;
        chat.change(&mut |text, own| marked(text, &texts(own).places(text), mark));
        Ok(Some(mark))
    }
}

impl Texts {
    fn new(texts: Vec<String>) -> Self {
        let finder = AhoCorasick::builder().ascii_case_insensitive(true).build(&texts).ok();
        Self { texts, finder }
    }

    /// Returns the byte offsets of marks in a text, in ascending order.
    fn places(&self, text: &str) -> Vec<usize> {
        let mut places = Vec::new();
        if let Some(finder) = &self.finder {
            let behind_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
            let found = finder.find_overlapping_iter(text);
            places.extend(found.map(|found| behind_first(found.start())));
        }
        let trimmed = text.trim();
        let begin = text.len() - text.trim_start().len();
        if self.texts.iter().any(|token| ends_in_beginning(token, trimmed)) {
            places.push(begin);
        }
        if self.texts.iter().any(|token| ends_in_beginning(trimmed, token)) {
            places.push(begin + trimmed.len());
        }
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// Returns true if a suffix of `one` is a prefix of `other`, unless it is the whole of both.
fn ends_in_beginning(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let most = one.len().min(other.len());
    (1..=most).any(|length| {
        // A token's whole text was already found.
        length < one.len().max(other.len())
            && one[one.len() - length..].eq_ignore_ascii_case(&other[..length])
    })
}

fn marked(text: &str, places: &[usize], mark: char) -> String {
    let mut out = String::with_capacity(text.len() + places.len() * mark.len_utf8());
    let mut from = 0;
    for &place in places {
        out.push_str(&text[from..place]);
        out.push(mark);
        from = place;
    }
    out.push_str(&text[from..]);
    out
}

/// Tokenizes a rendered chat with marks. Returns `None` if the tokenizer cannot encode it.
pub(super) fn encode(tokenizer: &Tokenizer, chat: &str, mark: char) -> Option<Vec<u32>> {
    // This follows `Tokenizer::encode`, with the removal of marks added.
    let added = tokenizer.get_added_vocabulary();
    let mut text = added.extract_and_normalize(tokenizer.get_normalizer(), chat);
    let unmark = |part: &mut tokenizers::NormalizedString| {
        part.filter(|c| c != mark);
        Ok(())
    };
    text.normalize(unmark).ok()?;
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut text).ok()?;
    }
    text.tokenize(|part| tokenizer.get_model().tokenize(part.get())).ok()?;
    let encoding = text.into_encoding(None, 0, OffsetType::None).ok()?;
    let encoding = tokenizer.post_process(encoding, None, false).ok()?;
    Some(encoding.get_ids().to_vec())
}

#[cfg(test)]
mod tests;
