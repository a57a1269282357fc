//! Detokenization: converts tokens to text piece by piece, never splitting a character.

mod stops;

use std::collections::HashMap;
use std::sync::Arc;

use tokenizers::Tokenizer;

use self::stops::Place;
pub(crate) use self::stops::Stops;
use crate::error::LoadError;
use crate::limits::{FEW_IDS, IDS_PER_ROW};

/// Bytes of each token by id; empty for special tokens.
#[derive(Debug)]
pub(crate) struct TokenBytes(Vec<Box<[u8]>>);

/// Encoding of bytes in a vocabulary's token texts.
#[derive(Clone, Copy)]
enum Spelling {
    /// Every byte is one character (GPT-2).
    ByteLevel,
    /// A space is `▁` and a single byte is `<0x0A>` (SentencePiece).
    SentencePiece,
}

impl TokenBytes {
    /// Builds the table of a tokenizer. `json` is the content of its `tokenizer.json`, or an
    /// equivalent that was made of `file`.
    ///
    /// # Errors
    ///
    /// Returns an error if its decoder is not supported, or if an id is far beyond the model's
    /// `rows`, because the table has an entry for each id.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        json: &serde_json::Value,
        rows: usize,
        file: &str,
    ) -> Result<Self, LoadError> {
        let spelling = spelling(&json["decoder"])?;
        let added = tokenizer.get_added_tokens_decoder();
        let alphabet = byte_alphabet();
        let vocabulary = tokenizer.get_vocab(true);
        let size = vocabulary.values().max().map_or(0, |last| *last as usize + 1);
        let most = rows.saturating_mul(IDS_PER_ROW).max(FEW_IDS);
        if size > most {
            return Err(LoadError::unsupported(
                format!("a token's id in {file}"),
                (size - 1).to_string(),
                format!("below {most}, for the {rows} of vocab_size in config.json"),
            ));
        }
        let mut table = vec![Box::default(); size];
        for (token, id) in vocabulary {
            table[id as usize] = match (added.get(&id), spelling) {
                (Some(added), _) if added.special => Box::default(),
                (Some(added), _) => added.content.as_bytes().into(),
                (None, Spelling::ByteLevel) => byte_level(&token, &alphabet),
                (None, Spelling::SentencePiece) => sentence_piece(&token),
            };
        }
        Ok(Self(table))
    }

    /// Returns the number of ids.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes of `token`, or none if it is not in the vocabulary.
    pub(crate) fn get(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map_or(&[], |bytes| bytes)
    }
}

fn spelling(decoder: &serde_json::Value) -> Result<Spelling, LoadError> {
    let parts = decoder["decoders"].as_array().map_or(std::slice::from_ref(decoder), Vec::as_slice);
    let has = |kind: &str| parts.iter().any(|part| part["type"] == kind);
    if has("ByteLevel") {
        Ok(Spelling::ByteLevel)
    } else if has("ByteFallback") || has("Metaspace") {
        Ok(Spelling::SentencePiece)
    } else {
        let found = decoder["type"].as_str().unwrap_or("absent");
        let supported = "ByteLevel, Metaspace or one with ByteFallback";
        Err(LoadError::unsupported("decoder in tokenizer.json", found, supported))
    }
}

/// Returns the inverse of GPT-2's `bytes_to_unicode`: printable characters of Latin-1 stand for
/// themselves, the other bytes for the characters from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = '\u{100}'..;
    (0..=u8::MAX)
        .filter_map(|byte| {
            let character = if printable(byte) { Some(char::from(byte)) } else { others.next() };
            character.map(|character| (character, byte))
        })
        .collect()
}

fn byte_level(token: &str, alphabet: &HashMap<char, u8>) -> Box<[u8]> {
    let bytes: Option<Box<[u8]>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().into())
}

fn sentence_piece(token: &str) -> Box<[u8]> {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => Box::new([byte]),
        None => token.replace('▁', " ").into_bytes().into(),
    }
}

/// Incremental text of one reply.
#[derive(Debug)]
pub(crate) struct TextStream {
    stops: Arc<Stops>,
    /// State of the stop-sequence automaton at the end of the text.
    place: Place,
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Text held back because a stop sequence may begin in it.
    held: String,
}

impl TextStream {
    /// Creates a stream that ends before the first of these stop sequences.
    pub(crate) fn new(stops: Arc<Stops>) -> Self {
        let place = stops.start();
        Self { stops, place, bytes: Vec::new(), held: String::new() }
    }

    /// Creates a stream without stop sequences.
    pub(crate) fn plain() -> Self {
        Self::new(Arc::new(Stops::none()))
    }

    /// Adds a token's bytes. Returns the text that is now final, and true if a stop sequence was
    /// met.
    ///
    /// With the `last` token, all held-back text is returned; incomplete characters become U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8], last: bool) -> (String, bool) {
        self.bytes.extend(bytes);
        let known = self.held.len();
        self.take_characters(last);
        if let Some(at) = self.stops.find(&mut self.place, &self.held, known) {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begun = if last { 0 } else { self.stops.begun(self.place) };
        let certain = self.held.len() - begun;
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Moves whole characters from `bytes` to `held`.
    fn take_characters(&mut self, all: bool) {
        let mut taken = 0;
        for chunk in self.bytes.utf8_chunks() {
            self.held.push_str(chunk.valid());
            taken += chunk.valid().len();
            let at_end = taken + chunk.invalid().len() == self.bytes.len();
            // A character cut off at the end may still be completed.
            let unfinished =
                std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none());
            if at_end && unfinished && !all {
                break;
            }
            if !chunk.invalid().is_empty() {
                self.held.push(char::REPLACEMENT_CHARACTER);
                taken += chunk.invalid().len();
            }
        }
        self.bytes.drain(..taken);
    }
}

#[cfg(test)]
mod tests;
