//! Messages of a chat, as clients send and send back them.

use nsbridge_client::ChatMessage;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::read;

/// Fields of a message of the assistant that are read. All others tell about the reply that the message
/// was, in the words of the client or server that added them.
const ASSISTANT_FIELDS: [&str; 5] = ["content", "name", "reasoning_content", "role", "tool_calls"];

/// Reads messages. `developer` is the role that OpenAI's newer models have for `system`.
///
/// # Errors
///
/// Returns an error that names the message.
pub(crate) fn messages(values: Vec<Value>) -> Result<Vec<ChatMessage>> {
    if values.is_empty() {
        return Err(ApiError::field("messages", "`messages` must have at least one message"));
    }
    let message = |(index, mut value): (usize, Value)| {
        let at = format!("messages[{index}]");
        if let Some(fields) = value.as_object_mut() {
            tidy(&at, fields)?;
        }
        read(&at, value)
    };
    values.into_iter().enumerate().map(message).collect()
}

/// Returns true if the last message is the beginning of the reply, as its field `prefix` says.
pub(super) fn is_begun(values: &[Value]) -> bool {
    values.last().is_some_and(|last| last["role"] == "assistant" && last["prefix"] == true)
}

/// Drops the fields of a message that clients send back and no template reads.
fn tidy(at: &str, fields: &mut Map<String, Value>) -> Result<()> {
    fields.retain(|name, value| !value.is_null() && name != "cache_control");
    if fields.get("role").is_some_and(|role| role == "developer") {
        fields.insert("role".into(), "system".into());
    }
    for name in ["audio", "function_call", "name", "tool_calls"] {
        if fields.get(name).and_then(Value::as_array).is_some_and(Vec::is_empty) {
            fields.remove(name);
        }
    }
    for name in ["audio", "function_call"] {
        if fields.contains_key(name) {
            let message = format!("`{name}` of a message is not supported");
            return Err(ApiError::field(&format!("{at}.{name}"), message));
        }
    }
    // vLLM's name of the field.
    if let Some(reasoning) = fields.remove("reasoning") {
        fields.entry("reasoning_content").or_insert(reasoning);
    }
    if fields.get("role").is_some_and(|role| role == "assistant") {
        tidy_reply(fields);
    } else {
        fields.remove("refusal");
        fields.remove("annotations");
    }
    Ok(())
}

/// Drops what a message of the assistant tells about the reply that it was.
fn tidy_reply(fields: &mut Map<String, Value>) {
    if let Some(Value::String(refusal)) = fields.remove("refusal") {
        fields.entry("content").or_insert(refusal.into());
    }
    fields.retain(|name, _| ASSISTANT_FIELDS.contains(&&**name));
    if fields.get("reasoning_content").is_some_and(|text| !text.is_string()) {
        fields.remove("reasoning_content");
    }
    if let Some(Value::Array(parts)) = fields.get_mut("content") {
        parts.retain(|part| {
            !matches!(part["type"].as_str(), Some("reasoning" | "redacted_thinking" | "thinking"))
        });
        for part in parts {
            if part["type"] == "refusal" {
                *part = json!({ "type": "text", "text": part["refusal"] });
            }
        }
    }
    if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
        calls.iter_mut().filter_map(Value::as_object_mut).for_each(tidy_call);
    }
}

/// Keeps of a call what the model wrote.
fn tidy_call(call: &mut Map<String, Value>) {
    call.retain(|name, value| !value.is_null() && matches!(&**name, "function" | "id" | "type"));
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { return };
    function.retain(|name, _| matches!(&**name, "arguments" | "name"));
    // Some clients keep the arguments as an object.
    if let Some(arguments) = function.get_mut("arguments").filter(|it| it.is_object()) {
        *arguments = arguments.to_string().into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{is_begun, messages};
    use crate::error::Result;

    fn read(given: Value) -> Result<Value> {
        Ok(serde_json::to_value(messages(serde_json::from_value(given).unwrap())?).unwrap())
    }

    #[track_caller]
    fn check(given: Value, expected: &Value) {
        let read = read(given).map_err(|error| error.message().to_owned());
        assert_eq!(read.as_ref(), Ok(expected));
    }

    #[test]
    fn a_reply_is_read_as_the_clients_have_it() {
        let call = json!({
            "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" }
        });
        let expected = json!([{ "role": "assistant", "content": "a", "tool_calls": [call] }]);
        // OpenAI's `parse`, sums of streams, LiteLLM, OpenRouter, Gemini's layer.
        for (own, of_call, of_function) in [
            (
                json!({ "parsed": { "a": 1 }, "refusal": null }),
                json!({}),
                json!({ "parsed_arguments": {} }),
            ),
            (json!({ "audio": null, "annotations": [] }), json!({ "index": 0 }), json!({})),
            (
                json!({ "provider_specific_fields": {}, "thinking_blocks": [{ "type": "thinking" }] }),
                json!({ "provider_specific_fields": null }),
                json!({}),
            ),
            (json!({ "reasoning_details": [{}], "id": "m", "images": [] }), json!({}), json!({})),
            (
                json!({ "cache_control": { "type": "ephemeral" } }),
                json!({ "extra_content": {} }),
                json!({}),
            ),
        ] {
            let mut message = json!({ "role": "assistant", "content": "a", "tool_calls": [call] });
            let parts =
                [("", own), ("/tool_calls/0", of_call), ("/tool_calls/0/function", of_function)];
            for (at, fields) in parts {
                let of = message.pointer_mut(at).unwrap().as_object_mut().unwrap();
                of.extend(fields.as_object().unwrap().clone());
            }
            check(json!([message]), &expected);
        }
    }

    #[test]
    fn a_refusal_is_a_text_and_reasoning_is_no_part_of_it() {
        let text = json!([{ "role": "assistant", "content": "no" }]);
        check(json!([{ "role": "assistant", "content": null, "refusal": "no" }]), &text);
        let parts = json!([{ "type": "thinking", "thinking": "hm" }, { "type": "refusal", "refusal": "no" }]);
        check(json!([{ "role": "assistant", "content": parts }]), &text);
        let object = json!({ "function": { "name": "f", "arguments": { "b": 1, "a": 2 } } });
        let read = read(json!([{ "role": "assistant", "tool_calls": [object] }])).unwrap();
        assert_eq!(read[0]["tool_calls"][0]["function"]["arguments"], r#"{"b":1,"a":2}"#);
    }

    #[test]
    fn a_field_of_another_role_is_refused_by_its_name() {
        for role in ["user", "system", "tool"] {
            let odd = json!([{ "role": role, "content": "a", "typo": 1 }]);
            assert!(read(odd).unwrap_err().message().contains("`typo`"), "{role}");
            let dropped =
                json!([{ "role": role, "content": "a", "typo": null, "cache_control": {} }]);
            check(dropped, &json!([{ "role": role, "content": "a" }]));
        }
        let call = json!([{ "role": "assistant", "function_call": { "name": "f" } }]);
        let error = read(call).unwrap_err();
        assert_eq!(error.json()["error"]["param"], "messages[0].function_call");
    }

    #[test]
    fn a_prefix_is_the_beginning_of_the_reply() {
        let of = |last: Value| is_begun(&[json!({ "role": "user" }), last]);
        assert!(of(json!({ "role": "assistant", "prefix": true })));
        assert!(!of(json!({ "role": "assistant", "prefix": false })));
        assert!(!of(json!({ "role": "user", "prefix": true })) && !is_begun(&[]));
    }
}
