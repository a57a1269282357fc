//! Compiler of a `response_format` and generator of texts that it allows.

use std::sync::LazyLock;

use nsbridge_handler::{Error, ResponseFormat};
use nsbridge_llama::{Grammar, Grammars, Rule, TokenSet};
use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input, MatchKind};

/// End token. A token below it stands for the byte of its number.
const END: u32 = 256;

/// Tokens above the end token.
const PIECES: [&str; 8] = ["ab", "\":", "{\"", "true", "12", "あ", "  ", "\",\""];

/// Maximum number of tokens of a generated text.
const TOKENS: usize = 48;

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(words));

fn words() -> Vec<Vec<u8>> {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    bytes.chain([Vec::new()]).chain(PIECES.map(Into::into)).collect()
}

/// Generates texts of the format that the bytes are, and checks them.
pub(super) fn format(bytes: &[u8]) {
    let Ok(format) = serde_json::from_slice::<ResponseFormat>(bytes) else { return };
    let rule = match Rule::of(&format) {
        Ok(Some(rule)) => rule,
        Ok(None) => return,
        Err(error) => return refused(&error),
    };
    let grammar = match GRAMMARS.compile(&rule) {
        Ok(grammar) => grammar,
        Err(error) => return refused(&error),
    };
    let seed = blake3::hash(bytes);
    for half in seed.as_bytes().chunks(16) {
        if let Some(text) = written(grammar.clone(), half) {
            check(&format, &text);
        }
    }
}

/// Generates a text by choices that the seed decides; `None` if it did not end.
fn written(mut grammar: Grammar, seed: &[u8]) -> Option<String> {
    let words = words();
    let mut ends = TokenSet::default();
    ends.insert(END);
    let mut text = Vec::new();
    for step in 0..TOKENS {
        let allowed = match grammar.allowed(&ends) {
            Ok(allowed) => allowed,
            Err(error) => {
                refused(&error);
                return None;
            }
        };
        let may: Vec<u32> = (0..words.len() as u32).filter(|token| allowed.has(*token)).collect();
        assert!(!may.is_empty(), "an end without being told");
        // Ends are looked for towards the end, so that most texts come to one.
        let early = step > TOKENS / 2 && may.contains(&END);
        let drawn = usize::from(seed[step % seed.len()]) + step / seed.len() * 89;
        let token = if early { END } else { may[drawn % may.len()] };
        if token == END {
            return Some(String::from_utf8(text).expect("a whole text is UTF-8"));
        }
        text.extend(&words[token as usize]);
        match grammar.take(token) {
            Ok(true) => return Some(String::from_utf8(text).expect("a whole text is UTF-8")),
            Ok(false) => {}
            Err(error) => {
                refused(&error);
                return None;
            }
        }
    }
    None
}

/// Checks a text against the format with other parsers.
fn check(format: &ResponseFormat, text: &str) {
    match format {
        ResponseFormat::Text {} => {}
        ResponseFormat::JsonObject {} => {
            assert!(text.starts_with('{') && is_json(text), "{text}");
        }
        ResponseFormat::JsonSchema { .. } => {
            assert!(is_json(text), "{text}");
        }
        ResponseFormat::Regex { regex } => {
            // All of its matches, of which the longest is told.
            let config = Regex::config().match_kind(MatchKind::All);
            let Ok(oracle) = Regex::builder().configure(config).build(regex) else { return };
            let found = oracle.find(Input::new(text).anchored(Anchored::Yes));
            assert!(found.is_some_and(|found| found.end() == text.len()), "{text:?} and {regex:?}");
        }
        other => panic!("{other:?} has no oracle"),
    }
}

/// Returns true for a JSON text, whatever the size of its numbers.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Checks that an error is one sentence that names the field.
fn refused(error: &Error) {
    let sentence = error.to_string();
    assert!(matches!(error, Error::BadInput(_)), "{sentence}");
    assert!(sentence.starts_with("`response_format"), "{sentence}");
    assert!(sentence.len() < 1 << 10, "{sentence}");
}
