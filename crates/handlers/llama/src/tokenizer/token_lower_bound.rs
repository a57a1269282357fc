//! Lower bound on the number of tokens of a text, without tokenization.
//!
//! Tokenization takes up to 2 µs and 350 bytes of memory for each byte of text; this bound takes 2
//! ns and no memory. If each byte of the text is part of the bytes of some token, the tokens cover
//! the text. So the text has at least as many tokens as the smallest number of spans that cover it,
//! where each span is as long as the longest token with the same first two bytes. Spans may overlap
//! and tokens cannot, so the number is a lower bound, whatever the merges are.
//!
//! The argument requires that tokenization loses no byte. So the bound is limited to tokenizers for
//! which this is known. Every byte is a token (byte-level, or `byte_fallback`), so no text is
//! unknown. No added token strips whitespace beside it (`lstrip`, `rstrip`). There is no
//! truncation, and the pre-tokenizer removes nothing. The normalizer is absent, only writes spaces
//! as `▁`, or is NFC. NFC only changes text beside a character that is not ASCII, so in such a text
//! each run of ASCII counts without its ends. For other tokenizers the bound is 0, and only the
//! limit on bytes per token of the context applies.

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::detokenize::TokenBytes;

/// Length of the longest token for each pair of first bytes.
#[derive(Debug)]
pub(super) struct Cover {
    kind: Kind,
    /// Lengths in bytes, indexed by the first two bytes.
    longest: Box<[u16]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No bound is known.
    Unknown,
    /// The text is tokenized unchanged.
    Plain,
    /// Spaces become `▁`, so a `▁` of the text itself is ambiguous.
    Blanks,
    /// The text is normalized to NFC.
    Nfc,
}

impl Cover {
    /// Creates the bound of a tokenizer. `json` is the content of its `tokenizer.json`.
    pub(super) fn new(tokenizer: &Tokenizer, json: &Value, bytes: &TokenBytes) -> Self {
        let mut longest = vec![0u16; 1 << 16].into_boxed_slice();
        let added = tokenizer.get_added_tokens_decoder();
        let mut single = [false; 256];
        let mut put = |token: &[u8]| {
            let length = u16::try_from(token.len()).unwrap_or(u16::MAX);
            match token {
                [] => {}
                [only] => {
                    single[usize::from(*only)] = true;
                    let all = &mut longest[usize::from(*only) << 8..][..256];
                    all.iter_mut().for_each(|longest| *longest = (*longest).max(1));
                }
                [first, second, ..] => {
                    let place = &mut longest[usize::from(*first) << 8 | usize::from(*second)];
                    *place = (*place).max(length);
                }
            }
        };
        (0..bytes.len() as u32)
            .filter(|id| !added.contains_key(id))
            .for_each(|id| put(bytes.get(id)));
        let whole = single.iter().all(|single| *single);
        let kind = if whole { kind(json) } else { Kind::Unknown };
        let mut put = |token: &[u8]| {
            if let [first, second, ..] = token {
                let length = u16::try_from(token.len()).unwrap_or(u16::MAX);
                let place = &mut longest[usize::from(*first) << 8 | usize::from(*second)];
                *place = (*place).max(length);
            }
        };
        added.values().for_each(|token| put(token.content.as_bytes()));
        Self { kind, longest }
    }

    /// Returns a lower bound on the number of tokens of `text`.
    pub(super) fn least(&self, text: &str) -> usize {
        match self.kind {
            Kind::Unknown => 0,
            Kind::Blanks if text.contains('▁') => 0,
            Kind::Plain | Kind::Blanks => self.of(text.as_bytes()),
            Kind::Nfc if text.is_ascii() => self.of(text.as_bytes()),
            Kind::Nfc => {
                // A token may extend beyond either end of a run.
                let stretches = text.as_bytes().split(|byte| !byte.is_ascii());
                stretches.map(|ascii| self.of(ascii).saturating_sub(2)).sum()
            }
        }
    }

    fn of(&self, text: &[u8]) -> usize {
        let (mut count, mut covered, mut reach) = (0, 0, 0);
        for (at, &byte) in text.iter().enumerate() {
            let second = text.get(at + 1).copied().unwrap_or_default();
            let longest = self.longest[usize::from(byte) << 8 | usize::from(second)];
            reach = reach.max(at + usize::from(longest.max(1)));
            if at == covered {
                count += 1;
                covered = reach;
            }
        }
        count
    }
}

/// Returns how a tokenizer changes a text, as far as it is known.
fn kind(json: &Value) -> Kind {
    let model = &json["model"];
    let none = |value: &Value| value.is_null() || value == "";
    let affixed = !none(&model["continuing_subword_prefix"]) || !none(&model["end_of_word_suffix"]);
    let strips = |token: &Value| token["lstrip"] == true || token["rstrip"] == true;
    let strips = json["added_tokens"].as_array().is_some_and(|added| added.iter().any(strips));
    if affixed || strips || !json["truncation"].is_null() || !keeps(&json["pre_tokenizer"]) {
        return Kind::Unknown;
    }
    let blanks = has(&json["decoder"], "ByteFallback") || has(&json["decoder"], "Metaspace");
    if blanks && model["byte_fallback"] != true {
        return Kind::Unknown;
    }
    let only_blanks = |part: &Value| {
        part["type"] == "Prepend"
            || part["type"] == "Replace"
                && part["pattern"] == serde_json::json!({ "String": " " })
                && part["content"] == "▁"
    };
    match &json["normalizer"] {
        normalizer if parts(normalizer, "normalizers").iter().all(|part| part["type"] == "NFC") => {
            match (normalizer.is_null(), blanks) {
                (true, true) => Kind::Blanks,
                (true, false) => Kind::Plain,
                (false, false) => Kind::Nfc,
                (false, true) => Kind::Unknown,
            }
        }
        normalizer if blanks && parts(normalizer, "normalizers").iter().all(only_blanks) => {
            Kind::Blanks
        }
        _ => Kind::Unknown,
    }
}

/// Returns true if a pre-tokenizer removes nothing.
fn keeps(pre_tokenizer: &Value) -> bool {
    parts(pre_tokenizer, "pretokenizers").iter().all(|part| match part["type"].as_str() {
        Some("ByteLevel" | "Metaspace" | "Digits") => true,
        Some("Split") => part["behavior"] != "Removed",
        _ => false,
    })
}

fn has(decoder: &Value, kind: &str) -> bool {
    parts(decoder, "decoders").iter().any(|part| part["type"] == kind)
}

/// Returns the parts of a sequence, or the single part.
fn parts<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    match value[name].as_array() {
        Some(parts) => parts,
        None if value.is_null() => &[],
        None => std::slice::from_ref(value),
    }
}

#[cfg(test)]
mod tests;
