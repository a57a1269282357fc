//! Chat completions, completions, tokens, embeddings, moderations and decisions.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use super::record::Record;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Merges the fields of `more` into `base`.
fn with(mut base: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        base[name] = value.clone();
    }
    base
}

fn chat(script: &str, more: &Value) -> Value {
    let messages = json!([{ "role": "user", "content": script }]);
    with(json!({ "model": "script", "messages": messages, "seed": 7 }), more)
}

fn completion(script: &str, more: &Value) -> Value {
    with(json!({ "model": "script", "prompt": script, "seed": 7 }), more)
}

fn weather() -> Value {
    let parameters = json!({
        "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"]
    });
    json!([{ "type": "function", "function": {
        "name": "weather", "description": "Weather of a city", "parameters": parameters
    } }])
}

const CALL: &str = "Wait.|<tool_call>|{\"name\": \"weather\", |\"arguments\": {\"city\": |\"Oslo\"}}|\
                    </tool_call>";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_completions() {
    let mut record = Record::new("", "", Limits::default()).await;
    let usage = json!({ "include_usage": true });
    let schema = json!({ "type": "json_schema", "json_schema": {
        "name": "s", "schema": { "type": "object" }, "strict": true
    } });
    let cases = [
        ("a plain reply", "Once| a| bär", json!({})),
        (
            "facts of the caller",
            "Hi",
            json!({ "user": "u", "metadata": { "a": "b" },
            "service_tier": "flex", "store": true }),
        ),
        ("length", "one| two| three", json!({ "max_completion_tokens": 2 })),
        ("stop", "one| two|END| three", json!({ "stop": ["END"] })),
        ("refused by a judge", "one| two|<filter>", json!({})),
        ("two replies", "one| two| three", json!({ "n": 2 })),
        ("logprobs", "one| bär", json!({ "logprobs": true, "top_logprobs": 2 })),
        ("a schema", "{\"a\":| 1}", json!({ "response_format": schema })),
        ("reasoning", "<think>|hm|, well|</think>|\n\nYes", json!({})),
        ("a call of a tool", CALL, json!({ "tools": weather() })),
        ("a required call", CALL, json!({ "tools": weather(), "tool_choice": "required" })),
        ("bad input", "one|<bad>", json!({})),
        ("a failure", "one|<fail>", json!({})),
    ];
    for (title, script, more) in cases {
        record.title(title);
        record.post(CHAT, &chat(script, &more)).await;
        let stream = with(more, &json!({ "stream": true }));
        record.post(CHAT, &chat(script, &stream)).await;
        let counted = with(stream, &json!({ "stream_options": usage }));
        record.post(CHAT, &chat(script, &counted)).await;
    }
    record.title("obfuscation and continuous usage");
    let options = json!({ "include_obfuscation": true, "continuous_usage_stats": true });
    let stream = json!({ "stream": true, "stream_options": options });
    record.post(CHAT, &chat("one| two", &stream)).await;
    record.title("a conversation with a result of a tool");
    let call = json!({ "id": "c1", "type": "function",
                       "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } });
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "Oslo?" }] },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "Rain|." },
    ]);
    let body = json!({ "model": "script", "messages": messages, "tools": weather() });
    record.post(CHAT, &body).await;
    record.check("chat");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions() {
    let mut record = Record::new("", "", Limits::default()).await;
    let cases = [
        ("a plain reply", "Once| a| bär", json!({})),
        ("length", "one| two| three", json!({ "max_tokens": 2 })),
        ("stop", "one| two|END| three", json!({ "stop": "END" })),
        ("refused by a judge", "one|<filter>", json!({})),
        ("two replies", "one| two| three", json!({ "n": 2 })),
        ("logprobs", "one| two", json!({ "logprobs": 2 })),
        ("echo", "a|b", json!({ "echo": true, "logprobs": 1 })),
        ("a regex", "yes", json!({ "structured_outputs": { "choice": ["yes", "no"] } })),
        ("bad input", "<bad>", json!({})),
        ("a failure", "<fail>", json!({})),
    ];
    for (title, script, more) in cases {
        record.title(title);
        record.post(COMPLETIONS, &completion(script, &more)).await;
        let options = json!({ "include_usage": true });
        let stream = with(more, &json!({ "stream": true, "stream_options": options }));
        record.post(COMPLETIONS, &completion(script, &stream)).await;
    }
    record.title("prompts in a list, token ids, obfuscation");
    let two = json!({ "model": "script", "prompt": ["one| two", "three"], "seed": 7 });
    record.post(COMPLETIONS, &two).await;
    let ids = json!({ "model": "script", "prompt": [97, 124, 98], "seed": 7 });
    record.post(COMPLETIONS, &ids).await;
    let options = json!({ "include_obfuscation": true });
    let stream = json!({ "stream": true, "stream_options": options });
    record.post(COMPLETIONS, &completion("one| two", &stream)).await;
    record.check("completions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_tasks() {
    let mut record = Record::new("", "", Limits::default()).await;
    let user = json!([{ "role": "user", "content": "bär" }]);
    record.title("tokens");
    for prefix in ["", "/v1"] {
        let (tokenize, detokenize) = (format!("{prefix}/tokenize"), format!("{prefix}/detokenize"));
        record.post(&tokenize, &json!({ "model": "script", "prompt": "bär" })).await;
        let chat = json!({ "model": "script", "messages": user, "return_token_strs": true });
        record.post(&tokenize, &chat).await;
        record.post(&detokenize, &json!({ "model": "script", "tokens": [98, 228] })).await;
        record.post(&detokenize, &json!({ "model": "script", "tokens": [] })).await;
    }
    record.title("embeddings");
    for more in [
        json!({ "input": "a bear" }),
        json!({ "input": ["a bear", "honey"], "dimensions": 2 }),
        json!({ "input": [[1, 2, 3], [4]] }),
        json!({ "input": "a bear", "encoding_format": "base64" }),
    ] {
        record.post("/v1/embeddings", &with(json!({ "model": "vectors" }), &more)).await;
    }
    record.title("moderations");
    for body in [
        json!({ "model": "judge", "input": ["hat", "hate", "xyz"] }),
        json!({ "input": [{ "type": "text", "text": "ha" }, { "type": "text", "text": "te" }] }),
        json!({ "input": "hate", "model": "omni-moderation-latest" }),
        json!({ "input": "no judge" }),
        json!({ "input": ["a", ""] }),
    ] {
        record.post("/v1/moderations", &body).await;
    }
    record.title("decisions");
    let questions = json!([
        { "type": "predicate", "instructions": "abcd" },
        { "type": "choice", "name": "c", "instructions": "Which?",
          "choices": [{ "value": "ab" }, { "value": true, "description": "yes" }] },
        { "type": "score", "name": "s", "instructions": "Which?",
          "levels": [{ "label": "xy" }, { "label": "ab" }] },
        { "type": "score", "instructions": "Which?", "levels": [{ "label": "x" }, { "label": "y" }] },
    ]);
    for input in [json!("ab"), json!([{ "role": "user", "content": "ab" }])] {
        let body = json!({ "model": "judge", "input": input, "questions": questions });
        record.post("/v1/decisions", &body).await;
    }
    record.check("other-tasks");
}
