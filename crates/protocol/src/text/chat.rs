//! Messages of a chat.

use std::fmt;

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use super::bounded::{Sequence, list, named};
use super::content::Content;

/// One message of a chat, in the shape of OpenAI's chat completions.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ChatMessage {
    /// Role of the author: `system`, `user`, `assistant` or `tool`. The chat template decides which
    /// are allowed.
    pub role: String,
    /// Text of the message, and the images in it.
    #[serde(default)]
    pub content: Content,
    /// Name of the author, for templates that show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Text of a model's reasoning before its answer, for templates that show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of tools that the model made in this message of an `assistant`.
    #[serde(default, deserialize_with = "calls", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call whose result this message of a `tool` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl ChatMessage {
    /// Maximum number of calls of one message.
    pub const MOST_CALLS: usize = 256;

    /// Creates a message of an author with this role.
    ///
    /// ```
    /// use nsbridge_protocol::ChatMessage;
    ///
    /// let message = ChatMessage::new("user", "Who lives by the sea?");
    /// assert_eq!(message.content, "Who lives by the sea?");
    /// ```
    pub fn new(role: impl Into<String>, content: impl Into<Content>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// Sets the calls of tools that the message makes.
    #[must_use]
    pub fn calls(self, tool_calls: Vec<ToolCall>) -> Self {
        Self { tool_calls, ..self }
    }

    /// Returns the number of bytes of text and images in the message.
    pub fn bytes(&self) -> usize {
        let Self { role, content, name, reasoning_content, tool_calls, tool_call_id } = self;
        let maybe = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let call = |call: &ToolCall| {
            call.id.len() + call.function.name.len() + call.function.arguments.len()
        };
        role.len()
            + content.bytes()
            + maybe(name)
            + maybe(reasoning_content)
            + maybe(tool_call_id)
            + tool_calls.iter().map(call).sum::<usize>()
    }
}

impl fmt::Debug for ChatMessage {
    /// Omits the text of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatMessage")
            .field("role", &self.role)
            .field("content_bytes", &self.content.bytes())
            .field("tool_calls", &self.tool_calls.len())
            .finish_non_exhaustive()
    }
}

/// Call of a tool that a model made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolCall {
    /// Id of the call, which the message with its result names.
    #[serde(default)]
    pub id: String,
    /// Kind of tool: `function`.
    #[serde(rename = "type", default)]
    pub kind: ToolKind,
    /// Called function.
    pub function: FunctionCall,
}

impl ToolCall {
    /// Creates the call of a function with arguments as JSON.
    pub fn new(
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        let function = FunctionCall { name: name.into(), arguments: arguments.into() };
        Self { id: id.into(), kind: ToolKind::Function, function }
    }
}

impl fmt::Debug for ToolCall {
    /// Omits the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Kind of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolKind {
    /// Function with arguments of a JSON schema.
    #[default]
    Function,
}

/// Name and arguments of a called function.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// Arguments, as the text of a JSON object.
    pub arguments: String,
}

impl fmt::Debug for FunctionCall {
    /// Omits the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionCall").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Deserializes `messages` of at most `MAX_LEN` messages.
pub(super) fn messages<'de, D: Deserializer<'de>, const MAX_LEN: usize>(
    deserializer: D,
) -> Result<Vec<ChatMessage>, D::Error> {
    named("messages", list::<_, _, MAX_LEN>(deserializer))
}

/// Deserializes `tool_calls` of a message. Clients send null for a message without calls.
fn calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ToolCall>, D::Error> {
    let calls =
        Option::<Sequence<ToolCall, { ChatMessage::MOST_CALLS }>>::deserialize(deserializer);
    Ok(named("tool_calls", calls)?.map(|calls| calls.0).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ChatMessage, ToolCall};

    #[track_caller]
    fn read(json: &serde_json::Value) -> Result<ChatMessage, String> {
        serde_json::from_str(&json.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn calls_are_written_as_they_are_read() {
        let call = json!({ "id": "a", "type": "function",
                           "function": { "name": "f", "arguments": "{\"x\":1}" } });
        let json = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        let message = read(&json).unwrap();
        let expected =
            ChatMessage::new("assistant", "").calls(vec![ToolCall::new("a", "f", "{\"x\":1}")]);
        assert_eq!(message, expected);
        assert_eq!(
            read(&json!({ "role": "assistant" })).unwrap(),
            ChatMessage::new("assistant", "")
        );
        assert_eq!(serde_json::to_value(&message).unwrap(), json);
        let many = vec![call_without_id(); ChatMessage::MOST_CALLS + 1];
        let error = read(&json!({ "role": "assistant", "tool_calls": many })).unwrap_err();
        assert!(error.contains("`tool_calls`"), "{error}");
    }

    fn call_without_id() -> serde_json::Value {
        json!({ "function": { "name": "f", "arguments": "{}" } })
    }

    #[test]
    fn every_text_of_a_message_is_counted() {
        let json = json!({
            "role": "ab", "content": "c", "name": "d", "reasoning_content": "e",
            "tool_calls": [{ "id": "f", "function": { "name": "g", "arguments": "hi" } }],
            "tool_call_id": "j"
        });
        assert_eq!(read(&json).unwrap().bytes(), 10);
    }
}
