//! Replies that a worker's judge has cut off, in each interface.

use serde_json::{Value, json};

use crate::handler::said;
use crate::place::Place;

/// Request of three words, which the worker cuts off there.
fn ask(field: &str, most: &str, stream: bool) -> Value {
    let prompt = "0 a refused text";
    let mut ask = json!({ "model": "words", most: 3, "seed": 7, "stream": stream });
    ask[field] = match field {
        "messages" => json!([{ "role": "user", "content": prompt }]),
        _ => prompt.into(),
    };
    ask
}

/// Returns the finish reasons of a stream that ends with `[DONE]`.
fn ends(body: &str) -> Vec<String> {
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter(|event| *event != "[DONE]").map(serde_json::from_str::<Value>);
    let reasons = events.map(|event| event.unwrap()["choices"][0]["finish_reason"].clone());
    reasons.filter_map(|reason| reason.as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_reply_is_told_in_each_interface() {
    let (place, text) = (Place::new().await, said(7, 3));

    let chat = |stream| ask("messages", "max_tokens", stream);
    let whole = place.post("/v1/chat/completions", &chat(false), &[]).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("content_filter"), &json!(text))
    );
    let stream = place.post("/v1/chat/completions", &chat(true), &[]).await;
    assert_eq!(ends(&stream.body), ["content_filter"]);

    let completion = |stream| ask("prompt", "max_tokens", stream);
    let whole = place.post("/v1/completions", &completion(false), &[]).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["text"]),
        (&json!("content_filter"), &json!(text))
    );
    let stream = place.post("/v1/completions", &completion(true), &[]).await;
    assert_eq!(ends(&stream.body), ["content_filter"]);

    let response = |stream| ask("input", "max_output_tokens", stream);
    let whole = place.post("/v1/responses", &response(false), &[]).await.json();
    let check = |response: &Value| {
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"], json!({ "reason": "content_filter" }));
        assert_eq!(response["output"][0]["content"][0]["text"], text);
    };
    check(&whole);
    let events = place.post("/v1/responses", &response(true), &[]).await.events();
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    check(&last["response"]);
}
