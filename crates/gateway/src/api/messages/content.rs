//! System prompt and messages of a request, as the messages of a chat.
//!
//! The blocks of adjacent messages of one role become one message, since Anthropic's interface
//! counts them as one turn. The result of a tool is a message of its own.

use nsbridge_client::{ChatMessage, Content, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::read;

/// Beginning of the result of a tool that failed, since chat templates have no other mark for it.
const FAILED: &str = "Error: ";

/// Message as the client sends it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    role: Role,
    content: Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
    System,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::System => "system",
        }
    }

    /// Returns the types of blocks that its messages may have.
    fn blocks(self, images: bool) -> &'static [&'static str] {
        match self {
            Self::User if images => &["text", "image", "tool_result"],
            Self::User => &["text", "tool_result"],
            Self::Assistant => &["text", "thinking", "redacted_thinking", "tool_use"],
            Self::System => TEXT,
        }
    }
}

/// Types of blocks of a content that is text alone.
const TEXT: &[&str] = &["text"];

/// Block of a message.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Block {
    Text {
        text: String,
    },
    Image {
        source: Source,
    },
    /// Signatures are not checked: the gateway makes empty ones.
    Thinking {
        thinking: String,
    },
    RedactedThinking {},
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<Value>,
        #[serde(default)]
        is_error: bool,
    },
}

/// Place of an image.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Source {
    Base64 { media_type: String, data: String },
    Url { url: String },
}

impl Source {
    /// Returns the image as the content of a message.
    fn read(self, at: &str) -> Result<Content> {
        let url = match self {
            Self::Base64 { media_type, data } => format!("data:{media_type};base64,{data}"),
            Self::Url { url } => url,
        };
        read(at, json!([{ "type": "image_url", "image_url": { "url": url } }]))
    }
}

/// Reads `system`, a text or blocks of text.
///
/// # Errors
///
/// Returns an error that names the first invalid block.
pub(super) fn system(value: Option<Value>) -> Result<Option<ChatMessage>> {
    let Some(value) = value else { return Ok(None) };
    let text = content("system", value, TEXT)?;
    Ok((!text.is_empty()).then(|| ChatMessage::new("system", text)))
}

/// Reads `messages` and appends them to `chat`. They have images only if `images` is true.
///
/// # Errors
///
/// Returns an error that names the first invalid message or block.
pub(super) fn messages(
    values: Vec<Value>,
    images: bool,
    chat: &mut Vec<ChatMessage>,
) -> Result<()> {
    let before = chat.len();
    for (index, mut value) in values.into_iter().enumerate() {
        let at = format!("messages[{index}]");
        if let Some(fields) = value.as_object_mut() {
            fields.remove("cache_control");
            // A whole reply that is sent back has more than its content.
            if fields.get("role").is_some_and(|role| role == "assistant") {
                fields.retain(|name, _| matches!(&**name, "role" | "content"));
            }
        }
        let Given { role, content } = read(&at, value)?;
        let types = role.blocks(images);
        for (at, mut block) in blocks(&format!("{at}.content"), content)? {
            if role == Role::Assistant {
                drop_remarks(&mut block);
            }
            add(chat, role.name(), block_of(&at, block, types)?, &at, images)?;
        }
    }
    if chat.len() == before {
        let message = "`messages` must have at least one message with content";
        return Err(ApiError::field("messages", message));
    }
    Ok(())
}

/// Appends a block to the last message if that has the same role, and as a message otherwise.
fn add(
    chat: &mut Vec<ChatMessage>,
    role: &'static str,
    block: Block,
    at: &str,
    images: bool,
) -> Result<()> {
    let (part, reasoning, call) = match block {
        Block::Text { text } => (Content::from(text), None, None),
        Block::Image { source } => (source.read(at)?, None, None),
        Block::Thinking { thinking } => (Content::default(), Some(thinking), None),
        Block::RedactedThinking {} => return Ok(()),
        Block::ToolUse { id, name, input } => {
            let input = Value::Object(input).to_string();
            (Content::default(), None, Some(ToolCall::new(id, name, input)))
        }
        Block::ToolResult { tool_use_id, content: result, is_error } => {
            let types = if images { &["text", "image"] } else { TEXT };
            let (at, result) = (format!("{at}.content"), result.unwrap_or("".into()));
            let mut result = content(&at, result, types)?;
            if is_error {
                result.prefix(FAILED);
            }
            let mut message = ChatMessage::new("tool", result);
            message.tool_call_id = Some(tool_use_id);
            chat.push(message);
            return Ok(());
        }
    };
    if chat.last().is_none_or(|last| last.role != role) {
        chat.push(ChatMessage::new(role, ""));
    }
    let Some(last) = chat.last_mut() else { return Ok(()) };
    last.content.append(&part);
    if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_empty()) {
        append(last.reasoning_content.get_or_insert_default(), &reasoning);
    }
    last.tool_calls.extend(call);
    Ok(())
}

/// Appends a text as another line.
fn append(all: &mut String, text: &str) {
    if !all.is_empty() && !text.is_empty() {
        all.push('\n');
    }
    all.push_str(text);
}

/// Returns the blocks of a content with their paths.
fn blocks(at: &str, content: Value) -> Result<Vec<(String, Value)>> {
    let blocks = match content {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(blocks) => blocks,
        _ => {
            let message = format!("`{at}` must be a text or a list of blocks");
            return Err(ApiError::field(at, message));
        }
    };
    let numbered = blocks.into_iter().enumerate();
    Ok(numbered.map(|(index, block)| (format!("{at}[{index}]"), block)).collect())
}

/// Drops the fields of a block of the assistant that only tell about the reply that it was.
fn drop_remarks(block: &mut Value) {
    let Some(fields) = block.as_object_mut() else { return };
    let read: &[&str] = match fields.get("type").and_then(Value::as_str) {
        Some("text") => &["text"],
        Some("thinking") => &["thinking"],
        Some("redacted_thinking") => &[],
        Some("tool_use") => &["id", "name", "input"],
        _ => return,
    };
    fields.retain(|name, _| name == "type" || read.contains(&&**name));
}

/// Reads a block that must have one of these types.
fn block_of(at: &str, mut block: Value, types: &[&str]) -> Result<Block> {
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
    if !types.contains(&kind) {
        let kind: String = kind.chars().take(40).collect();
        let types = types.join("`, `");
        let message = if kind.is_empty() {
            format!("`{at}.type` is missing: it must be one of `{types}`")
        } else {
            format!("`{at}` is a block of type `{kind}`, and only `{types}` can be read here")
        };
        return Err(ApiError::field(at, message));
    }
    if let Some(fields) = block.as_object_mut() {
        fields.retain(|name, value| name != "cache_control" && !value.is_null());
    }
    read(at, block)
}

/// Reads a text or blocks of text and, if `types` has them, images.
fn content(at: &str, content: Value, types: &[&str]) -> Result<Content> {
    let mut all = Content::default();
    for (at, block) in blocks(at, content)? {
        match block_of(&at, block, types)? {
            Block::Text { text } => all.push_text(&text),
            Block::Image { source } => all.append(&source.read(&at)?),
            _ => {}
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use nsbridge_client::ChatMessage;
    use serde_json::{Value, json};

    use super::{messages, system};
    use crate::error::Result;

    fn chat(given: Value) -> Result<Vec<ChatMessage>> {
        let mut chat = Vec::new();
        messages(serde_json::from_value(given).unwrap(), false, &mut chat)?;
        Ok(chat)
    }

    #[track_caller]
    fn check(given: Value, expected: &Value) {
        let chat = chat(given).map_err(|error| error.message().to_owned()).unwrap();
        assert_eq!(&serde_json::to_value(chat).unwrap(), expected);
    }

    #[track_caller]
    fn check_refused(given: Value, param: &str, says: &str) {
        let error = chat(given).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param);
        assert!(error.message().contains(says), "{}", error.message());
    }

    #[test]
    fn texts_and_blocks_of_one_role_are_one_message() {
        check(
            json!([
                { "role": "user", "content": "a" },
                { "role": "user", "content": [
                    { "type": "text", "text": "b", "cache_control": { "type": "ephemeral" } },
                    { "type": "text", "text": "c", "citations": null }
                ] },
                { "role": "assistant", "content": "d" },
                { "role": "system", "content": "e" }
            ]),
            &json!([
                { "role": "user", "content": "a\nb\nc" },
                { "role": "assistant", "content": "d" },
                { "role": "system", "content": "e" }
            ]),
        );
    }

    #[test]
    fn calls_thoughts_and_results_have_their_places() {
        check(
            json!([
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "toolu_1", "name": "f", "input": { "b": 1, "a": 2 } },
                    { "type": "tool_use", "id": "toolu_2", "name": "g", "input": {}, "caller": null }
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "toolu_1", "content": "one" },
                    { "type": "tool_result", "tool_use_id": "toolu_2", "is_error": true,
                      "content": [{ "type": "text", "text": "no" }, { "type": "text", "text": "way" }] },
                    { "type": "text", "text": "And now?" }
                ] }
            ]),
            &json!([
                { "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
                    { "id": "toolu_1", "type": "function",
                      "function": { "name": "f", "arguments": "{\"b\":1,\"a\":2}" } },
                    { "id": "toolu_2", "type": "function",
                      "function": { "name": "g", "arguments": "{}" } }
                ] },
                { "role": "tool", "content": "one", "tool_call_id": "toolu_1" },
                { "role": "tool", "content": "Error: no\nway", "tool_call_id": "toolu_2" },
                { "role": "user", "content": "And now?" }
            ]),
        );
        let empty = json!([{ "type": "tool_result", "tool_use_id": "t" }]);
        check(
            json!([{ "role": "user", "content": empty }]),
            &json!([{ "role": "tool", "content": "", "tool_call_id": "t" }]),
        );
    }

    #[test]
    fn a_reply_is_read_as_its_client_has_it() {
        check(
            json!([
                { "role": "assistant", "id": "msg_1", "type": "message", "model": "m",
                  "stop_reason": "tool_use", "usage": { "input_tokens": 1 }, "content": [
                    { "type": "text", "text": "I look.", "citations": [], "parsed_output": { "a": 1 } },
                    { "type": "tool_use", "id": "toolu_1", "name": "f", "input": {},
                      "caller": { "type": "direct" }, "index": 1 }
                ] }
            ]),
            &json!([
                { "role": "assistant", "content": "I look.", "tool_calls": [
                    { "id": "toolu_1", "type": "function", "function": { "name": "f", "arguments": "{}" } }
                ] }
            ]),
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let of = |role: &str, block: Value| json!([{ "role": role, "content": [block] }]);
        let image = json!({ "type": "image", "source": {} });
        check_refused(of("user", image.clone()), "messages[0].content[0]", "`image`");
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [image] });
        check_refused(of("user", result), "messages[0].content[0].content[0]", "`image`");
        let call = json!({ "type": "tool_use", "id": "t", "name": "f", "input": {} });
        check_refused(of("user", call.clone()), "messages[0].content[0]", "`tool_use`");
        check_refused(of("user", json!({ "text": "a" })), "messages[0].content[0]", "`text`");
        let odd = json!({ "type": "text", "text": "a", "typo": 1 });
        check_refused(of("user", odd), "messages[0].content[0]", "`typo`");
        let list = json!({ "type": "tool_use", "id": "t", "name": "f", "input": [] });
        check_refused(of("assistant", list), "messages[0].content[0]", "an object");
        check_refused(of("tool", call), "messages[0]", "`tool`");
        check_refused(json!([{ "role": "user", "content": 1 }]), "messages[0].content", "a text");
        check_refused(json!([{ "role": "user" }]), "messages[0]", "`content`");
        check_refused(json!([]), "messages", "at least one");
    }

    #[test]
    fn a_system_prompt_is_a_text_or_blocks_of_text() {
        let read = |value: Value| system(Some(value)).unwrap().map(|message| message.content);
        assert_eq!(read(json!("a")).as_deref(), Some("a"));
        let blocks = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(read(blocks).as_deref(), Some("a\nb"));
        assert_eq!(read(json!([])), None);
        assert!(system(None).unwrap().is_none());
        let image = json!([{ "type": "image" }]);
        assert!(system(Some(image)).unwrap_err().message().contains("`system[0]`"));
    }
}
