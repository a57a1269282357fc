//! Division of a text into sentences.

use std::ops::Range;

/// Maximum length of a sentence, in characters. A longer one is divided.
pub(super) const MAX_SENTENCE_CHARS: usize = 240;

/// Returns the ranges of the sentences. The text begins `offset` characters after the beginning of the
/// whole text; the places at which long sentences are divided count from there.
///
/// The last range is that of the unfinished sentence, which is empty after an end that is certain.
pub(super) fn sentences(text: &[char], offset: usize) -> Vec<Range<usize>> {
    let mut begin = 0;
    let ends = (1..=text.len()).filter(|end| is_end(text, *end, offset));
    let mut ranges: Vec<_> = ends.map(|end| std::mem::replace(&mut begin, end)..end).collect();
    ranges.push(begin..text.len());
    ranges
}

/// Returns true if a sentence ends before the character `at`, whatever follows after it.
fn is_end(text: &[char], at: usize, offset: usize) -> bool {
    let follows = |is: fn(char) -> bool| text.get(at).copied().is_some_and(is);
    (offset + at).is_multiple_of(MAX_SENTENCE_CHARS)
        || match text[at - 1] {
            '。' | '！' | '？' | '\n' => true,
            '.' | '!' | '?' => follows(char::is_whitespace),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::{MAX_SENTENCE_CHARS, sentences};

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let characters: Vec<char> = text.chars().collect();
        let found = sentences(&characters, 0).into_iter();
        let found: Vec<String> = found.map(|it| characters[it].iter().collect()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn sentences_end_with_their_marks() {
        check("Hi. Write to a.b@c.com!", &["Hi.", " Write to a.b@c.com!"]);
        check("はい。いいえ。", &["はい。", "いいえ。", ""]);
        check("a\nb? c", &["a\n", "b?", " c"]);
        check("", &[""]);
    }

    #[test]
    fn a_long_sentence_is_divided_at_places_of_the_whole_text() {
        let text = vec!['x'; 3 * MAX_SENTENCE_CHARS];
        let whole = sentences(&text, 0);
        assert_eq!(whole, [0..240, 240..480, 480..720, 720..720]);
        let part = sentences(&text[100..], 100);
        assert_eq!(part[1..], [140..380, 380..620, 620..620]);
    }
}
