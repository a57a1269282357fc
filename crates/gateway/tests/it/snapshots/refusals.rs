//! Refusals: identity, bodies, fields, limits, models, paths.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use super::record::Record;
use super::script::open_gate;
use crate::http::{Connection, request};

/// Script of a reply in the background that is not kept.
const NOT_KEPT: &str = "<gate>|a";

/// Endpoints with a body that is valid but for its model, and a model for it.
fn endpoints() -> Vec<(&'static str, Value)> {
    let user = json!([{ "role": "user", "content": "a" }]);
    let question = json!([{ "type": "predicate", "instructions": "a" }]);
    vec![
        ("/v1/chat/completions", json!({ "model": "script", "messages": user })),
        ("/v1/completions", json!({ "model": "script", "prompt": "a" })),
        ("/v1/responses", json!({ "model": "script", "input": "a", "seed": 7 })),
        ("/v1/responses/input_tokens", json!({ "model": "script", "input": "a" })),
        ("/v1/messages", json!({ "model": "script", "messages": user, "max_tokens": 5 })),
        ("/v1/messages/count_tokens", json!({ "model": "script", "messages": user })),
        ("/v1/embeddings", json!({ "model": "vectors", "input": "a" })),
        ("/v1/moderations", json!({ "model": "judge", "input": "a" })),
        ("/v1/decisions", json!({ "model": "judge", "input": "a", "questions": question })),
        ("/tokenize", json!({ "model": "script", "prompt": "a" })),
        ("/detokenize", json!({ "model": "script", "tokens": [97] })),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies() {
    let mut record = Record::new("max_body = 20000", "", Limits::default()).await;
    let key = record.place.key.clone();
    for (path, body) in endpoints() {
        record.title(path);
        for text in ["", "{", "[]", "{}", "{\"model\": 1}", "\"\\ud800\""] {
            record.send("POST", path, &key, text, &[]).await;
        }
        let with = |name: &str, value: Value| {
            let mut body = body.clone();
            body[name] = value;
            body
        };
        let main = body.as_object().unwrap().keys().nth(1).unwrap().clone();
        for body in [
            with("no_such_field", json!(1)),
            with("model", json!("none")),
            with("model", json!("absent")),
            with("model", json!(if body["model"] == "script" { "judge" } else { "script" })),
            with(&main, json!(7)),
            with(&main, json!([])),
            with(&main, json!(null)),
            with("stream", json!("yes")),
            with("seed", json!("seven")),
        ] {
            record.post(path, &body).await;
        }
        record.get(path).await;
        let large = with("user", json!("x".repeat(20_000))).to_string();
        record.send("POST", path, &key, &large, &[]).await;
    }
    record.check("refusals-of-bodies");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields() {
    let mut record = Record::new("", "", Limits::default()).await;
    let cases = [
        (
            "/v1/chat/completions",
            json!([
                { "n": 0 }, { "n": 129 }, { "top_logprobs": 2 }, { "top_logprobs": 21, "logprobs": true },
                { "stream_options": { "include_usage": true } }, { "stop": 1 },
                { "logit_bias": { "a": 1 } }, { "temperature": "hot" }, { "modalities": ["audio"] },
                { "response_format": { "type": "xml" } }, { "tools": [{ "type": "other" }] },
                { "tool_choice": "required" }, { "max_tokens": 0 }, { "max_tokens": -1 },
                { "max_completion_tokens": 100_000 }, { "messages": [{ "role": "robot", "content": "a" }] },
                { "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] },
                { "structured_outputs": { "grammar": "x" } }, { "moderation": {} },
                { "service_tier": "gold" }, { "metadata": { "a": 1 } }, { "reasoning_effort": 1 },
            ]),
        ),
        (
            "/v1/completions",
            json!([
                { "n": 0 }, { "logprobs": 21 }, { "best_of": 2 }, { "suffix": "x" }, { "prompt": [""] },
                { "prompt": [-1] }, { "max_tokens": -1 }, { "echo": "yes" },
                { "structured_outputs": { "choice": [] } }, { "prompt_logprobs": 30 },
            ]),
        ),
        (
            "/v1/responses",
            json!([
                { "input": [{ "type": "image" }] }, { "previous_response_id": "resp_1" },
                { "conversation": "c" }, { "store": false, "background": true, "input": NOT_KEPT }, { "store": false },
                { "tools": [{ "type": "web_search" }] }, { "truncation": "auto" }, { "include": ["x"] },
                { "text": { "format": { "type": "xml" } } }, { "max_output_tokens": 0 },
                { "tool_choice": { "type": "function", "name": "f" } }, { "prompt": { "id": "p" } },
            ]),
        ),
        (
            "/v1/messages",
            json!([
                { "max_tokens": 0 }, { "messages": [{ "role": "system", "content": "a" }] },
                { "tools": [{ "type": "bash_20250124", "name": "bash" }] }, { "stop_sequences": "x" },
                { "thinking": { "type": "odd" } }, { "tool_choice": { "type": "tool", "name": "f" } },
            ]),
        ),
        (
            "/v1/embeddings",
            json!([
                { "dimensions": 0 }, { "encoding_format": "hex" }, { "input": [[]] }, { "input": [""] },
            ]),
        ),
        (
            "/v1/moderations",
            json!([
                { "input": [{ "type": "image_url", "image_url": { "url": "data:," } }] },
                { "stream": true },
            ]),
        ),
        (
            "/v1/decisions",
            json!([
                { "questions": [] }, { "questions": [{ "type": "rank" }] }, { "input": "" },
            ]),
        ),
        (
            "/tokenize",
            json!([
                { "add_special_tokens": false }, { "truncate": 1 }, { "add_generation_prompt": true },
            ]),
        ),
        ("/detokenize", json!([{ "tokens": [-1] }])),
    ];
    for (path, cases) in cases {
        record.title(path);
        let (_, valid) = endpoints().into_iter().find(|(one, _)| *one == path).unwrap();
        for case in cases.as_array().unwrap() {
            let mut body = valid.clone();
            for (name, value) in case.as_object().unwrap() {
                body[name] = value.clone();
            }
            record.post(path, &body).await;
        }
    }
    open_gate(NOT_KEPT);
    record.check("refusals-of-fields");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_and_keys() {
    let mut record = Record::new("", "", Limits::default()).await;
    let (key, disabled) = (record.place.key.clone(), record.place.disabled.clone());
    record.title("paths");
    for path in ["/none", "/v1", "/v1/none", "/v1/models/%ff", "/v1/sealed", "/page/none", "/?a=b"]
    {
        for method in ["GET", "POST", "DELETE"] {
            record.send(method, path, &key, "", &[]).await;
        }
    }
    record.title("parts that need a store");
    for path in ["/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches", "/v1/batches/x"]
    {
        record.get(path).await;
    }
    record.post("/v1/files", &json!({})).await;
    record.post("/v1/batches", &json!({})).await;
    record.post("/v1/batches/x/cancel", &json!({})).await;
    record.title("keys");
    for path in ["/v1/models", "/v1/responses/x", "/v1/none", "/v1/sealed", "/v1/messages/x"] {
        record.send("GET", path, "", "", &[]).await;
        record.send("GET", path, "nsk_00000000_wrong", "", &[]).await;
        record.send("GET", path, "wrong", "", &[]).await;
        record.send("GET", path, &disabled, "", &[]).await;
    }
    record.send("GET", "/v1/models", "", "", &[("authorization", "Basic YTpi")]).await;
    record.send("GET", "/v1/models", "", "", &[("x-api-key", &key)]).await;
    record.title("the id of a request that has none, or an odd one");
    let none = record.place.raw(&request("GET", "/livez", "", "", &[])).await;
    record.note("GET /livez", &none);
    let odd = request("GET", "/livez", "", "", &[("x-request-id", "a b")]);
    let odd = record.place.raw(&odd).await;
    record.note("GET /livez", &odd);
    record.check("refusals-of-paths");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_a_key() {
    let limits = Limits { concurrent: Some(1), ..Limits::default() };
    let mut record = Record::new("", "", limits).await;
    let (path, other) = ("/v1/completions", record.place.other.clone());
    let script = "one|<gate>|a reply that holds the only place of its key";
    let held = json!({ "model": "script", "prompt": script, "stream": true }).to_string();
    let mut first = Connection::to(record.place.address).await;
    first.send(&request("POST", path, &other, &held, &[("x-request-id", "snapshot")])).await;
    first.until("\"text\":\"one\"").await;
    for (path, body) in endpoints() {
        record.send("POST", path, &other, &body.to_string(), &[]).await;
    }
    open_gate(script);
    record.note(&format!("POST {path} {held}"), &first.rest().await);
    record.check("refusals-by-places");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_of_a_key() {
    let (requests, tokens) = (Some(3), Some(600));
    let limits =
        Limits { requests_per_minute: requests, tokens_per_minute: tokens, ..Limits::default() };
    let mut record = Record::new("", "", limits).await;
    let (path, other) = ("/v1/completions", record.place.other.clone());
    for most in [5, 5000, 5, 5, 5] {
        let body = json!({ "model": "script", "prompt": "a", "max_tokens": most }).to_string();
        record.send("POST", path, &other, &body, &[]).await;
    }
    for (path, body) in endpoints() {
        record.send("POST", path, &other, &body.to_string(), &[]).await;
    }
    record.check("refusals-by-rates");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_worker_in_time() {
    let mut record = Record::new("timeout_s = 3", "", Limits::default()).await;
    let _queues = record.place.declare_absent().await;
    for (path, body) in [
        ("/v1/completions", json!({ "model": "absent", "prompt": "a" })),
        ("/v1/completions", json!({ "model": "absent", "prompt": "a", "stream": true })),
        ("/v1/responses", json!({ "model": "absent", "input": "a" })),
    ] {
        record.post(path, &body).await;
    }
    record.check("refusals-by-time");
}
