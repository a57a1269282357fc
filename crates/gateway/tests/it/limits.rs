//! Callers: who is let in, and how much each may use.

use std::time::{Duration, Instant};

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::http::request;
use crate::metrics::reaches;
use crate::place::{Place, secret};

const PATH: &str = "/v1/completions";

fn ask(prompt: &str, pieces: u32) -> Value {
    json!({ "model": "words", "prompt": prompt, "max_tokens": pieces })
}

fn limits(requests: Option<u64>, tokens: Option<u64>, concurrent: Option<u64>) -> Limits {
    Limits { requests_per_minute: requests, tokens_per_minute: tokens, concurrent }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_valid_key_is_not_let_in() {
    let place = Place::new().await;
    let body = ask("1 key", 1);
    let unknown = "nsk_0123abcd_".to_owned() + secret(&place.key);
    // An id of another key with a secret that is not its own.
    let mixed = place.other.replace(secret(&place.other), secret(&place.key));
    for key in ["", "x", "nsk_", &unknown, &mixed, &place.disabled] {
        let answer = place.post_as(key, PATH, &body).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"), "{key}");
        assert_eq!(answer.header("www-authenticate"), Some("bearer"));
        assert!(key.len() < 9 || !answer.body.contains(key));
    }
    assert_eq!(place.post_as(&place.key, PATH, &body).await.status, 200);
    let text = body.to_string();
    let plain = request("POST", PATH, "", &text, &[("x-api-key", &place.key)]);
    assert_eq!(place.raw(&plain).await.status, 200);
    let both = request("POST", PATH, &place.key, &text, &[("x-api-key", &place.other)]);
    assert_eq!(place.raw(&both).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_above_its_requests_per_minute_is_told_when_to_come_back() {
    let place = Place::with("", limits(Some(2), None, None)).await;
    let body = ask("1 minute", 1);
    let first = place.post_as(&place.other, PATH, &body).await;
    assert_eq!((first.status, first.header("x-ratelimit-limit-requests")), (200, Some("2")));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    place.post_as(&place.other, PATH, &body).await;
    let third = place.post_as(&place.other, PATH, &body).await;
    assert_eq!((third.status, third.code().as_str()), (429, "rate_limit_exceeded"));
    let after: u64 = third.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&after), "{after}");
    assert_eq!(third.header("x-should-retry"), Some("true"));
    assert_eq!(third.header("x-ratelimit-remaining-requests"), Some("0"));
    assert!(third.header("x-ratelimit-reset-requests").is_some());
    // Another key has limits of its own.
    assert_eq!(place.post_as(&place.key, PATH, &body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_were_not_used_are_given_back() {
    let place = Place::with("", limits(None, Some(1000), None)).await;
    let most = place.post_as(&place.other, PATH, &ask("1 more than a minute has", 5000)).await;
    assert_eq!((most.status, most.code().as_str()), (400, "tokens_exceed_limit"));
    // The reply reserves 900 tokens, and uses a few.
    let text = ask("20 given back", 900).to_string().replace('}', ",\"stream\":true}");
    let mut first = place.connect().await;
    first.send(&request("POST", PATH, &place.other, &text, &[])).await;
    first.until("\"finish_reason\":null").await;
    let meanwhile = place.post_as(&place.other, PATH, &ask("1 meanwhile", 900)).await;
    assert_eq!(meanwhile.status, 429);
    assert_eq!(meanwhile.header("x-ratelimit-limit-tokens"), Some("1000"));
    drop(first);
    soon(&place, &ask("1 after it", 900)).await;
}

/// Sends a request until it is admitted, for at most 10 s. The reply that it waits for would take
/// longer by itself.
async fn soon(place: &Place, body: &Value) {
    let start = Instant::now();
    while place.post_as(&place.other, PATH, body).await.status == 429 {
        assert!(start.elapsed() < Duration::from_secs(10), "a reply that was left still counts");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_has_as_many_replies_at_once_as_its_key_allows() {
    let place = Place::with("", limits(None, None, Some(1))).await;
    let text = ask("20 at once", 1000).to_string();
    let mut first = place.connect().await;
    let streamed = text.replace('}', ",\"stream\":true}");
    first.send(&request("POST", PATH, &place.other, &streamed, &[])).await;
    first.until("\"finish_reason\":null").await;
    let second = place.post_as(&place.other, PATH, &ask("1 second", 1)).await;
    assert_eq!((second.status, second.header("retry-after")), (429, Some("1")));
    drop(first);
    soon(&place, &ask("1 third", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_belongs_to_its_key() {
    let place = Place::new().await;
    let body = json!({ "model": "words", "input": "1 own", "max_output_tokens": 2 });
    let made = place.post("/v1/responses", &body, &[]).await.json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert_eq!(place.get(&path).await.status, 200);
    for path in [path.clone(), format!("{path}/input_items"), format!("{path}?stream=true")] {
        assert_eq!(place.get_as(&place.other, &path).await.status, 404, "{path}");
    }
    let follow = json!({
        "model": "words", "input": "1 follow", "previous_response_id": made["id"]
    });
    let refused = place.post_as(&place.other, "/v1/responses", &follow).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    let delete = request("DELETE", &path, &place.other, "", &[]);
    assert_eq!(place.raw(&delete).await.status, 404);
    assert_eq!(place.get(&path).await.status, 200);
}

/// Returns the tokens that the other key may use now.
async fn left(place: &Place) -> u64 {
    let answer = place.post_as(&place.other, PATH, &ask("0 look", 0)).await;
    answer.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_cut_costs_its_prompt_and_its_tokens() {
    let place = Place::with("", limits(None, Some(4000), None)).await;
    let prompt = format!("20 cut {}", "x".repeat(12_000));
    let text = ask(&prompt, 600).to_string().replace('}', ",\"stream\":true}");
    let before = left(&place).await;
    let mut first = place.connect().await;
    first.send(&request("POST", PATH, &place.other, &text, &[])).await;
    first.until("\"finish_reason\":null").await;
    drop(first);
    reaches(&place, "nsbridge_gateway_replies_total{end=\"cancelled\"}", 1.0).await;
    // A quarter of the prompt's bytes are its tokens. 4000 tokens a minute are 67 a second, and the
    // reply had 50 a second.
    let used = before - left(&place).await;
    assert!((2000..=3100).contains(&used), "{used} tokens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_read_again_counts_for_the_limits_again() {
    let place = Place::with("", limits(None, None, Some(1))).await;
    let body = json!({
        "model": "words", "input": "50 read again", "max_output_tokens": 300, "stream": true
    });
    let mut first = place.connect().await;
    first.send(&request("POST", "/v1/responses", &place.other, &body.to_string(), &[])).await;
    first.until("output_text.delta").await;
    let id = first.received().events()[0]["response"]["id"].as_str().unwrap().to_owned();
    drop(first);
    soon(&place, &ask("1 it is free", 1)).await;
    let page = format!("/v1/responses/{id}?stream=true");
    let mut again = place.connect().await;
    again.send(&request("GET", &page, &place.other, "", &[])).await;
    again.until("output_text.delta").await;
    let refused = place.post_as(&place.other, PATH, &ask("1 beside it", 1)).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limit_exceeded"));
}
