//! Replicas that share a store: replies that another replica continues, joins and cancels.

use std::time::Duration;

use serde_json::{Value, json};

use crate::handler::runs;
use crate::http::Answer;
use crate::place::{Place, within};

/// Time within which a replica obeys the cancel of another one.
const SOON: Duration = Duration::from_secs(10);

fn ask(prompt: &str, stream: bool, background: bool) -> Value {
    json!({ "model": "words", "input": prompt, "max_output_tokens": 60, "stream": stream,
            "background": background })
}

fn id_of(events: &[Value]) -> &str {
    events[0]["response"]["id"].as_str().unwrap()
}

/// Reads the rest of a stream from another replica, and checks that all of it is that of one reply.
async fn check_goes_on(begun: &[Value], replica: &Place) -> Answer {
    let path = format!("/v1/responses/{}?stream=true", id_of(begun));
    let last = begun.len() - 1;
    let rest = replica.get(&format!("{path}&starting_after={last}")).await;
    assert_eq!(rest.status, 200, "{}", rest.body);
    let all: Vec<Value> = begun.iter().cloned().chain(rest.events()).collect();
    for (number, event) in all.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!(all.last().unwrap()["type"], "response.incomplete", "its length ends it");
    assert_eq!(replica.get(&path).await.events(), all);
    rest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_continues_a_stream_with_the_next_event() {
    let ([one, two], prompt) = (Place::pair().await, "20 continued elsewhere");
    let mut stream = one.open("/v1/responses", &ask(prompt, true, false), &[]).await;
    stream.until("\"sequence_number\":9").await;
    let begun = stream.received().events();
    drop(stream);
    check_goes_on(&begun, &two).await;
    // Of the end, every replica has the pieces.
    let ran = runs(prompt).len();
    check_goes_on(&begun, &two).await;
    assert_eq!(runs(prompt).len(), ran);
    let path = format!("/v1/responses/{}", id_of(&begun));
    assert_eq!(two.get_as(&two.other, &path).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_cuts_streams_of_responses_and_another_replica_continues_their_pieces() {
    let ([one, two], prompt) = (Place::pair().await, "20 handed over");
    let mut stream = one.open("/v1/responses", &ask(prompt, true, false), &[]).await;
    stream.until("\"sequence_number\":12").await;
    one.drain.cancel();
    let cut = stream.rest().await;
    assert!(!cut.whole, "the official Python client takes an end in order for a whole stream");
    one.gateway.await.unwrap();
    check_goes_on(&cut.events(), &two).await;
    let runs = runs(prompt);
    assert!((1..60).contains(&runs[1].resumed), "{runs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_ends_in_order_in_the_grace_period_of_a_drain() {
    let ([one, _two], prompt) = (Place::pair().await, "20 a chat that ends");
    let body = json!({ "model": "words", "prompt": prompt, "max_tokens": 30, "stream": true });
    let mut stream = one.open("/v1/completions", &body, &[]).await;
    stream.until("\"finish_reason\":null").await;
    one.drain.cancel();
    let whole = stream.rest().await;
    assert!(whole.whole && whole.body.trim_end().ends_with("data: [DONE]"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_joins_the_reply_of_another_replica() {
    let ([one, two], prompt) = (Place::pair().await, "1 joined elsewhere");
    let key = ("idempotency-key", "k-7");
    let first = one.post("/v1/responses", &ask(prompt, false, false), &[key]).await.json();
    let second = two.post("/v1/responses", &ask(prompt, false, false), &[key]).await.json();
    assert_eq!(second, first);
    let retry = ("x-stainless-retry-count", "1");
    let third = two.post("/v1/responses", &ask(prompt, false, false), &[retry]).await.json();
    assert_ne!(third["id"], first["id"], "the first one has a key");
    let other = two.post("/v1/responses", &ask("1 other body", false, false), &[key]).await;
    assert_eq!(other.code(), "idempotency_key_reused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_replica_that_computes() {
    let ([one, two], prompt) = (Place::pair().await, "200 canceled elsewhere");
    let made = one.post("/v1/responses", &ask(prompt, false, true), &[]).await.json();
    within(SOON, "the reply does not start", || !runs(prompt).is_empty()).await;
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert_eq!(two.get(&path).await.json()["status"], "queued");
    let canceled = two.post(&format!("{path}/cancel"), &json!({}), &[]).await.json();
    assert_eq!(canceled["status"], "cancelled");
    within(SOON, "the reply runs on", || runs(prompt).iter().all(|run| run.ended)).await;
    assert_eq!(two.get(&path).await.json()["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_in_the_background_goes_on_when_its_replica_has_left() {
    let ([one, two], prompt) = (Place::pair().await, "50 background of a replica that left");
    let made = one.post("/v1/responses", &ask(prompt, false, true), &[]).await.json();
    within(SOON, "the reply does not start", || !runs(prompt).is_empty()).await;
    one.drain.cancel();
    one.gateway.await.unwrap();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert!(
        ["queued", "in_progress"]
            .contains(&two.get(&path).await.json()["status"].as_str().unwrap())
    );
    let stream = two.get(&format!("{path}?stream=true")).await;
    assert_eq!(stream.events().last().unwrap()["type"], "response.incomplete");
    assert_eq!(runs(prompt).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reply_is_begun_while_the_shared_store_is_away() {
    let ([one, two], prompt) = (Place::pair().await, "1 not begun");
    std::fs::remove_dir_all(one.shared()).unwrap();
    std::fs::write(one.shared(), "a file in place of the folder").unwrap();
    let refused = one.post("/v1/responses", &ask(prompt, false, false), &[]).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "store_unavailable"));
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    let unknown = format!("/v1/responses/resp_{}", "0".repeat(32));
    assert_eq!(two.get(&unknown).await.status, 503);
    std::fs::remove_file(one.shared()).unwrap();
    assert_eq!(one.post("/v1/responses", &ask(prompt, false, false), &[]).await.status, 200);
    assert_eq!(two.get(&unknown).await.status, 404);
}
