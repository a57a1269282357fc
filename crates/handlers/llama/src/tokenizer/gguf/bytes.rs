//! Byte-level vocabularies, as of GPT-2: tokens of bytes, and a list of merges.

use std::collections::{HashMap, HashSet};

use nsbridge_handler::quote;
use serde_json::{Value, json};

use super::splits::Splits;
use super::{Parts, vocabulary};
use crate::error::LoadError;
use crate::metadata::{Facts, Token};

const SPLITS: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

/// Builds the parts of a byte-level vocabulary.
///
/// # Errors
///
/// Returns an error if the rules of splitting are not supported, or if a merge is not one of
/// tokens.
pub(super) fn parts(facts: &Facts<'_>, tokens: &[Token<'_>]) -> Result<Parts, LoadError> {
    // A file without the key is an old one, made before the rules were told apart.
    let name = facts.text(SPLITS)?.unwrap_or("default");
    let Some(splits) = Splits::named(name) else {
        let names = Splits::names().collect::<Vec<_>>().join(", ");
        return Err(facts.unsupported(SPLITS, name, &format!("one of {names}")));
    };
    let vocabulary = vocabulary(facts, tokens)?;
    Ok(Parts {
        normalizer: splits.normalizer(),
        pre_tokenizer: splits.pre_tokenizer(),
        decoder: json!({
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        }),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": splits.whole_words, "vocab": vocabulary, "merges": merges(facts, tokens)?,
        }),
        starts: splits.starts,
    })
}

/// Returns the pairs of tokens that are merged, in order of their ranks.
fn merges(facts: &Facts<'_>, tokens: &[Token<'_>]) -> Result<Vec<Value>, LoadError> {
    let texts = facts.texts(MERGES)?.ok_or_else(|| facts.missing(MERGES))?;
    let ids: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.text, id)).collect();
    let (mut merges, mut seen) = (Vec::with_capacity(texts.len()), HashSet::new());
    let mut whole = String::new();
    for (index, text) in texts.into_iter().enumerate() {
        let broken = |what: &str| {
            Err(facts.broken(format!("element {index} of {MERGES}, `{}`, {what}", quote(text))))
        };
        let Some((left, right)) = text.split_once(' ').filter(|(_, right)| !right.contains(' '))
        else {
            return broken("is not two tokens with a space between them");
        };
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) else {
            return broken("has a part that is no token");
        };
        if !ids.contains_key(whole.as_str()) {
            return broken("makes a text that is no token");
        }
        if !seen.insert((first, second)) {
            return broken("is there twice");
        }
        merges.push(json!([left, right]));
    }
    Ok(merges)
}
