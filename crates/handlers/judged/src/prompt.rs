//! Texts of a request that a model reads.

use nsbridge_handler::{Error, Result, TextInput};
use serde_json::Value;

/// Returns the texts that the handler would give to its model.
///
/// # Errors
///
/// Returns an error if the prompt is given as token ids, which no judge can read.
pub(crate) fn texts(input: &TextInput) -> Result<Vec<&str>> {
    if !input.prompt_token_ids.is_empty() {
        return Err(Error::bad_input(
            "`prompt_token_ids` cannot be judged, and this worker judges prompts: give `prompt` or \
             `messages`",
        ));
    }
    let mut texts: Vec<&str> = input.prompt.iter().map(String::as_str).collect();
    for message in &input.messages {
        texts.extend([message.role.as_str(), &message.content]);
        texts.extend(message.name.as_deref());
        texts.extend(message.reasoning_content.as_deref());
        for call in &message.tool_calls {
            texts.extend([call.function.name.as_str(), &call.function.arguments]);
        }
    }
    input.tools.iter().for_each(|tool| strings(tool, &mut texts));
    for (name, value) in &input.chat_template_kwargs {
        texts.push(name);
        strings(value, &mut texts);
    }
    texts.extend(input.reasoning_effort.as_deref());
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

/// Adds all strings of a JSON value, names of fields included.
fn strings<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, texts)),
        Value::Object(fields) => {
            for (name, value) in fields {
                texts.push(name);
                strings(value, texts);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::TextInput;
    use serde_json::json;

    use super::texts;

    #[test]
    fn all_texts_that_a_template_may_show_are_judged() {
        let input: TextInput = serde_json::from_value(json!({
            "messages": [
                { "role": "user", "content": "a", "name": "b" },
                { "role": "assistant", "content": "", "reasoning_content": "c", "tool_calls": [
                    { "function": { "name": "d", "arguments": "{\"x\": \"e\"}" } }
                ] },
            ],
            "tools": [{ "type": "function", "function": { "name": "f", "description": "g" } }],
            "chat_template_kwargs": { "h": ["i"] }, "reasoning_effort": "j"
        }))
        .unwrap();
        let found = texts(&input).unwrap();
        for text in ["a", "b", "c", "d", "{\"x\": \"e\"}", "f", "g", "h", "i", "j"] {
            assert!(found.contains(&text), "{text}");
        }
        assert_eq!(texts(&TextInput::prompt("a")).unwrap(), ["a"]);
        assert!(texts(&TextInput::token_ids([1])).is_err());
    }
}
