//! Tokens of the vocabulary in a GGUF file, with their types.

use nsbridge_checkpoint::GgufValue;

use super::Facts;
use crate::error::LoadError;

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Key of the tokens' types.
pub(crate) const TYPES: &str = "tokenizer.ggml.token_type";

/// Type of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of the text.
    Normal,
    /// Token for text that has no other token.
    Unknown,
    /// Special token, such as the end of a turn.
    Control,
    /// Token that is found in a text before it is split, and that stands for its own text.
    UserDefined,
    /// Token of which the vocabulary makes no use.
    Unused,
    /// Single byte, spelled `<0x0A>`.
    Byte,
}

/// Token of the vocabulary. Its id is its index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) kind: Kind,
}

impl Token<'_> {
    /// Returns true if a converter wrote the token only to fill a row of the embedding.
    pub(crate) fn is_filler(&self, id: usize) -> bool {
        let number = self.text.strip_prefix("[PAD").and_then(|rest| rest.strip_suffix(']'));
        let named = number.and_then(|number| number.parse().ok()) == Some(id);
        // Older converters called fillers user-defined. llama.cpp renames empty texts.
        self.text.is_empty() || named && matches!(self.kind, Kind::Unused | Kind::UserDefined)
    }
}

/// Reads the tokens in order of their ids, if the file has any. Without types, all are normal.
///
/// # Errors
///
/// Returns an error if the tokens are not texts, or if their types are unknown or too few.
pub(crate) fn tokens<'a>(facts: &Facts<'a>) -> Result<Option<Vec<Token<'a>>>, LoadError> {
    let Some(texts) = facts.texts(TOKENS)? else { return Ok(None) };
    let kinds = facts.array(TYPES, "a token's type, 1 to 6", kind)?;
    let kinds = kinds.unwrap_or_else(|| vec![Kind::Normal; texts.len()]);
    if kinds.len() != texts.len() {
        let (kinds, texts) = (kinds.len(), texts.len());
        return Err(facts.broken(format!("{TYPES} has {kinds} elements, and {TOKENS} has {texts}")));
    }
    let token = |(text, kind)| Token { text, kind };
    Ok(Some(texts.into_iter().zip(kinds).map(token).collect()))
}

fn kind(value: &GgufValue) -> Option<Kind> {
    let number = match value {
        GgufValue::Signed(number) => *number,
        GgufValue::Unsigned(number) => i64::try_from(*number).ok()?,
        _ => return None,
    };
    Some(match number {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => return None,
    })
}
