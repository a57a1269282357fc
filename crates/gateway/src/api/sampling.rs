//! Sampling parameters and limits, which most endpoints share.

use std::collections::BTreeMap;

use nsbridge_protocol::{JsonSchema, ResponseFormat, TextInput};
use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::{Fields, OneOrMany, nested, read};

/// Reads the parameters that OpenAI's and vLLM's interfaces share into `input`. Returns the seed.
///
/// # Errors
///
/// Returns an error that names the first invalid field.
pub(crate) fn sampling(fields: &mut Fields<'_>, input: &mut TextInput) -> Result<Option<u64>> {
    input.temperature = fields.take("temperature")?;
    input.top_p = fields.take("top_p")?;
    // vLLM's clients send -1 for no limit.
    input.top_k = fields.take::<i64>("top_k")?.and_then(|top| u32::try_from(top).ok());
    // OpenAI's range has 0: the likeliest token alone.
    if input.top_p.is_some_and(|top| top == 0.0) {
        (input.top_p, input.top_k) = (None, Some(1));
    }
    input.min_p = fields.take("min_p")?;
    input.repetition_penalty = fields.take("repetition_penalty")?;
    input.frequency_penalty = fields.take("frequency_penalty")?;
    input.presence_penalty = fields.take("presence_penalty")?;
    input.logit_bias = biases(fields)?;
    input.stop = fields.take::<OneOrMany>("stop")?.map(OneOrMany::into_vec).unwrap_or_default();
    input.stop.retain(|stop| !stop.is_empty());
    input.stop_token_ids = fields.take("stop_token_ids")?.unwrap_or_default();
    input.bad_token_ids = fields.take("bad_token_ids")?.unwrap_or_default();
    input.min_tokens = fields.take::<u32>("min_tokens")?.filter(|least| *least > 0);
    input.ignore_eos = fields.take("ignore_eos")?.unwrap_or_default();
    input.priority = fields.take("priority")?;
    Ok(fields.take::<i64>("seed")?.map(i64::cast_unsigned))
}

fn biases(fields: &mut Fields<'_>) -> Result<BTreeMap<u32, f32>> {
    let Some(biases) = fields.take::<BTreeMap<String, f32>>("logit_bias")? else {
        return Ok(BTreeMap::new());
    };
    let each = |(token, bias): (String, f32)| {
        let token = token.parse().map_err(|_| {
            ApiError::field("logit_bias", "`logit_bias` must have token ids as names")
        });
        Ok((token?, bias))
    };
    biases.into_iter().map(each).collect()
}

/// Reads `n`, the number of replies to a prompt.
///
/// # Errors
///
/// Returns an error if it is not a number from 1 to 128.
pub(crate) fn replies(fields: &mut Fields<'_>) -> Result<u32> {
    let n = fields.take::<u32>("n")?.unwrap_or(1);
    if (1..=128).contains(&n) {
        Ok(n)
    } else {
        Err(ApiError::field("n", "`n` must be from 1 to 128"))
    }
}

/// Reads the format of the reply: OpenAI's `response_format`, or vLLM's `structured_outputs`.
///
/// # Errors
///
/// Returns an error that names the first invalid field.
pub(crate) fn format(fields: &mut Fields<'_>) -> Result<Option<ResponseFormat>> {
    let format: Option<ResponseFormat> = fields.take("response_format")?;
    let Some(structured) = fields.value("structured_outputs")? else { return Ok(plain(format)) };
    if format.is_some() {
        return Err(ApiError::field(
            "structured_outputs",
            "give only one of `response_format` and `structured_outputs`",
        ));
    }
    let Value::Object(structured) = structured else {
        return Err(ApiError::field(
            "structured_outputs",
            "`structured_outputs` must be an object",
        ));
    };
    let mut found = None;
    for (name, value) in structured {
        let format = match (name.as_str(), value) {
            (_, Value::Null) => continue,
            ("regex", Value::String(regex)) => ResponseFormat::Regex { regex },
            ("choice", value) => {
                let choices: Vec<String> = read("structured_outputs", value)?;
                one_of(&choices)?
            }
            ("json", Value::String(text)) => conforming(nested("structured_outputs", &text)?),
            ("json", schema) => conforming(schema),
            ("json_object", Value::Bool(true)) => ResponseFormat::JsonObject {},
            (other, _) => {
                return Err(ApiError::field(
                    "structured_outputs",
                    format!(
                        "`structured_outputs` has `{}`, and only `json`, `json_object`, `regex` \
                         and `choice` are supported",
                        other.chars().take(40).collect::<String>()
                    ),
                ));
            }
        };
        if found.replace(format).is_some() {
            return Err(ApiError::field(
                "structured_outputs",
                "`structured_outputs` must have one kind of format",
            ));
        }
    }
    Ok(found)
}

fn conforming(schema: Value) -> ResponseFormat {
    ResponseFormat::JsonSchema { json_schema: JsonSchema::new(schema) }
}

/// Returns the expression of a text that is one of `choices`.
fn one_of(choices: &[String]) -> Result<ResponseFormat> {
    if choices.is_empty() {
        return Err(ApiError::field("structured_outputs", "`choice` must have at least one text"));
    }
    let escaped: Vec<String> = choices.iter().map(|choice| escape(choice)).collect();
    Ok(ResponseFormat::Regex { regex: format!("({})", escaped.join("|")) })
}

/// Escapes the characters that have a meaning in a regular expression.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\.+*?()|[]{}^$#&-~ ".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

fn plain(format: Option<ResponseFormat>) -> Option<ResponseFormat> {
    format.filter(|format| !matches!(format, ResponseFormat::Text {}))
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::TextInput;

    use super::{Fields, sampling};

    #[test]
    fn no_probability_mass_is_the_likeliest_token_and_no_limit_is_none() {
        for (body, expected) in [
            (r#"{"top_p": 0, "top_k": 40}"#, (None, Some(1))),
            (r#"{"top_p": 0.5, "top_k": -1}"#, (Some(0.5), None)),
        ] {
            let mut input = TextInput::default();
            sampling(&mut Fields::parse(body.as_bytes()).unwrap(), &mut input).unwrap();
            assert_eq!((input.top_p, input.top_k), expected, "{body}");
        }
    }
}
