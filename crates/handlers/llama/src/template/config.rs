//! Contents of `tokenizer_config.json` that templates and prompts need.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Names of the special tokens that a template may write.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Templates by their names.
pub(crate) type Templates = BTreeMap<String, String>;

/// Contents of `tokenizer_config.json`, and of `special_tokens_map.json` where it names a token that the
/// former does not.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerConfig {
    add_bos_token: Option<bool>,
    chat_template: Option<OneOrNamed>,
    /// Tokens of this model alone, by the names of their variables.
    #[serde(deserialize_with = "named_tokens")]
    extra_special_tokens: Map<String, Value>,
    /// Other fields, with the special tokens among them.
    #[serde(flatten)]
    fields: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrNamed {
    One(String),
    Named(Vec<Named>),
}

#[derive(Clone, Debug, Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// Reads the tokens with names. A list of tokens has none.
fn named_tokens<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Object(named) => named,
        _ => Map::new(),
    })
}

/// Returns the text of a token: a string, or an object with its content.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

impl TokenizerConfig {
    /// Adds the tokens of a `special_tokens_map.json` that this configuration does not name.
    pub(crate) fn add_special_tokens(&mut self, map: Map<String, Value>) {
        for (name, token) in map {
            if SPECIAL.contains(&name.as_str()) && self.token(&name).is_none() {
                self.fields.insert(name, token);
            }
        }
    }

    fn token(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(text_of)
    }

    /// Returns the special tokens that the model has, by the names of their variables.
    pub(super) fn special(&self) -> Map<String, Value> {
        let own = SPECIAL.iter().filter_map(|name| Some((*name, self.token(name)?)));
        let extra = self.extra_special_tokens.iter();
        let extra = extra.filter_map(|(name, token)| Some((name.as_str(), text_of(token)?)));
        extra.chain(own).map(|(name, text)| (name.to_owned(), text.into())).collect()
    }

    /// Returns the text that a raw prompt starts with where `tokenizer.json` does not add it.
    pub(crate) fn prompt_start(&self) -> Option<&str> {
        self.token("bos_token").filter(|_| self.add_bos_token == Some(true))
    }

    /// Returns the text of the token that ends a text.
    pub(crate) fn end(&self) -> Option<&str> {
        self.token("eos_token")
    }

    pub(super) fn templates(&self) -> Templates {
        match self.chat_template.clone() {
            None => Templates::new(),
            Some(OneOrNamed::One(template)) => [(super::DEFAULT.to_owned(), template)].into(),
            Some(OneOrNamed::Named(all)) => {
                all.into_iter().map(|named| (named.name, named.template)).collect()
            }
        }
    }
}
