//! Formats of calls and of reasoning, found from what a chat template writes.

use std::time::UNIX_EPOCH;

use nsbridge_handler::ChatMessage;
use serde_json::{Value, json};

use super::chat::Chat;
use super::{ChatTemplate, DEFAULT, TOOL_USE};
use crate::limits::FEW_BYTES;

/// Formats in which a model writes calls of tools and its reasoning.
///
/// They are found from the model's chat template, from what it makes of a conversation with a call. A
/// gateway is told of them by its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatFormats {
    /// Format of the calls; `None` if the template writes none, or another one than these.
    pub calls: Option<CallFormat>,
    /// Place of the reasoning; `None` if the template knows of none.
    pub reasoning: Option<ReasoningFormat>,
}

/// Format of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// `{"name": .., "parameters": ..}`, as Llama 3 writes it.
    Llama3Json,
    /// `[TOOL_CALLS]..`, as Mistral writes it.
    Mistral,
}

/// Place of the reasoning in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningFormat {
    /// Between `<think>` and `</think>`.
    Think,
    /// As `Think`, with the first tag written by the chat template.
    ThinkBegun,
}

impl CallFormat {
    /// Returns the name of the format in a gateway's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Llama3Json => "llama3_json",
            Self::Mistral => "mistral",
        }
    }
}

impl ReasoningFormat {
    /// Returns the name of the place in a gateway's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Think => "think",
            Self::ThinkBegun => "think_begun",
        }
    }
}

impl ChatTemplate {
    /// Returns the formats that the template shows.
    pub(crate) fn formats(&self) -> ChatFormats {
        let mut chat = Chat::with_call(self.calls);
        chat.tools = vec![json!({ "type": "function", "function": {
            "name": "look", "description": "Looks.",
            "parameters": { "type": "object", "properties": { "at": { "type": "string" } } }
        } })];
        let written = |chat: &Chat| self.written(chat, UNIX_EPOCH, FEW_BYTES).unwrap_or_default();
        let turn = written(&Chat::of(&[ChatMessage::new("user", "hello")]));
        let names_reasoning = |name: &&str| {
            self.environment.get_template(name).is_ok_and(|it| it.source().contains("</think>"))
        };
        let reasoning = if turn.trim_end().ends_with("<think>") {
            Some(ReasoningFormat::ThinkBegun)
        } else {
            [DEFAULT, TOOL_USE].iter().any(names_reasoning).then_some(ReasoningFormat::Think)
        };
        ChatFormats { calls: calls(&written(&chat)), reasoning }
    }
}

/// Returns the format of the call of `look` in a rendered conversation.
fn calls(text: &str) -> Option<CallFormat> {
    if text.contains("[TOOL_CALLS]") {
        return Some(CallFormat::Mistral);
    }
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        let call = values.next()?.ok()?;
        let (before, after) =
            (text[..at].trim_end(), text[at + values.byte_offset()..].trim_start());
        let is_call = |arguments: &str| call["name"] == "look" && !call[arguments].is_null();
        if is_call("arguments")
            && before.ends_with("<tool_call>")
            && after.starts_with("</tool_call>")
        {
            return Some(CallFormat::Hermes);
        }
        let begins = ["<|end_header_id|>", "<|python_tag|>"].iter().any(|it| before.ends_with(it));
        (is_call("parameters") && begins).then_some(CallFormat::Llama3Json)
    })
}

#[cfg(test)]
mod tests {
    use super::{CallFormat, calls};

    #[test]
    fn calls_are_told_by_what_stands_around_them() {
        let call = r#"{"name": "look", "arguments": {"at": "sea"}}"#;
        let llama = call.replace("arguments", "parameters");
        let begin = "<|start_header_id|>assistant<|end_header_id|>\n\n";
        for (text, expected) in [
            (
                format!(
                    "Write <tool_call>\n{{}}\n</tool_call>.\n<tool_call>\n{call}\n</tool_call>"
                ),
                Some(CallFormat::Hermes),
            ),
            (format!("{begin}{llama}<|eot_id|>"), Some(CallFormat::Llama3Json)),
            (format!("[TOOL_CALLS] [{call}]</s>"), Some(CallFormat::Mistral)),
            ("[TOOL_CALLS]look[ARGS]{\"at\": \"sea\"}</s>".to_owned(), Some(CallFormat::Mistral)),
            // Formats that no parser here reads, and the tools' own descriptions.
            ("<tool_call>\n<function=look>\n<parameter=at>\nsea".to_owned(), None),
            ("<|tool_call_start|>[look(at=\"sea\")]".to_owned(), None),
            (format!("<tool_call>\n{}\n</tool_call>", call.replace("look", "other")), None),
            (format!("{begin}<function=look>{{\"at\": \"sea\"}}</function>"), None),
            (format!("{begin}{call}"), None),
        ] {
            assert_eq!(calls(&text), expected, "{text}");
        }
    }
}
