//! Lines of an input file: their shape, checked before any of them runs.

use std::collections::HashSet;
use std::sync::Arc;

use nsbridge_client::ModelName;
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::Unstored;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::archive::batch::{Endpoint, LineError};
use crate::archive::{Line, Lines};
use crate::catalog::Models;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, in_json_words};

/// Number of errors after which a file is not read any further.
const MOST_ERRORS: usize = 100;

/// Longest `custom_id`, in characters.
const LONGEST_ID: usize = 512;

/// Request of a line.
pub(super) struct LineRequest {
    pub(super) custom_id: String,
    pub(super) body: Box<RawValue>,
}

/// Line as it is in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    #[serde(borrow)]
    custom_id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
    body: Option<Box<RawValue>>,
}

/// Returns the text of a field; an empty one if it is no text, or longer than any that is valid.
fn short_text(field: &RawValue) -> String {
    /// Bytes of the longest `custom_id` with each character written as two escapes.
    const MAX_ESCAPED_ID_BYTES: usize = 12 * LONGEST_ID + 2;
    let field = Some(field.get()).filter(|field| field.len() <= MAX_ESCAPED_ID_BYTES);
    field.and_then(|field| serde_json::from_str(field).ok()).unwrap_or_default()
}

/// Input file whose lines are all requests of its endpoint.
#[derive(Debug)]
pub(super) struct Valid {
    pub(super) lines: u64,
    /// Model of the lines, if they have one in common.
    pub(super) model: Option<String>,
}

impl LineRequest {
    /// Reads a line of a batch for an endpoint.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(super) fn parse(line: &Line, endpoint: Endpoint) -> Result<Self> {
        let too_long = || ApiError::bad_request("the line is too long").coded("line_too_long");
        let text = line.text.as_ref().ok_or_else(too_long)?;
        let written: Written<'_> = serde_json::from_slice(text).map_err(|error| {
            let message = match error.classify() {
                serde_json::error::Category::Data => {
                    format!("the line must be a JSON object: {}", in_json_words(&error))
                }
                _ => "the line is not valid JSON".to_owned(),
            };
            ApiError::bad_request(message).coded("invalid_json_line")
        })?;
        let custom_id = written.custom_id.ok_or_else(|| missing("custom_id"))?;
        let custom_id = short_text(custom_id);
        if !(1..=LONGEST_ID).contains(&custom_id.chars().count()) {
            let message = format!("`custom_id` must be a text of 1 to {LONGEST_ID} characters");
            return Err(ApiError::field("custom_id", message).coded("invalid_custom_id"));
        }
        if short_text(written.method.ok_or_else(|| missing("method"))?) != "POST" {
            let message = "`method` must be `POST`";
            return Err(ApiError::field("method", message).coded("invalid_method"));
        }
        if short_text(written.url.ok_or_else(|| missing("url"))?) != endpoint.path() {
            let path = endpoint.path();
            let message = format!("`url` must be `{path}`, the endpoint of the batch");
            return Err(ApiError::field("url", message).coded("invalid_url"));
        }
        let body = written.body.ok_or_else(|| missing("body"))?;
        Ok(Self { custom_id, body })
    }

    /// Returns name and queue of the model that is to answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the key may not use the model, or if the reply cannot be part of a batch.
    pub(super) fn model(
        &self,
        endpoint: Endpoint,
        models: &Models,
        caller: &Caller,
    ) -> Result<(String, ModelName)> {
        let mut fields = Fields::parse(self.body.get().as_bytes())?;
        let (name, queue) = if endpoint == Endpoint::Moderations {
            let (name, queue, _) = models.judge(&mut fields, caller)?;
            (name, queue)
        } else {
            let name = models.named(&mut fields)?;
            let (queue, _) = models.find(&name, caller)?;
            (name, queue)
        };
        for field in ["stream", "background"] {
            if fields.take::<bool>(field)? == Some(true) {
                let message = format!("`{field}` must be false in a batch");
                return Err(ApiError::field(field, message));
            }
        }
        Ok((name, queue))
    }
}

fn missing(field: &str) -> ApiError {
    let message = format!("`{field}` is missing");
    ApiError::field(field, message).coded("missing_required_parameter")
}

impl LineError {
    fn of(line: Option<u64>, error: &ApiError) -> Self {
        let (code, message) = (error.code().to_owned(), error.message().to_owned());
        Self { code, line, message, param: error.param().map(str::to_owned) }
    }
}

/// Checks all lines of a file. Blocks.
///
/// # Errors
///
/// Returns an error if the file cannot be read. Errors of the lines are in the inner result.
pub(super) fn validate(
    mut lines: Lines,
    endpoint: Endpoint,
    most: u64,
    models: &Models,
    caller: &Arc<Caller>,
) -> Result<Result<Valid, Vec<LineError>>, Unstored> {
    let (mut errors, mut names, mut count) = (Vec::new(), HashSet::new(), 0);
    let (mut model, mut is_mixed) = (None, false);
    while let Some(line) = lines.next()? {
        count += 1;
        if count > most {
            let message = format!("the file has more than {most} requests");
            let error = ApiError::bad_request(message).coded("too_many_requests");
            errors.push(LineError::of(None, &error));
            break;
        }
        let checked = LineRequest::parse(&line, endpoint).and_then(|request| {
            // A digest takes less memory than an id.
            if !names.insert(*blake3::hash(request.custom_id.as_bytes()).as_bytes()) {
                let message = "`custom_id` is that of an earlier line";
                return Err(ApiError::field("custom_id", message).coded("duplicate_custom_id"));
            }
            Ok(request.model(endpoint, models, caller)?.0)
        });
        match checked {
            Ok(name) => {
                is_mixed |= model.as_ref().is_some_and(|model| *model != name);
                model = Some(name);
            }
            Err(error) => errors.push(LineError::of(Some(line.number), &error)),
        }
        if errors.len() >= MOST_ERRORS {
            break;
        }
    }
    if count == 0 {
        let error = ApiError::bad_request("the file has no requests").coded("empty_file");
        errors.push(LineError::of(None, &error));
    }
    if errors.is_empty() {
        Ok(Ok(Valid { lines: count, model: model.filter(|_| !is_mixed) }))
    } else {
        Ok(Err(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, LineRequest};
    use crate::archive::Line;

    #[track_caller]
    fn check(field: &str, value: &str, code: Option<&str>) {
        let mut fields = [
            ("custom_id", r#""a""#),
            ("method", r#""POST""#),
            ("url", r#""/v1/completions""#),
            ("body", "{}"),
        ];
        fields.iter_mut().filter(|(name, _)| *name == field).for_each(|it| it.1 = value);
        let fields = fields.map(|(name, value)| format!("\"{name}\":{value}"));
        let text = format!("{{{}}}", fields.join(","));
        let line = Line { number: 1, text: Some(text.into_bytes()) };
        let read = LineRequest::parse(&line, Endpoint::Completions);
        assert_eq!(read.as_ref().err().map(|error| error.code()), code, "{field}");
    }

    #[test]
    fn h1_a_line_whose_fields_are_many_values_is_refused_by_its_field() {
        let wide = format!("[{}0]", r#"{"":0},"#.repeat(100_000));
        check("custom_id", &wide, Some("invalid_custom_id"));
        check("method", &wide, Some("invalid_method"));
        check("url", &wide, Some("invalid_url"));
        check("custom_id", &format!("\"{}\"", r"\ud83d\ude00".repeat(512)), None);
        check("custom_id", &format!("\"{}\"", "a".repeat(513)), Some("invalid_custom_id"));
        check("custom_id", "null", Some("missing_required_parameter"));
    }
}
