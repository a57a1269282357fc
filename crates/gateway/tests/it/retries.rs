//! Replies that outlive connections: retries, disconnects, background.

use std::time::{Duration, Instant};

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::handler::{runs, said};
use crate::http::{TEST_TIMEOUT, request};
use crate::metrics::{FIRST_CHUNKS, reaches};
use crate::place::{Place, within};

const PATH: &str = "/v1/completions";

const RETRY: (&str, &str) = ("x-stainless-retry-count", "1");

fn ask(prompt: &str, pieces: u32, stream: bool) -> Value {
    json!({ "model": "words", "prompt": prompt, "seed": 7, "max_tokens": pieces, "stream": stream })
}

async fn started(prompt: &str) {
    within(TEST_TIMEOUT, "the reply does not start", || !runs(prompt).is_empty()).await;
}

async fn ended(prompt: &str) {
    let ended = || runs(prompt).iter().all(|run| run.ended);
    within(TEST_TIMEOUT, "the reply does not end", ended).await;
}

/// Polls a response until it has ended at its limit of tokens.
async fn until_incomplete(place: &Place, path: &str) -> Value {
    let started = Instant::now();
    loop {
        let shown = place.get(path).await.json();
        if shown["status"] == "incomplete" {
            return shown;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "it does not end: {shown}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_joins_the_reply_in_progress() {
    let (place, prompt) = (Place::new().await, "30 joined");
    let body = ask(prompt, 30, false);
    let first = place.open("/v1/completions", &body, &[]).await;
    started(prompt).await;
    let (second, first) =
        tokio::join!(place.post("/v1/completions", &body, &[RETRY]), first.rest());
    assert_eq!((first.status, first.text()), (200, said(7, 30)));
    assert_eq!(second.body, first.body);
    // The result is joined as well; a request that is no retry is another reply.
    let third = place.post("/v1/completions", &body, &[RETRY]).await;
    assert_eq!((third.body, runs(prompt).len()), (first.body, 1));
    place.post("/v1/completions", &body, &[]).await;
    assert_eq!(runs(prompt).len(), 2);
}

/// Disconnects in the middle of a reply, then sends the request again.
async fn check_continued(prompt: &str, stream: bool) {
    let place = Place::new().await;
    let body = ask(prompt, 40, stream);
    let mut first = place.open("/v1/completions", &body, &[]).await;
    if stream {
        first.until("data: {").await;
        first.until("\"finish_reason\":null").await;
    } else {
        reaches(&place, FIRST_CHUNKS, 1.0).await;
    }
    drop(first);
    ended(prompt).await;
    let again = place.post("/v1/completions", &body, &[RETRY]).await;
    assert_eq!((again.status, again.text()), (200, said(7, 40)));
    let runs = runs(prompt);
    assert_eq!(runs.len(), 2);
    assert!((1..40).contains(&runs[1].resumed), "{runs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_its_client_and_a_retry_continues_it() {
    check_continued("25 left in a stream", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_ends_with_its_client_and_a_retry_continues_it() {
    check_continued("50 left before the end", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stays_keeps_the_reply_of_one_that_leaves() {
    let (place, prompt) = (Place::new().await, "20 one of two stays");
    let body = ask(prompt, 40, true);
    let mut first = place.open("/v1/completions", &body, &[]).await;
    first.until("\"finish_reason\":null").await;
    let mut second = place.open("/v1/completions", &body, &[RETRY]).await;
    second.until("\"finish_reason\":null").await;
    drop(first);
    assert_eq!(second.rest().await.text(), said(7, 40));
    assert_eq!(runs(prompt).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_belongs_to_one_body() {
    let (place, prompt) = (Place::new().await, "1 one body");
    let key = ("idempotency-key", "k-1");
    let first = place.post("/v1/completions", &ask(prompt, 3, false), &[key]).await;
    let second = place.post("/v1/completions", &ask(prompt, 3, false), &[key]).await;
    assert_eq!((first.status, &second.body), (200, &first.body));
    let other = place.post("/v1/completions", &ask(prompt, 4, false), &[key]).await;
    assert_eq!((other.status, other.code().as_str()), (400, "idempotency_key_reused"));
    assert_eq!(runs(prompt).len(), 1);
    // A key of another caller is another key.
    let theirs = ask(prompt, 4, false);
    let body = theirs.to_string();
    let request = crate::http::request("POST", "/v1/completions", &place.other, &body, &[key]);
    assert_eq!(place.raw(&request).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_in_the_background_goes_on_without_its_client() {
    let (place, prompt) = (Place::new().await, "20 background");
    let body = json!({
        "model": "words", "input": prompt, "max_output_tokens": 40, "background": true
    });
    let made = place.post("/v1/responses", &body, &[]).await.json();
    // It is in progress from its first piece on.
    assert!(made["status"] == "queued" || made["status"] == "in_progress", "{made}");
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    within(TEST_TIMEOUT, "it does not end", || runs(prompt).first().is_some_and(|run| run.ended))
        .await;
    // The worker has ended the run before its last frame reaches the gateway.
    let shown = until_incomplete(&place, &path).await;
    assert_eq!(shown["usage"]["output_tokens"], 40);
    assert_eq!(place.get_as(&place.other, &path).await.status, 404);
    let cancel = format!("{path}/cancel");
    assert_eq!(place.post_as(&place.other, &cancel, &json!({})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_a_refused_request_does_not_join_another_reply() {
    let limits = Limits { concurrent: Some(1), ..Limits::default() };
    let place = Place::with("", limits).await;
    let prompt = "20 two samples";
    let body = json!({ "model": "words", "prompt": prompt, "max_tokens": 40 }).to_string();
    let send = |headers: &[(&str, &str)]| request("POST", PATH, &place.other, &body, headers);
    let mut first = place.connect().await;
    first.send(&send(&[])).await;
    started(prompt).await;
    assert_eq!(place.raw(&send(&[])).await.status, 429);
    let first = first.rest().await;
    // Only one of its equal requests was refused: the next retry joins.
    let [second, third] = [place.raw(&send(&[RETRY])).await, place.raw(&send(&[RETRY])).await];
    assert_eq!([first.status, second.status, third.status], [200; 3]);
    assert_eq!(runs(prompt).len(), 2);
    assert_ne!(second.json()["id"], first.json()["id"]);
    assert_eq!(third.json()["id"], second.json()["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_of_one_idempotency_key_at_once_have_one_reply() {
    let (place, prompt) = (Place::new().await, "5 at once under one key");
    let (body, key) = (ask(prompt, 10, false), ("idempotency-key", "k-2"));
    let keys = [key];
    let ask = || place.post(PATH, &body, &keys);
    let (one, two, three) = tokio::join!(ask(), ask(), ask());
    assert_eq!([&one.body, &two.body], [&three.body; 2]);
    assert_eq!((one.status, runs(prompt).len()), (200, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_does_not_take_a_request_is_told_in_seconds() {
    let (place, prompt) = (Place::new().await, "1 blocked");
    place.broker().block();
    // The deadline of the request is minutes away, and a connection of the tests lasts 20 s.
    let refused = place.post(PATH, &ask(prompt, 3, false), &[]).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "broker_unavailable"));
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    place.broker().unblock();
    let again = place.post(PATH, &ask(prompt, 3, false), &[RETRY]).await;
    assert_eq!((again.status, again.text()), (200, said(7, 3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_the_broker_has_its_request_leaves_nothing_behind() {
    let (place, prompt) = (Place::new().await, "1 left too early");
    let body = json!({
        "model": "words", "input": prompt, "max_output_tokens": 3, "background": true
    });
    place.broker().block();
    let first = place.open("/v1/responses", &body, &[]).await;
    reaches(&place, "nsbridge_gateway_replies_running", 1.0).await;
    drop(first);
    place.broker().unblock();
    // The reply is in the background, so it goes on; the retry finds it and not a dead one.
    let made = place.post("/v1/responses", &body, &[RETRY]).await.json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    until_incomplete(&place, &path).await;
    assert_eq!(runs(prompt).len(), 1);
}
