//! Features of a sentence: hashed n-grams of characters and words, and the lengths of numbers.

use crate::grams::hash;

/// Minimum and maximum length of an n-gram of characters.
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=5;

/// Converts a sentence to a vector of `buckets` numbers with Euclidean norm 1, or of zeros for a
/// sentence without characters.
///
/// Letters lose their case and full-width forms. All digits are one digit, so that no feature depends
/// on a number that was in the corpus.
pub fn features(sentence: &str, buckets: usize) -> Vec<f32> {
    let mut row = vec![0.0_f32; buckets];
    let text = normal(sentence);
    let mut count = |kind: char, gram: &[char]| {
        let marked: Vec<char> = std::iter::once(kind).chain(gram.iter().copied()).collect();
        row[hash(&marked) as usize % buckets] += 1.0;
    };
    for length in LENGTHS {
        text.windows(length).for_each(|gram| count('c', gram));
    }
    let words: Vec<&[char]> = text
        .split(|character| !character.is_ascii_alphanumeric() && *character != '\'')
        .filter(|word| !word.is_empty())
        .collect();
    for pair in words.windows(2) {
        count('p', &[pair[0], &[' '], pair[1]].concat());
    }
    words.iter().for_each(|word| count('w', word));
    for digits in numbers(&text) {
        count('n', &[char::from_u32(digits).unwrap_or(' ')]);
    }
    row.iter_mut().for_each(|count| *count = count.sqrt());
    let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    if norm > 0.0 {
        row.iter_mut().for_each(|x| *x /= norm);
    }
    row
}

/// Returns the characters in their normal form, with one space at both ends and between words.
fn normal(sentence: &str) -> Vec<char> {
    let mut text = vec![' '];
    for character in sentence.chars() {
        let plain = match character {
            '\u{ff01}'..='\u{ff5e}' => {
                char::from_u32(u32::from(character) - 0xff01 + 0x21).unwrap_or(character)
            }
            other => other,
        };
        match plain {
            digit if digit.is_ascii_digit() => text.push('0'),
            space if space.is_whitespace() => {
                if text.last() != Some(&' ') {
                    text.push(' ');
                }
            }
            other => text.extend(other.to_lowercase()),
        }
    }
    if text.last() != Some(&' ') {
        text.push(' ');
    }
    text
}

/// Returns the number of digits of each number, with single separators inside.
fn numbers(text: &[char]) -> Vec<u32> {
    let (mut all, mut digits, mut apart) = (Vec::new(), 0, 0);
    for character in text.iter().chain([&'$']) {
        match character {
            '0' => (digits, apart) = (digits + 1, 0),
            ' ' | '-' | '.' | '(' | ')' if digits > 0 && apart < 2 => apart += 1,
            _ => {
                if digits > 0 {
                    all.push(digits.min(24));
                }
                (digits, apart) = (0, 0);
            }
        }
    }
    all
}
