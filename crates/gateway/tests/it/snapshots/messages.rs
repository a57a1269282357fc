//! Anthropic's Messages API.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use super::record::Record;

const PATH: &str = "/v1/messages";

fn ask(script: &str, more: &Value) -> Value {
    let messages = json!([{ "role": "user", "content": script }]);
    let mut body = json!({ "model": "script", "max_tokens": 50, "messages": messages, "seed": 7 });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages() {
    let mut record = Record::new("", "", Limits::default()).await;
    let tools = json!([{ "name": "weather", "description": "Weather", "input_schema": {
        "type": "object", "properties": { "city": { "type": "string" } }
    } }]);
    let call = "Wait.|<tool_call>|{\"name\": \"weather\", |\"arguments\": {\"city\": |\"Oslo\"}}|\
                </tool_call>";
    let cases = [
        ("a plain message", "Once| a| bär", json!({ "system": "Be brief." })),
        ("length", "one| two| three", json!({ "max_tokens": 2 })),
        ("stop", "one| two|END| three", json!({ "stop_sequences": ["END"] })),
        ("refused by a judge", "one|<filter>", json!({})),
        (
            "thinking",
            "<think>|hm|, well|</think>|\n\nYes",
            json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }),
        ),
        ("a call of a tool", call, json!({ "tools": tools })),
        ("a required call", call, json!({ "tools": tools, "tool_choice": { "type": "any" } })),
        ("bad input", "one|<bad>", json!({})),
        ("a failure", "one|<fail>", json!({})),
    ];
    for (title, script, more) in cases {
        record.title(title);
        let mut body = ask(script, &more);
        record.post(PATH, &body).await;
        body["stream"] = true.into();
        record.post(PATH, &body).await;
    }
    record.title("blocks of content");
    let blocks = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Oslo?" }] },
        { "role": "assistant", "content": [
            { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Oslo" } }
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "Rain|.", "is_error": true }
        ] },
    ]);
    let body = json!({ "model": "script", "max_tokens": 50, "messages": blocks, "tools": tools });
    record.post(PATH, &body).await;
    let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    record.post(PATH, &json!({ "model": "script", "max_tokens": 5, "messages": image })).await;
    record.title("tokens");
    let user = json!([{ "role": "user", "content": "bär" }]);
    let count = format!("{PATH}/count_tokens");
    record.post(&count, &json!({ "model": "script", "messages": user })).await;
    record.post(&count, &json!({ "model": "script" })).await;
    record.title("refusals");
    record.post(PATH, &json!({ "model": "none", "max_tokens": 5, "messages": user })).await;
    record.post(PATH, &json!({ "model": "absent", "max_tokens": 5, "messages": user })).await;
    record.post(PATH, &json!({ "model": "script", "messages": user })).await;
    record.get(PATH).await;
    record.send("POST", PATH, "", "{}", &[]).await;
    let key = record.place.key.clone();
    let body = ask("Hi", &json!({})).to_string();
    record.send("POST", PATH, "", &body, &[("x-api-key", &key)]).await;
    record.check("messages");
}
