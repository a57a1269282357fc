//! Texts of a decision: its input, and the instructions of its questions.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::read;

/// Message of an input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: Role,
    content: Value,
    #[serde(rename = "type")]
    _type: Option<String>,
    #[serde(rename = "phase")]
    _phase: Option<String>,
}

/// Author of a message.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Developer,
    System,
    Assistant,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Developer => "developer",
            Self::System => "system",
            Self::Assistant => "assistant",
        }
    }
}

/// Part of a content.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Part {
    InputText {
        text: String,
        #[serde(rename = "prompt_cache_breakpoint")]
        _breakpoint: Option<Value>,
    },
    OutputText {
        text: String,
    },
    Refusal {
        refusal: String,
    },
    InputJson {
        data: Value,
    },
}

/// Returns the text of an input. A single message is its content. Of several, each begins with its
/// role, and a blank line follows it.
///
/// # Errors
///
/// Returns an error that names the first item that has no text.
pub(super) fn text_of(input: Value) -> Result<String> {
    let items = match input {
        Value::String(text) => return Ok(text),
        Value::Array(items) => items,
        _ => {
            let message = "`input` must be a text or a list of messages";
            return Err(ApiError::field("input", message));
        }
    };
    if items.is_empty() {
        return Err(ApiError::field("input", "`input` must have at least one message"));
    }
    let messages = items.into_iter().enumerate().map(|(index, item)| {
        let at = format!("input[{index}]");
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
        if kind != "message" {
            let kind: String = kind.chars().take(40).collect();
            let message = format!("`{at}` has the type `{kind}`, and only messages are judged");
            return Err(ApiError::field(&at, message).coded("unsupported_parameter"));
        }
        let message: Message = read(&at, item)?;
        Ok((message.role, content(&format!("{at}.content"), message.content)?))
    });
    let mut messages = messages.collect::<Result<Vec<_>>>()?;
    if messages.len() == 1 {
        return Ok(messages.remove(0).1);
    }
    let messages = messages.iter().map(|(role, text)| format!("{}: {text}", role.as_str()));
    Ok(messages.collect::<Vec<_>>().join("\n\n"))
}

/// Returns the text of a content: a text, or a list of parts.
///
/// # Errors
///
/// Returns an error that names the first part that has no text.
pub(super) fn content(at: &str, content: Value) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => {
            let message = format!("`{at}` must be a text or a list of parts");
            return Err(ApiError::field(at, message));
        }
    };
    let texts = parts.into_iter().enumerate().map(|(index, part)| {
        let at = format!("{at}[{index}]");
        if part.get("type").and_then(Value::as_str) == Some("input_image") {
            let message = format!("`{at}` is an image, and only text is judged");
            return Err(ApiError::field(&at, message).coded("unsupported_parameter"));
        }
        Ok(match read(&at, part)? {
            Part::InputText { text, .. } | Part::OutputText { text } => text,
            Part::Refusal { refusal } => refusal,
            Part::InputJson { data } if is_data(&data) => data.to_string(),
            Part::InputJson { .. } => {
                let message = format!("`{at}.data` must be an object or a list of objects");
                return Err(ApiError::field(&at, message));
            }
        })
    });
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n"))
}

fn is_data(data: &Value) -> bool {
    match data {
        Value::Object(_) => true,
        Value::Array(items) => items.iter().all(Value::is_object),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::text_of;
    use serde_json::{Value, json};

    #[test]
    fn the_text_of_messages_has_their_roles_if_there_are_several() {
        assert_eq!(text_of(json!("a")).unwrap(), "a");
        let user = json!({ "role": "user", "content": "It broke." });
        assert_eq!(text_of(json!([user])).unwrap(), "It broke.");
        let parts = json!([
            { "type": "output_text", "text": "Sorry." }, { "type": "refusal", "refusal": "No." }
        ]);
        let answer = json!({ "type": "message", "role": "assistant", "content": parts });
        let data = json!([{ "type": "input_json", "data": { "order": 7 } }]);
        let order = json!({ "role": "developer", "content": data });
        let text = "user: It broke.\n\nassistant: Sorry.\nNo.\n\ndeveloper: {\"order\":7}";
        assert_eq!(text_of(json!([user, answer, order])).unwrap(), text);
    }

    #[track_caller]
    fn refused(input: Value, param: &str) {
        let error = text_of(input).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param, "{}", error.message());
    }

    #[test]
    fn an_item_without_text_is_refused_by_its_place() {
        let user = json!({ "role": "user", "content": "a" });
        refused(json!(7), "input");
        refused(json!([]), "input");
        let call =
            json!({ "type": "function_call", "name": "f", "arguments": "{}", "call_id": "c" });
        refused(json!([user, call]), "input[1]");
        refused(json!([{ "role": "tool", "content": "a" }]), "input[0]");
        refused(json!([{ "role": "user", "content": "a", "x": 1 }]), "input[0]");
        let parts = |part: Value| json!([{ "role": "user", "content": [part] }]);
        let image = json!({ "type": "input_image", "image_url": "https://x.example" });
        refused(parts(image), "input[0].content[0]");
        refused(parts(json!({ "type": "input_json", "data": 7 })), "input[0].content[0]");
        refused(parts(json!({ "type": "input_text" })), "input[0].content[0]");
        refused(json!([{ "role": "user", "content": 7 }]), "input[0].content");
    }
}
