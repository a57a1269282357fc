//! Email addresses (RFC 5321, without quoted local parts and address literals).

use std::ops::Range;

/// Maximum length of each side of the `@` that is read, in characters.
const SIDE: usize = 64;

/// Maximum length of an address, in characters.
pub(super) const MAX_ADDRESS_CHARS: usize = 2 * SIDE + 1;

/// Finds email addresses in folded characters.
pub(super) fn find(text: &[char], found: &mut dyn FnMut(Range<usize>, f32)) {
    for at in (0..text.len()).filter(|at| text[*at] == '@') {
        let local = text[..at].iter().rev().take(SIDE).take_while(|it| is_of_local(**it)).count();
        let begin = at - local;
        let dots = text[begin..at].iter().take_while(|it| **it == '.').count();
        if local > dots
            && let Some(length) = domain(&text[at + 1..])
        {
            found(begin + dots..at + 1 + length, 1.0);
        }
    }
}

/// Returns the length of the longest domain at the beginning: labels with dots between them, the last
/// of at least two letters.
fn domain(text: &[char]) -> Option<usize> {
    let (mut length, mut label, mut labels, mut letters) = (None, 0, 0, 0);
    for (at, character) in text.iter().take(SIDE).enumerate() {
        match character {
            '.' if label > 0 => {
                (label, letters) = (0, 0);
                labels += 1;
            }
            '-' if label > 0 => label += 1,
            letter if letter.is_ascii_alphanumeric() => {
                label += 1;
                letters += usize::from(letter.is_ascii_alphabetic());
                if labels > 0 && label >= 2 && label == letters {
                    length = Some(at + 1);
                }
            }
            _ => break,
        }
    }
    length
}

fn is_of_local(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '%' | '+' | '-' | '\'')
}

/// Returns true for a character that may be a part of an address.
pub(super) fn is_of_address(character: char) -> bool {
    is_of_local(character) || character == '@'
}
