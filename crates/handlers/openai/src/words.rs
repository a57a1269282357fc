//! Words of a text that comes in parts.
//!
//! The pieces of a reply are words if the server does not tell the tokens: they depend on the text
//! alone, and not on the parts in which the server happens to send it.

/// Maximum number of characters of a word; a longer one is cut.
const MOST_CHARACTERS: usize = 64;

/// First character of the scripts of East Asia, which put no space between words.
const EAST_ASIA: char = '\u{2e80}';

/// Text whose last word may go on.
#[derive(Debug, Default)]
pub(crate) struct Words(String);

impl Words {
    /// Adds text. Returns the words that are complete: white space, if any, and what follows it.
    pub(crate) fn push(&mut self, text: &str) -> Vec<String> {
        self.0.push_str(text);
        let (mut words, mut begin, mut count) = (Vec::new(), 0, 0);
        let mut before: Option<char> = None;
        for (at, next) in self.0.char_indices() {
            if before.is_some_and(|before| ends(before, next)) || count == MOST_CHARACTERS {
                words.push(self.0[begin..at].to_owned());
                (begin, count) = (at, 0);
            }
            (before, count) = (Some(next), count + 1);
        }
        self.0.drain(..begin);
        words
    }

    /// Returns the rest of the text, if there is any.
    pub(crate) fn rest(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.0)).filter(|rest| !rest.is_empty())
    }
}

/// Returns true if a word ends between these characters.
fn ends(before: char, next: char) -> bool {
    (!before.is_whitespace() && next.is_whitespace()) || before >= EAST_ASIA
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, proptest};

    use super::Words;

    fn words(parts: &[impl AsRef<str>]) -> Vec<String> {
        let mut words = Words::default();
        let mut all: Vec<String> =
            parts.iter().flat_map(|part| words.push(part.as_ref())).collect();
        all.extend(words.rest());
        all
    }

    #[test]
    fn a_word_has_the_white_space_before_it() {
        assert_eq!(words(&["Once upon  a\ntime.\n"]), ["Once", " upon", "  a", "\ntime.", "\n"]);
        assert_eq!(words(&["昔々a b"]), ["昔", "々", "a", " b"]);
        assert_eq!(words(&["x".repeat(130)]).len(), 3);
        assert_eq!(words(&[""]), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn words_do_not_depend_on_how_the_text_is_cut(
            parts in prop::collection::vec("[ab 昔\n]{0,40}", 0..10),
        ) {
            let whole = parts.concat();
            let cut = words(&parts);
            assert_eq!(cut, words(&[&whole]));
            assert_eq!(cut.concat(), whole);
        }
    }
}
