//! Tokens that end a reply, from the metadata of a GGUF file.

use super::{Facts, Kind, tokens};
use crate::error::LoadError;

/// Texts of special tokens that end a reply or a turn, by the rules of llama.cpp. Its names for
/// models that this engine does not have, and for the gaps in code completion, are left out.
const NAMES: [&str; 17] = [
    "<|eot_id|>",
    "<|im_end|>",
    END,
    RETURN,
    CALL,
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

/// End of a turn, or of a part of a turn where [`RETURN`] and [`CALL`] end turns.
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

/// Ids of special tokens where a vocabulary of SentencePiece does not give them.
const SENTENCE_PIECE: [(&str, u32); 3] = [("unknown", 0), ("bos", 1), ("eos", 2)];

/// Returns the id of a special token in a vocabulary of `size` tokens, for instance of `eos`.
///
/// # Errors
///
/// Returns an error if the id is beyond the vocabulary.
pub(crate) fn special(
    facts: &Facts<'_>,
    name: &str,
    size: usize,
) -> Result<Option<u32>, LoadError> {
    let id = facts.id(&format!("tokenizer.ggml.{name}_token_id"), size)?;
    let pieces = facts.text("tokenizer.ggml.model")? == Some("llama");
    let usual = SENTENCE_PIECE.iter().find(|(usual, _)| pieces && *usual == name);
    let usual = usual.map(|(_, id)| *id).filter(|id| (*id as usize) < size);
    Ok(id.or(usual))
}

/// Returns the tokens that end a reply: those that the metadata names by their ids, and control
/// tokens with a name that is known.
///
/// # Errors
///
/// Returns an error if an id is beyond the vocabulary, or if the vocabulary is malformed.
pub(crate) fn stop_ids(facts: &Facts<'_>) -> Result<Vec<u32>, LoadError> {
    let tokens = tokens(facts)?;
    let size = tokens.as_ref().map_or(u32::MAX as usize, Vec::len);
    let tokens = tokens.unwrap_or_default();
    let mut ids = Vec::new();
    ids.extend(special(facts, "eos", size)?);
    for name in ["eot", "eom"] {
        let id = special(facts, name, size)?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    let is_control =
        |name: &str| tokens.iter().any(|token| token.text == name && token.kind == Kind::Control);
    let inner = is_control(RETURN) && is_control(CALL);
    for (id, token) in (0..).zip(&tokens) {
        let named = token.kind == Kind::Control && NAMES.contains(&token.text);
        if named && !(inner && token.text == END) && !ids.contains(&id) {
            ids.push(id);
        }
    }
    if inner {
        ids.retain(|id| tokens.get(*id as usize).is_none_or(|token| token.text != END));
    }
    Ok(ids)
}
