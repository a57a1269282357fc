//! Vocabularies of SentencePiece's BPE: pieces with scores, and bytes for the rest.
//!
//! The best score of a piece that two neighbors make decides which of them are merged. A
//! `tokenizer.json` has a list of merges instead. It is made of the pieces as by transformers'
//! converter: all pairs of pieces that make a piece, by descending score.

use std::cmp::Reverse;
use std::collections::HashSet;

use nsbridge_checkpoint::GgufValue;
use serde_json::{Map, Value, json};

use super::{Parts, vocabulary};
use crate::error::LoadError;
use crate::metadata::{Facts, Kind, Token, special};

const SCORES: &str = "tokenizer.ggml.scores";

/// Maximum length of a piece that is made by merges, in bytes. Each of its splits is looked up.
const MAX_PIECE_BYTES: usize = 512;

/// Maximum number of merges per token, and of those that any vocabulary may have. Real vocabularies
/// have two per token.
const MERGES_PER_TOKEN: usize = 8;
const FEW_MERGES: usize = 4096;

/// Builds the parts of a vocabulary of SentencePiece.
///
/// # Errors
///
/// Returns an error if the scores are missing or malformed, or if the pieces are too long or make
/// too many merges.
pub(super) fn parts(facts: &Facts<'_>, tokens: &[Token<'_>]) -> Result<Parts, LoadError> {
    let vocabulary = vocabulary(facts, tokens)?;
    let merges = merges(facts, tokens, &scores(facts, tokens.len())?)?;
    let prefixed = facts.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let unknown = special(facts, "unknown", tokens.len())?;
    Ok(Parts {
        normalizer: normalizer(prefixed),
        pre_tokenizer: Value::Null,
        decoder: decoder(prefixed),
        model: model(vocabulary, merges, unknown.map(|id| tokens[id as usize].text)),
        starts: true,
    })
}

fn model(vocabulary: Map<String, Value>, merges: Vec<Value>, unknown: Option<&str>) -> Value {
    let mut model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
        "ignore_merges": false,
    });
    // The macro would copy them.
    model["vocab"] = vocabulary.into();
    model["merges"] = merges.into();
    model
}

/// Returns the step that writes spaces as `▁`. With `prefixed`, the text after each added token
/// starts with one.
fn normalizer(prefixed: bool) -> Value {
    let prefix = prefixed.then(|| json!({ "type": "Prepend", "prepend": "▁" }));
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let steps: Vec<Value> = prefix.into_iter().chain([spaces]).collect();
    json!({ "type": "Sequence", "normalizers": steps })
}

fn decoder(prefixed: bool) -> Value {
    let spaces = json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " });
    let mut steps = vec![spaces, json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if prefixed {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

fn scores(facts: &Facts<'_>, size: usize) -> Result<Vec<f64>, LoadError> {
    let number = |value: &GgufValue| match value {
        GgufValue::Float(score) if !score.is_nan() => Some(*score),
        _ => None,
    };
    let scores = facts.array(SCORES, "a floating-point number", number)?;
    let scores = scores.ok_or_else(|| facts.missing(SCORES))?;
    if scores.len() != size {
        let found = scores.len();
        return Err(
            facts.broken(format!("{SCORES} has {found} elements, and there are {size} tokens"))
        );
    }
    Ok(scores)
}

/// Pair of tokens that make a piece.
struct Merge<'a> {
    score: f64,
    left: &'a str,
    right: &'a str,
}

fn merges(
    facts: &Facts<'_>,
    tokens: &[Token<'_>],
    scores: &[f64],
) -> Result<Vec<Value>, LoadError> {
    // Other tokens are found before the text is split, or stand for single bytes.
    let is_piece = |token: &Token<'_>| matches!(token.kind, Kind::Normal | Kind::Unused);
    let pieces = || {
        let pieces = tokens.iter().enumerate();
        pieces.filter(|(id, token)| is_piece(token) && !token.is_filler(*id))
    };
    let texts: HashSet<&str> = pieces().map(|(_, token)| token.text).collect();
    let most = tokens.len().saturating_mul(MERGES_PER_TOKEN).saturating_add(FEW_MERGES);
    let mut merges = Vec::new();
    for (id, Token { text, .. }) in pieces() {
        if text.len() > MAX_PIECE_BYTES {
            let found = format!("of {} bytes", text.len());
            let supported = format!("one of {MAX_PIECE_BYTES} bytes at most");
            return Err(facts.unsupported(&format!("token {id}"), &found, &supported));
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if texts.contains(left) && texts.contains(right) {
                merges.push(Merge { score: scores[id], left, right });
            }
        }
        if merges.len() > most {
            let supported = format!("{most} pairs of them that make a third");
            return Err(facts.unsupported("the vocabulary", "pieces with more", &supported));
        }
    }
    // Of equal scores, the longer left part comes first, then the longer right part, then the piece
    // with the lower id: the sort is stable.
    let lengths =
        |merge: &Merge<'_>| [merge.left, merge.right].map(|part| Reverse(part.chars().count()));
    merges.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| lengths(a).cmp(&lengths(b))));
    Ok(merges.into_iter().map(|merge| json!([merge.left, merge.right])).collect())
}
