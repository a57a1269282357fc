//! Messages, tools and variables of a request, as a chat template receives them.

use std::mem;

use nsbridge_handler::{ChatMessage, Error, Result, TextInput, ToolCall};
use serde_json::{Map, Value};

/// Form in which a template takes the calls of earlier messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallShape {
    /// True if the content of a message with calls alone is null, which templates tell from an empty
    /// text.
    pub(super) null_content: bool,
    /// True if the arguments of a call are text, not an object.
    pub(super) text_arguments: bool,
}

/// Chat as JSON.
pub(crate) struct Chat {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Vec<Value>,
    pub(super) variables: Map<String, Value>,
    /// True if the model's turn begins after the last message.
    pub(super) turn: bool,
    /// True if the text of the last message goes on.
    pub(super) continues: bool,
}

impl Chat {
    /// Creates the chat of a request.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(super) fn new(input: &TextInput, calls: CallShape) -> Result<Self> {
        let continues = input.continue_final_message;
        if continues && input.add_generation_prompt == Some(true) {
            return Err(Error::bad_input(
                "`continue_final_message` needs `add_generation_prompt` to be false",
            ));
        }
        let mut variables = input.chat_template_kwargs.clone();
        if let Some(effort) = &input.reasoning_effort {
            variables.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        Ok(Self {
            messages: input.messages.iter().map(|message| shown(message, calls)).collect(),
            tools: input.tools.clone(),
            variables,
            turn: input.add_generation_prompt.unwrap_or(!continues),
            continues,
        })
    }

    /// Creates a chat of these messages alone.
    pub(super) fn of(messages: &[ChatMessage]) -> Self {
        Self::in_shape(messages, CallShape::default())
    }

    /// Creates a conversation with a call and its result.
    pub(super) fn with_call(calls: CallShape) -> Self {
        let call = ToolCall::new("call00001", "look", r#"{"at":"sea"}"#);
        let mut result = ChatMessage::new("tool", "calm");
        result.tool_call_id = Some("call00001".to_owned());
        result.name = Some("look".to_owned());
        let asked = ChatMessage::new("user", "hello");
        let called = ChatMessage::new("assistant", "").calls(vec![call]);
        Self::in_shape(&[asked, called, result], calls)
    }

    fn in_shape(messages: &[ChatMessage], calls: CallShape) -> Self {
        Self {
            messages: messages.iter().map(|message| shown(message, calls)).collect(),
            tools: Vec::new(),
            variables: Map::new(),
            turn: true,
            continues: false,
        }
    }

    /// Calls `visit` for each text; its second argument is true for texts that the model wrote.
    pub(crate) fn visit(&self, visit: &mut impl FnMut(&str, bool)) {
        for message in &self.messages {
            let own = is_assistant(message);
            for (field, value) in message.as_object().into_iter().flatten() {
                walk(value, &mut |text| visit(text, own && field != "role"));
            }
        }
        let variables = self.variables.values();
        self.tools
            .iter()
            .chain(variables)
            .for_each(|value| walk(value, &mut |text| visit(text, false)));
    }

    /// Replaces each text by the result of `change`; its second argument is true for texts that the
    /// model wrote.
    pub(crate) fn change(&mut self, change: &mut impl FnMut(&str, bool) -> String) {
        for message in &mut self.messages {
            let own = is_assistant(message);
            for (field, value) in message.as_object_mut().into_iter().flatten() {
                rewrite(value, &mut |text| change(text, own && field != "role"));
            }
        }
        let variables = self.variables.values_mut();
        let values = self.tools.iter_mut().chain(variables);
        values.for_each(|value| rewrite(value, &mut |text| change(text, false)));
    }

    /// Cuts a rendered chat after the text of the last message, if that text goes on.
    ///
    /// # Errors
    ///
    /// Returns an error if the template does not show the text.
    pub(super) fn cut(&self, mut rendered: String) -> Result<String> {
        if !self.continues {
            return Ok(rendered);
        }
        let last = self.messages.last().and_then(|message| message.get("content"));
        let text = last.and_then(Value::as_str).unwrap_or_default();
        let begin = text.trim_start();
        let found = Some(begin.trim_end()).filter(|text| !text.is_empty());
        let place = found.and_then(|text| Some((rendered.rfind(text)?, text.len())));
        let Some((at, length)) = place else {
            return Err(Error::bad_input(
                "`continue_final_message` needs a last message whose text the model's chat \
                 template shows",
            ));
        };
        // Most templates trim a text; some keep the spaces at its end.
        let kept = if rendered[at..].starts_with(begin) { begin.len() } else { length };
        rendered.truncate(at + kept);
        Ok(rendered)
    }
}

fn is_assistant(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

/// Returns a message as templates expect it.
fn shown(message: &ChatMessage, shape: CallShape) -> Value {
    let mut value = serde_json::to_value(message).unwrap_or_default();
    if shape.null_content && message.content.is_empty() && !message.tool_calls.is_empty() {
        value["content"] = Value::Null;
    }
    if shape.text_arguments {
        return value;
    }
    let calls = value.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let arguments = call.pointer_mut("/function/arguments");
        let Some(arguments) = arguments else { continue };
        let object = arguments.as_str().map(serde_json::from_str::<Map<String, Value>>);
        if let Some(Ok(object)) = object {
            *arguments = Value::Object(object);
        }
    }
    value
}

/// Returns true for a name that no special token has: letters, digits and underscores alone.
/// Templates find the fields of tools by such names.
fn is_plain(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Calls `visit` for each text in a value, names of fields included.
fn walk(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(values) => values.iter().for_each(|value| walk(value, visit)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if !is_plain(name) {
                    visit(name);
                }
                walk(value, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces each text in a value by the result of `change`, names of fields included.
fn rewrite(value: &mut Value, change: &mut impl FnMut(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(values) => values.iter_mut().for_each(|value| rewrite(value, change)),
        Value::Object(fields) => {
            let renamed = mem::take(fields).into_iter().map(|(name, mut value)| {
                rewrite(&mut value, change);
                (if is_plain(&name) { name } else { change(&name) }, value)
            });
            *fields = renamed.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
