//! Telephone numbers: international (ITU-T E.164), and the national forms of Japan and of the North
//! American Numbering Plan.

use std::ops::Range;

use super::fold::{begins_number, ends_number, is_separator};

/// Numbers of digits after the `+` of an international number.
const DIGITS: Range<usize> = 8..16;

/// Maximum length of a number, in characters: `+` and 15 digits with a separator between all of them.
pub(super) const MAX_NUMBER_CHARS: usize = 30;

/// Forms of national numbers, with their scores. `d` is a digit, `p` one from 1 to 9, `n` one from 2 to
/// 9, `m` one of 5, 7, 8 and 9, and `-` a separator; other characters stand for themselves.
///
/// Ten digits without a separator are more often something else than a telephone number.
const NATIONAL: [(&str, f32); 24] = [
    // Japan: mobile and IP telephones
    ("0m0-dddd-dddd", 0.9),
    ("0m0dddddddd", 0.7),
    // Japan: area codes of one to four digits
    ("0p-dddd-dddd", 0.9),
    ("0pd-ddd-dddd", 0.9),
    ("0pdd-dd-dddd", 0.9),
    ("0pddd-d-dddd", 0.9),
    ("0p(dddd)dddd", 0.9),
    ("0pd(ddd)dddd", 0.9),
    ("0pdd(dd)dddd", 0.9),
    ("(0p)dddd-dddd", 0.9),
    ("(0pd)ddd-dddd", 0.9),
    ("(0pdd)dd-dddd", 0.9),
    ("0pdddddddd", 0.4),
    // Japan: services
    ("0120-ddd-ddd", 0.9),
    ("0120-dd-dddd", 0.9),
    ("0800-ddd-dddd", 0.9),
    ("0570-ddd-ddd", 0.9),
    ("0120dddddd", 0.7),
    // North America
    ("(ndd) ndd-dddd", 0.9),
    ("(ndd)ndd-dddd", 0.9),
    ("ndd-ndd-dddd", 0.8),
    ("1-ndd-ndd-dddd", 0.9),
    ("1-(ndd)-ndd-dddd", 0.9),
    ("nddndddddd", 0.3),
];

/// Finds telephone numbers in folded characters.
pub(super) fn find(text: &[char], found: &mut dyn FnMut(Range<usize>, f32)) {
    for begin in 0..text.len() {
        if !matches!(text[begin], '0'..='9' | '+' | '(') || !may_begin(text, begin) {
            continue;
        }
        if let Some(end) = international(text, begin) {
            found(begin..end, 0.95);
        }
        for (form, score) in NATIONAL {
            if let Some(end) = national(text, begin, form) {
                found(begin..end, score);
            }
        }
    }
}

/// Returns true if no other part of a number is before `at`.
fn may_begin(text: &[char], at: usize) -> bool {
    let joins = |before: char| matches!(before, '-' | '.' | '+');
    let joined = at >= 2 && joins(text[at - 1]) && text[at - 2].is_ascii_digit();
    begins_number(text, at) && !joined && (at == 0 || text[at - 1] != '+')
}

/// Returns true if no other part of a number follows at `at`.
fn may_end(text: &[char], at: usize) -> bool {
    let joins = text.get(at).is_some_and(|next| matches!(next, '-' | '.'));
    let joined = joins && text.get(at + 1).is_some_and(char::is_ascii_digit);
    ends_number(text, at) && !joined
}

/// Returns the end of the longest international number that begins here.
fn international(text: &[char], begin: usize) -> Option<usize> {
    let is_digit = |at: usize| text.get(at).is_some_and(char::is_ascii_digit);
    if text[begin] != '+' || !is_digit(begin + 1) || text[begin + 1] == '0' {
        return None;
    }
    let between = |at: usize| {
        text.get(at).is_some_and(|&between| is_separator(between) || matches!(between, '(' | ')'))
    };
    let (mut at, mut digits, mut end) = (begin + 1, 0, None);
    while at < begin + MAX_NUMBER_CHARS {
        if is_digit(at) {
            digits += 1;
        } else if !(between(at) && (is_digit(at + 1) || between(at + 1) && is_digit(at + 2))) {
            break;
        }
        at += 1;
        if DIGITS.contains(&digits) && is_digit(at - 1) && may_end(text, at) {
            end = Some(at);
        }
    }
    end
}

/// Returns the end of the number of this form that begins here.
fn national(text: &[char], begin: usize, form: &str) -> Option<usize> {
    let mut at = begin;
    for expected in form.chars() {
        let found = *text.get(at)?;
        let fits = match expected {
            'd' => found.is_ascii_digit(),
            'p' => matches!(found, '1'..='9'),
            'n' => matches!(found, '2'..='9'),
            'm' => matches!(found, '5' | '7' | '8' | '9'),
            '-' => is_separator(found),
            other => found == other,
        };
        if !fits {
            return None;
        }
        at += 1;
    }
    may_end(text, at).then_some(at)
}
