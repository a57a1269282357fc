//! Equivalent of `tokenizer.json` and `tokenizer_config.json`, from the metadata of a GGUF file.

mod bytes;
mod pieces;
mod splits;

use nsbridge_handler::quote;
use serde_json::{Map, Value, json};

use crate::error::LoadError;
use crate::metadata::{Facts, Kind, TYPES, Token, special, tokens};

const MODEL: &str = "tokenizer.ggml.model";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Contents of the two files.
#[derive(Debug)]
pub(super) struct Files {
    /// Content of `tokenizer.json`.
    pub(super) tokenizer: Value,
    /// Fields of `tokenizer_config.json`.
    pub(super) config: Map<String, Value>,
}

/// Parts of a `tokenizer.json` that differ between the kinds of vocabularies.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
    /// True if texts start with the start token where the metadata does not say so.
    starts: bool,
}

/// Builds the contents of the two files.
///
/// # Errors
///
/// Returns an error if the vocabulary is of a kind that is not supported, or if it is malformed.
pub(super) fn files(facts: &Facts<'_>) -> Result<Files, LoadError> {
    let kind = facts.text(MODEL)?;
    let build = match kind {
        Some("gpt2") => bytes::parts,
        Some("llama") => pieces::parts,
        None | Some("no_vocab" | "none") => {
            return Err(LoadError::Missing(format!(
                "there is no tokenizer.json, and {} has no vocabulary; add the tokenizer.json",
                facts.file()
            )));
        }
        Some(other) => return Err(facts.unsupported(MODEL, other, "one of gpt2 and llama")),
    };
    let tokens = tokens(facts)?.ok_or_else(|| facts.missing("tokenizer.ggml.tokens"))?;
    if !facts.has(TYPES) {
        return Err(facts.missing(TYPES));
    }
    let parts = build(facts, &tokens)?;
    let [bos, eos] = ["bos", "eos"].map(|name| special(facts, name, tokens.len()));
    let ends = Ends {
        bos: bos?.map(|id| (id, tokens[id as usize].text)),
        eos: eos?.map(|id| (id, tokens[id as usize].text)),
        starts: facts.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(parts.starts),
        stops: facts.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
    };
    let mut config = ends.config(templates(facts)?);
    for (field, name) in [("pad_token", "padding"), ("unk_token", "unknown")] {
        // Only templates use these, so an id beyond the vocabulary is no reason to refuse the file.
        if let Ok(Some(id)) = special(facts, name, tokens.len()) {
            config.insert(field.to_owned(), json!(tokens[id as usize].text));
        }
    }
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(&tokens),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": ends.post_processor(facts)?,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    Ok(Files { tokenizer, config })
}

/// Tokens at both ends of a text.
struct Ends<'a> {
    bos: Option<(u32, &'a str)>,
    eos: Option<(u32, &'a str)>,
    /// True if each text starts with `bos`.
    starts: bool,
    /// True if each text stops with `eos`.
    stops: bool,
}

impl Ends<'_> {
    fn config(&self, templates: Vec<Value>) -> Map<String, Value> {
        let text = |end: Option<(u32, &str)>| end.map(|(_, text)| json!(text));
        let fields = [
            ("bos_token", text(self.bos)),
            ("eos_token", text(self.eos)),
            ("add_bos_token", Some(json!(self.starts))),
            ("chat_template", (!templates.is_empty()).then_some(Value::Array(templates))),
        ];
        let known = |(name, value): (&str, Option<Value>)| Some((name.to_owned(), value?));
        fields.into_iter().filter_map(known).collect()
    }

    /// Returns the step that adds the tokens to a text, or null.
    fn post_processor(&self, facts: &Facts<'_>) -> Result<Value, LoadError> {
        let one = |wanted: bool, end, name: &str| match (wanted, end) {
            (false, _) => Ok(None),
            (true, Some(end)) => Ok(Some(end)),
            (true, None) => Err(facts.broken(format!(
                "texts are to have the {name} token, and there is no \
                 tokenizer.ggml.{name}_token_id"
            ))),
        };
        let (bos, eos) = (one(self.starts, self.bos, "bos")?, one(self.stops, self.eos, "eos")?);
        if bos.is_none() && eos.is_none() {
            return Ok(Value::Null);
        }
        let text = |sequence: &str| {
            let special = |end: Option<(u32, &str)>| {
                end.map(|(_, text)| json!({ "SpecialToken": { "id": text, "type_id": 0 } }))
            };
            let sequence = json!({ "Sequence": { "id": sequence, "type_id": 0 } });
            special(bos).into_iter().chain([sequence]).chain(special(eos)).collect::<Vec<_>>()
        };
        let special = |(id, text): (u32, &str)| {
            (text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] }))
        };
        let pair = [text("A"), text("B")].concat();
        Ok(json!({
            "type": "TemplateProcessing",
            "single": text("A"),
            "pair": pair,
            "special_tokens": bos.into_iter().chain(eos).map(special).collect::<Map<_, _>>(),
        }))
    }
}

/// Returns the chat templates, in the form of `tokenizer_config.json`.
fn templates(facts: &Facts<'_>) -> Result<Vec<Value>, LoadError> {
    let mut templates = Vec::new();
    for (name, key) in [
        ("default", TEMPLATE.to_owned()),
        ("default", format!("{TEMPLATE}.default")),
        ("tool_use", format!("{TEMPLATE}.tool_use")),
    ] {
        if templates.iter().any(|known: &Value| known["name"] == name) {
            continue;
        }
        if let Some(template) = facts.text(&key)? {
            templates.push(json!({ "name": name, "template": template }));
        }
    }
    Ok(templates)
}

/// Returns the tokens that are found in a text before it is split.
fn added(tokens: &[Token<'_>]) -> Vec<Value> {
    let added = |(id, token): (usize, &Token<'_>)| {
        let special = match token.kind {
            Kind::Control | Kind::Unknown => true,
            Kind::UserDefined => false,
            Kind::Normal | Kind::Unused | Kind::Byte => return None,
        };
        (!token.is_filler(id)).then(|| {
            json!({
                "id": id, "content": token.text, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
    };
    tokens.iter().enumerate().filter_map(added).collect()
}

/// Returns the ids of all tokens by their texts.
///
/// # Errors
///
/// Returns an error if two tokens have one text.
fn vocabulary(facts: &Facts<'_>, tokens: &[Token<'_>]) -> Result<Map<String, Value>, LoadError> {
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, token)| !token.is_filler(*id)) {
        if let Some(first) = vocabulary.insert(token.text.to_owned(), json!(id)) {
            let text = quote(token.text);
            return Err(facts.broken(format!("the tokens {first} and {id} are both `{text}`")));
        }
    }
    Ok(vocabulary)
}
