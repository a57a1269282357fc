//! Items of a response's input, as messages of a chat.

use std::collections::HashMap;

use nsbridge_client::{ChatMessage, Content, RequestId, ToolCall};
use nsbridge_reply_text::tools::namespace;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::chat::reply::Message;
use crate::error::{ApiError, Result};
use crate::ids;

/// Type of an item that stands for one of an earlier response.
pub(super) const REFERENCE: &str = "item_reference";

/// Items of earlier responses by their ids.
pub(super) type KnownItems = HashMap<String, Value>;

/// Item of an input.
#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    summary: Value,
}

/// Returns the id that an item refers to. OpenAI's interface lets a reference leave out its type.
fn referred(item: &Value) -> Option<&str> {
    let is_reference = match item.get("type").and_then(Value::as_str) {
        Some(kind) => kind == REFERENCE,
        None => item.get("role").is_none() && item.get("content").is_none(),
    };
    item.get("id").filter(|_| is_reference)?.as_str()
}

/// Returns the ids of the items that an input refers to, with their places in it.
pub(super) fn references(input: &Value) -> Vec<(usize, String)> {
    let items = input.as_array().into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| Some((index, referred(item)?.to_owned()))).collect()
}

/// Reads `input`: a text, or a list of items. References stand for known items; those to others are
/// left out. Messages have images only if `images` is true.
///
/// # Errors
///
/// Returns an error that names the item and the type that is not supported.
pub(super) fn read(input: Value, known: &KnownItems, images: bool) -> Result<Vec<ChatMessage>> {
    let items = match input {
        Value::Null => return Ok(Vec::new()),
        Value::String(text) => return Ok(vec![ChatMessage::new("user", text)]),
        Value::Array(items) => items,
        _ => return Err(ApiError::field("input", "`input` must be a text or a list of items")),
    };
    let mut messages: Vec<ChatMessage> = Vec::new();
    // Text of the reasoning before the next message of the assistant.
    let mut reasoning = String::new();
    for (index, item) in items.into_iter().enumerate() {
        let at = format!("input[{index}]");
        let item = match referred(&item) {
            Some(id) => match known.get(id) {
                Some(known) => known.clone(),
                None => continue,
            },
            None => item,
        };
        let item: Item = crate::fields::read(&at, item)?;
        match item.kind.as_deref() {
            None | Some("message") => {
                let role = item.role.as_deref().unwrap_or_default();
                let role = match role {
                    "developer" | "system" => "system",
                    "user" | "assistant" => role,
                    _ => {
                        return Err(ApiError::field(
                            &format!("{at}.role"),
                            "`role` must be `user`, `assistant`, `system` or `developer`",
                        ));
                    }
                };
                let content = content(&format!("{at}.content"), item.content, images)?;
                let mut message = ChatMessage::new(role, content);
                take_reasoning(&mut message, &mut reasoning);
                messages.push(message);
            }
            Some("function_call") => {
                let missing = |name: &str| {
                    ApiError::field(&format!("{at}.{name}"), format!("`{name}` is missing"))
                };
                let name = item.name.ok_or_else(|| missing("name"))?;
                let call = ToolCall::new(
                    item.call_id.ok_or_else(|| missing("call_id"))?,
                    namespace::of_call(item.namespace.as_deref(), name),
                    item.arguments.ok_or_else(|| missing("arguments"))?,
                );
                // Calls of one turn are one message.
                if let Some(last) = messages.last_mut().filter(|last| last.role == "assistant") {
                    last.tool_calls.push(call);
                } else {
                    let mut message = ChatMessage::new("assistant", "").calls(vec![call]);
                    take_reasoning(&mut message, &mut reasoning);
                    messages.push(message);
                }
            }
            Some("function_call_output") => {
                let output = content(&format!("{at}.output"), item.output, images)?;
                let mut message = ChatMessage::new("tool", output);
                message.tool_call_id = item.call_id;
                messages.push(message);
            }
            Some("reasoning") => {
                for part in [item.content, item.summary] {
                    reasoning.push_str(&content(&at, part, false)?);
                }
            }
            Some(kind) => {
                let kind: String = kind.chars().take(40).collect();
                return Err(ApiError::field(
                    &format!("{at}.type"),
                    format!(
                        "an item of type `{kind}` is not supported: `message`, `function_call`, \
                         `function_call_output`, `reasoning` and `{REFERENCE}` are"
                    ),
                ));
            }
        }
    }
    Ok(messages)
}

fn take_reasoning(message: &mut ChatMessage, reasoning: &mut String) {
    let text = std::mem::take(reasoning);
    if message.role == "assistant" && !text.is_empty() {
        message.reasoning_content = Some(text);
    }
}

/// Returns a content: a text, or a list of parts of text and, if `images` is true, of images.
fn content(at: &str, content: Value, images: bool) -> Result<Content> {
    let parts = match content {
        Value::Null => return Ok(Content::default()),
        Value::String(text) => return Ok(text.into()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(at, "the content must be a text or a list of parts")),
    };
    let mut all = Content::default();
    for part in parts {
        match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => {
                all.push_text(part.get("text").and_then(Value::as_str).unwrap_or_default());
            }
            Some("refusal") => {
                all.push_text(part.get("refusal").and_then(Value::as_str).unwrap_or_default());
            }
            Some("input_image") if images => all.append(&image(at, &part)?),
            kind => {
                let kind: String = kind.unwrap_or("none").chars().take(40).collect();
                return Err(ApiError::field(
                    at,
                    format!("a part of type `{kind}` cannot be read: only text can"),
                ));
            }
        }
    }
    Ok(all)
}

/// Reads a part that is an image. Its address is a data URL.
fn image(at: &str, part: &Value) -> Result<Content> {
    if part.get("file_id").is_some_and(|id| !id.is_null()) {
        let message = format!("`{at}`: `file_id` of an image is not supported: give `image_url`");
        return Err(ApiError::field(at, message));
    }
    let url = part.get("image_url").and_then(Value::as_str).unwrap_or_default();
    let detail = part.get("detail").filter(|detail| !detail.is_null());
    let mut image = json!({ "url": url });
    if let Some(detail) = detail {
        image["detail"] = detail.clone();
    }
    crate::fields::read(at, json!([{ "type": "image_url", "image_url": image }]))
}

/// Returns the message of the assistant in a reply.
pub(super) fn of_reply(message: Message, id: RequestId) -> ChatMessage {
    let calls = message.calls.into_iter().enumerate();
    let calls = calls
        .map(|(index, (name, arguments))| ToolCall::new(ids::call(id, 0, index), name, arguments));
    let calls = calls.collect();
    let mut own = ChatMessage::new("assistant", message.content).calls(calls);
    own.reasoning_content = Some(message.reasoning).filter(|text| !text.is_empty());
    own
}

/// Returns the items of an input with ids, as `input_items` lists them.
pub(super) fn shown(input: Option<Value>, id: RequestId) -> Vec<Value> {
    let of_text = |text: &str| {
        json!({ "type": "message", "role": "user", "status": "completed",
                "content": [{ "type": "input_text", "text": text }] })
    };
    let items = match input {
        Some(Value::String(text)) => vec![of_text(&text)],
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    let with_id = |(index, mut item): (usize, Value)| {
        if let Some(fields) = item.as_object_mut() {
            fields.entry("type").or_insert("message".into());
            fields.entry("id").or_insert(ids::item("msg", id, 0xf000 + index).into());
            let output = fields.get("role").and_then(Value::as_str) == Some("assistant");
            if let Some(Value::String(text)) = fields.get("content").cloned() {
                let kind = if output { "output_text" } else { "input_text" };
                let mut part = json!({ "type": kind, "text": text });
                if output {
                    part["annotations"] = json!([]);
                }
                fields.insert("content".into(), json!([part]));
            }
        }
        item
    };
    items.into_iter().enumerate().map(with_id).collect()
}
