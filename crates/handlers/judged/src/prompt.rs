//! Texts of a request that a model reads.

use std::borrow::Cow;

use nsbridge_handler::{Error, Result, TextInput};
use serde_json::Value;

/// Returns the texts that the handler would give to its model.
///
/// # Errors
///
/// Returns an error if the prompt is given as token ids or has images, which no judge can read.
pub(crate) fn texts(input: &TextInput) -> Result<Vec<Cow<'_, str>>> {
    if !input.prompt_token_ids.is_empty() {
        return Err(Error::bad_input(
            "`prompt_token_ids` cannot be judged, and this worker judges prompts: give `prompt` or \
             `messages`",
        ));
    }
    let mut texts: Vec<Cow<'_, str>> = input.prompt.iter().map(Cow::from).collect();
    for (index, message) in input.messages.iter().enumerate() {
        if message.content.has_images() {
            return Err(Error::bad_input(format!(
                "`messages[{index}].content` has an image, which cannot be judged, and this worker judges \
                 prompts: leave it out"
            )));
        }
        texts.extend([Cow::from(message.role.as_str()), Cow::from(&*message.content)]);
        let more = [&message.name, &message.reasoning_content, &message.tool_call_id];
        texts.extend(more.into_iter().flatten().map(Cow::from));
        for call in &message.tool_calls {
            let function = &call.function;
            texts.extend([Cow::from(&function.name), Cow::from(&function.arguments)]);
            texts.push(Cow::from(&call.id));
            // Templates show the parsed arguments, in which no character is escaped.
            if let Ok(parsed) = serde_json::from_str(&function.arguments) {
                strings(&parsed, &mut texts);
            }
        }
    }
    input.tools.iter().for_each(|tool| strings(tool, &mut texts));
    for (name, value) in &input.chat_template_kwargs {
        texts.push(name.into());
        strings(value, &mut texts);
    }
    texts.extend(input.reasoning_effort.as_ref().map(Cow::from));
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

/// Checks that a reply has no text beside that of its pieces, which is what the layer judges.
///
/// # Errors
///
/// Returns an error that names the field of the request to leave out.
pub(crate) fn check_fields(input: &TextInput) -> Result<()> {
    let asks = |field: Option<u32>| field.is_some_and(|number| number > 0);
    let field = if asks(input.top_logprobs) {
        "`top_logprobs` above 0 names"
    } else if asks(input.prompt_logprobs) {
        "`prompt_logprobs` above 0 names"
    } else if input.return_token_texts && !input.stop.is_empty() {
        // The tokens of a stop sequence have texts, and are in no piece's text.
        "`logprobs` and `return_token_texts` with `stop` name"
    } else {
        return Ok(());
    };
    Err(Error::bad_input(format!(
        "{field} tokens that are not in the reply, and this worker judges replies: leave it out"
    )))
}

/// Adds all strings and numbers of a JSON value, names of fields included.
fn strings(value: &Value, texts: &mut Vec<Cow<'_, str>>) {
    match value {
        Value::String(text) => texts.push(text.clone().into()),
        Value::Number(number) => texts.push(number.to_string().into()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, texts)),
        Value::Object(fields) => {
            for (name, value) in fields {
                texts.push(name.clone().into());
                strings(value, texts);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{ChatMessage, Image, TextInput};
    use serde_json::json;

    use super::{check_fields, texts};

    #[test]
    fn all_texts_that_a_template_may_show_are_judged() {
        let input: TextInput = serde_json::from_value(json!({
            "messages": [
                { "role": "user", "content": "a", "name": "b" },
                { "role": "assistant", "content": "", "reasoning_content": "c", "tool_calls": [
                    { "id": "k", "function": { "name": "d", "arguments": "{\"x\": \"\\u0065\"}" } }
                ] },
            ],
            "tools": [{ "type": "function", "function": { "name": "f", "description": "g" } }],
            "chat_template_kwargs": { "h": ["i", 4111] }, "reasoning_effort": "j"
        }))
        .unwrap();
        let found = texts(&input).unwrap();
        for text in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "4111"] {
            assert!(found.iter().any(|found| found == text), "{text}");
        }
        assert_eq!(texts(&TextInput::prompt("a")).unwrap(), ["a"]);
        assert!(texts(&TextInput::token_ids([1])).is_err());
        let mut chat = TextInput::chat([ChatMessage::new("user", "a")]);
        assert!(texts(&chat).is_ok());
        chat.messages[0].content.push_image(Image::new("data:image/png;base64,"));
        assert!(texts(&chat).is_err());
    }

    #[test]
    fn requests_for_other_tokens_than_those_of_the_reply_are_refused() {
        let plain = TextInput { top_logprobs: Some(0), ..TextInput::prompt("a") };
        let stop = vec!["b".to_owned()];
        let refused = [
            TextInput { top_logprobs: Some(1), ..plain.clone() },
            TextInput { prompt_logprobs: Some(1), ..plain.clone() },
            TextInput { return_token_texts: true, stop: stop.clone(), ..plain.clone() },
        ];
        for input in &refused {
            let error = check_fields(input).unwrap_err().to_string();
            assert!(error.contains("leave it out"), "{error}");
        }
        assert!(check_fields(&TextInput { stop, ..plain.clone() }).is_ok());
        assert!(check_fields(&TextInput { return_token_texts: true, ..plain }).is_ok());
    }
}
