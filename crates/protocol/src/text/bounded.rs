//! Bounded deserialization: a list beyond its bound is rejected while it is parsed.
//!
//! A request may have 8 MiB, and a list of that size takes many times as much memory once parsed. A
//! list that is too long is therefore rejected at its first excess element, and the elements before
//! it are dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::TextInput;
use crate::format::ResponseFormat;

/// List of at most `MAX_LEN` elements.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Sequence<T: DeserializeOwned, const MAX_LEN: usize>(
    #[serde(deserialize_with = "list::<_, _, MAX_LEN>")] pub(super) Vec<T>,
);

/// Deserializes a list of at most `MAX_LEN` elements.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX_LEN: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MAX_LEN: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX_LEN: usize> Visitor<'de> for List<T, MAX_LEN> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX_LEN} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = elements.next_element()? {
                if list.len() == MAX_LEN {
                    return Err(A::Error::invalid_length(MAX_LEN + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(List::<T, MAX_LEN>(PhantomData))
}

/// Adds the name of the field to an error.
pub(super) fn named<T, E: Error>(field: &str, result: Result<T, E>) -> Result<T, E> {
    result.map_err(|error| E::custom(format_args!("`{field}`: {error}")))
}

/// Deserializes `tools`; checks their size in bytes before it parses any.
pub(super) fn tools<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
    type Tools = Sequence<Map<String, Value>, { TextInput::MOST_TOOLS }>;
    let tools: Option<Tools> = small("tools", deserializer)?;
    Ok(tools.map(|tools| tools.0.into_iter().map(Value::Object).collect()).unwrap_or_default())
}

/// Deserializes `chat_template_kwargs`; checks their size in bytes before it parses any.
pub(super) fn variables<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    Ok(small("chat_template_kwargs", deserializer)?.unwrap_or_default())
}

/// Deserializes a field of at most [`TextInput::MOST_TEMPLATE_BYTES`] bytes, or null.
fn small<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    field: &str,
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(None) };
    let (bytes, most) = (raw.get().len(), TextInput::MOST_TEMPLATE_BYTES);
    if bytes > most {
        return Err(D::Error::custom(format_args!(
            "`{field}` has {bytes} bytes, and {most} are the most"
        )));
    }
    named(field, serde_json::from_str(raw.get()).map(Some).map_err(D::Error::custom))
}

/// Deserializes `prompt_token_ids`.
pub(super) fn prompt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    named("prompt_token_ids", list::<_, _, { TextInput::MOST_PROMPT_TOKENS }>(deserializer))
}

/// Deserializes `bad_token_ids`.
pub(super) fn banned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    named("bad_token_ids", list::<_, _, { TextInput::MOST_TOKENS }>(deserializer))
}

/// Deserializes `stop_token_ids`.
pub(super) fn ends<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    named("stop_token_ids", list::<_, _, { TextInput::MOST_TOKENS }>(deserializer))
}

/// Deserializes `bad_token_sequences`.
pub(super) fn sequences<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Vec<u32>>, D::Error> {
    type Each = Sequence<u32, { TextInput::MOST_SEQUENCE_TOKENS }>;
    let all = list::<_, Each, { TextInput::MOST_SEQUENCES }>(deserializer);
    Ok(named("bad_token_sequences", all)?.into_iter().map(|each| each.0).collect())
}

/// Deserializes `stop`.
pub(super) fn stops<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    named("stop", list::<_, _, { TextInput::MOST_STOPS }>(deserializer))
}

/// Deserializes `logit_bias`.
pub(super) fn biases<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<u32, f32>, D::Error> {
    struct Biases;

    impl<'de> Visitor<'de> for Biases {
        type Value = BTreeMap<u32, f32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an object of at most {} numbers by token id", TextInput::MOST_TOKENS)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut list: Vec<(u32, f32)> = Vec::new();
            while let Some(entry) = entries.next_entry()? {
                if list.len() == TextInput::MOST_TOKENS {
                    return Err(A::Error::invalid_length(TextInput::MOST_TOKENS + 1, &self));
                }
                list.push(entry);
            }
            // Collected at once: a map that grows by one entry at a time in arbitrary order takes
            // ten times as long.
            Ok(list.into_iter().collect())
        }
    }

    named("logit_bias", deserializer.deserialize_map(Biases))
}

/// Deserializes `response_format`; checks its size in bytes before it parses any value.
pub(super) fn format<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ResponseFormat>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(None) };
    let (bytes, most) = (raw.get().len(), TextInput::MOST_FORMAT_BYTES);
    if bytes > most {
        return Err(D::Error::custom(format_args!(
            "`response_format` has {bytes} bytes, and {most} are the most"
        )));
    }
    serde_json::from_str(raw.get()).map(Some).map_err(D::Error::custom)
}
