//! Responses: whole, streamed, in the background, and after a restart of the gateway.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use super::record::{LOCAL, Record, SHARED};
use super::script::open_gate;
use crate::http::{Connection, request};

const PATH: &str = "/v1/responses";

fn ask(script: &str, more: &Value) -> Value {
    let mut body = json!({ "model": "script", "input": script, "seed": 7 });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn path_of(response: &Value) -> String {
    format!("{PATH}/{}", response["id"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses() {
    let mut record = Record::new("", "", Limits::default()).await;
    let tools = json!([{ "type": "function", "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "type": "string" } }
    } }]);
    let call = "Wait.|<tool_call>|{\"name\": \"weather\", |\"arguments\": {\"city\": |\"Oslo\"}}|\
                </tool_call>";
    let format = json!({ "format": {
        "type": "json_schema", "name": "s", "schema": { "type": "object" }, "strict": true
    } });
    let cases = [
        ("a plain response", "Once| a| bär", json!({})),
        (
            "facts of the caller",
            "Hi",
            json!({ "instructions": "Be brief.", "user": "u",
            "metadata": { "a": "b" }, "service_tier": "flex", "temperature": 0.5, "top_p": 0.9 }),
        ),
        ("length", "one| two| three", json!({ "max_output_tokens": 2 })),
        ("refused by a judge", "one|<filter>", json!({})),
        (
            "logprobs",
            "one| two",
            json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 }),
        ),
        ("a schema", "{\"a\":| 1}", json!({ "text": format })),
        ("reasoning", "<think>|hm|, well|</think>|\n\nYes", json!({})),
        ("a call of a tool", call, json!({ "tools": tools })),
        ("a required call", call, json!({ "tools": tools, "tool_choice": "required" })),
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

    record.title("a kept response");
    let items = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "Oslo?" }] },
        { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "Rain" },
        { "role": "user", "content": "And| now|?" },
    ]);
    let body = json!({ "model": "script", "input": items, "tools": tools, "seed": 7 });
    let first = record.post(PATH, &body).await.json();
    let path = path_of(&first);
    let id = first["id"].clone();
    record.get(&path).await;
    record.get(&format!("{path}/input_items")).await;
    record.get(&format!("{path}?stream=true")).await;
    record.get(&format!("{path}?stream=true&starting_after=3")).await;
    record.get(&format!("{path}?stream=true&starting_after=3&include_obfuscation=true")).await;
    record.get(&format!("{path}?stream=true&starting_after=9999")).await;
    record.get(&format!("{path}?stream=maybe")).await;
    record.post(&format!("{path}/cancel"), &json!({})).await;
    let other = record.place.other.clone();
    record.send("GET", &path, &other, "", &[]).await;
    let next = ask("Go| on", &json!({ "previous_response_id": id }));
    record.post(PATH, &next).await;
    record.post("/v1/responses/input_tokens", &ask("bär", &json!({}))).await;
    record.post("/v1/responses/input_tokens", &next).await;
    record.post("/v1/responses/compact", &json!({ "model": "script" })).await;
    let key = record.place.key.clone();
    record.send("DELETE", &path, &key, "", &[]).await;
    for gone in [path.clone(), format!("{path}/input_items"), format!("{PATH}/none")] {
        record.get(&gone).await;
        record.send("DELETE", &gone, &key, "", &[]).await;
    }
    record.post(&format!("{path}/cancel"), &json!({})).await;
    record.post(PATH, &next).await;

    record.title("retries");
    let (body, key_of) = (ask("a| key", &json!({})).to_string(), ("idempotency-key", "k-7"));
    record.send("POST", PATH, &key, &body, &[key_of]).await;
    record.send("POST", PATH, &key, &body, &[key_of]).await;
    let another = ask("another", &json!({})).to_string();
    record.send("POST", PATH, &key, &another, &[key_of]).await;
    let retry = ("x-stainless-retry-count", "1");
    record.send("POST", PATH, &key, &another, &[]).await;
    record.send("POST", PATH, &key, &another, &[retry]).await;
    record.check("responses");
}

/// Records a response in the background before its first piece and after its end, and returns its path.
async fn in_background(record: &mut Record, script: &str, status: &str) -> String {
    record.title(&format!("in the background: {status}"));
    let made = record.post(PATH, &ask(script, &json!({ "background": true }))).await.json();
    let path = path_of(&made);
    record.get(&path).await;
    open_gate(script);
    record.until(&path, status).await;
    record.get(&path).await;
    path
}

/// Records a response in the background that is canceled after its second piece.
async fn canceled(record: &mut Record, script: &str) -> String {
    record.title("in the background: cancelled");
    let made = record.post(PATH, &ask(script, &json!({ "background": true }))).await.json();
    let path = path_of(&made);
    let mut stream = Connection::to(record.place.address).await;
    let key = record.place.key.clone();
    stream.send(&request("GET", &format!("{path}?stream=true"), &key, "", &[])).await;
    open_gate(script);
    stream.until("\"delta\":\" two\"").await;
    record.post(&format!("{path}/cancel"), &json!({})).await;
    record.get(&path).await;
    record.post(&format!("{path}/cancel"), &json!({})).await;
    let streamed = stream.rest().await;
    record.note(&format!("GET {path}?stream=true, begun before"), &streamed);
    path
}

async fn kept(name: &str, store: &str) {
    let mut record = Record::new("", store, Limits::default()).await;
    let paths = [
        in_background(&mut record, &format!("<gate>|one| {name}"), "completed").await,
        in_background(&mut record, &format!("<gate>|one| {name}|<filter>"), "incomplete").await,
        in_background(&mut record, &format!("<gate>|{name}|<bad>"), "failed").await,
        in_background(&mut record, &format!("<gate>|{name}|<fail>"), "failed").await,
        canceled(&mut record, &format!("<gate>|one| two|<wait>|{name}")).await,
    ];
    record.title("streamed in the background");
    let body = ask("one| two", &json!({ "background": true, "stream": true }));
    record.post(PATH, &body).await;
    if !store.is_empty() {
        record.title("after a restart");
        record.place.restart().await;
    }
    for path in &paths {
        record.get(path).await;
        record.get(&format!("{path}?stream=true&starting_after=1")).await;
        record.get(&format!("{path}/input_items")).await;
    }
    let id = paths[0].rsplit('/').next().unwrap();
    record.post(PATH, &ask("Go| on", &json!({ "previous_response_id": id }))).await;
    let failed = paths[2].rsplit('/').next().unwrap();
    record.post(PATH, &ask("Go| on", &json!({ "previous_response_id": failed }))).await;
    record.title("deleted");
    let key = record.place.key.clone();
    for path in &paths {
        record.send("DELETE", path, &key, "", &[]).await;
        record.get(path).await;
    }
    record.check(name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_in_memory() {
    kept("kept-in-memory", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_a_store() {
    kept("kept-in-store", LOCAL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_a_shared_store() {
    kept("kept-in-shared-store", SHARED).await;
}
