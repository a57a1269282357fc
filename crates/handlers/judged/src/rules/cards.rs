//! Numbers of payment cards (ISO/IEC 7812): an issuer's prefix, its lengths, and the check digit of
//! Luhn.

use std::ops::Range;

use super::fold::{begins_number, ends_number, is_separator};

/// Maximum number of digits.
const MOST_DIGITS: usize = 19;

/// Maximum length of a number with a separator between all digits, in characters.
pub(super) const MAX_NUMBER_CHARS: usize = 2 * MOST_DIGITS - 1;

/// Ranges of prefixes, with the lengths of their numbers.
const ISSUERS: [(Range<u32>, u32, Range<usize>); 19] = [
    // Visa
    (4..5, 1, 13..14),
    (4..5, 1, 16..17),
    (4..5, 1, 19..20),
    // Mastercard
    (51..56, 2, 16..17),
    (2221..2721, 4, 16..17),
    // American Express
    (34..35, 2, 15..16),
    (37..38, 2, 15..16),
    // JCB
    (3528..3590, 4, 16..20),
    // Diners Club
    (300..306, 3, 14..20),
    (36..37, 2, 14..20),
    (38..40, 2, 16..20),
    // Discover
    (6011..6012, 4, 16..20),
    (644..650, 3, 16..20),
    (65..66, 2, 16..20),
    // UnionPay
    (62..63, 2, 16..20),
    // Maestro
    (5018..5019, 4, 16..20),
    (5020..5021, 4, 16..20),
    (6304..6305, 4, 16..20),
    (6759..6764, 4, 16..20),
];

/// Finds card numbers in folded characters.
pub(super) fn find(text: &[char], found: &mut dyn FnMut(Range<usize>, f32)) {
    for begin in 0..text.len() {
        if text[begin].is_ascii_digit()
            && begins_number(text, begin)
            && let Some(end) = end_of(text, begin)
        {
            found(begin..end, 1.0);
        }
    }
}

/// Returns the end of the longest card number that begins here.
fn end_of(text: &[char], begin: usize) -> Option<usize> {
    let mut digits = Vec::with_capacity(MOST_DIGITS);
    let (mut groups, mut end) = (Groups::default(), None);
    let mut at = begin;
    while digits.len() < MOST_DIGITS {
        if let Some(digit) = text.get(at).and_then(|digit| digit.to_digit(10)) {
            digits.push(digit);
            groups.digit();
        } else if text.get(at).copied().is_some_and(is_separator)
            && text.get(at + 1).is_some_and(char::is_ascii_digit)
        {
            groups.separator();
        } else {
            break;
        }
        at += 1;
        let whole = digits.len() >= 13 && ends_number(text, at) && groups.are_of_a_card();
        if whole && is_issued(&digits) && luhn(&digits) {
            end = Some(at);
        }
    }
    end
}

/// Lengths of the groups between separators.
#[derive(Default)]
struct Groups {
    /// Length of the last group.
    last: usize,
    /// Number of complete groups with one, two, and three or more digits.
    one: usize,
    two: usize,
    more: usize,
}

impl Groups {
    fn digit(&mut self) {
        self.last += 1;
    }

    fn separator(&mut self) {
        match std::mem::take(&mut self.last) {
            0 => {}
            1 => self.one += 1,
            2 => self.two += 1,
            _ => self.more += 1,
        }
    }

    /// Returns true for groups of three digits or more, and for digits that are all apart. Other
    /// groups are lists of numbers.
    fn are_of_a_card(&self) -> bool {
        let apart = self.last == 1 && self.two + self.more == 0;
        let grouped = self.last >= 3 && self.one + self.two == 0;
        apart || grouped
    }
}

fn is_issued(digits: &[u32]) -> bool {
    ISSUERS.iter().any(|(prefixes, length, lengths)| {
        let prefix = digits.iter().take(*length as usize).fold(0, |sum, digit| 10 * sum + digit);
        prefixes.contains(&prefix) && lengths.contains(&digits.len())
    })
}

/// Returns true if the last digit is the check digit of the others.
fn luhn(digits: &[u32]) -> bool {
    let weighed = digits.iter().rev().enumerate().map(|(place, digit)| match place % 2 {
        0 => *digit,
        _ if *digit > 4 => 2 * digit - 9,
        _ => 2 * digit,
    });
    weighed.sum::<u32>().is_multiple_of(10)
}
