//! `/metrics` of a gateway that has served.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;

use crate::http::TEST_TIMEOUT;
use crate::place::{Place, logged, within};

/// Returns the value of a series.
#[track_caller]
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

/// Series of the replies that have a piece.
pub(crate) const FIRST_CHUNKS: &str = "gen_ai_client_operation_time_to_first_chunk_seconds_count\
    {model=\"words\",operation=\"completion\"}";

/// Waits until a series has at least this value, for at most 20 s: files are checked every 5 s.
pub(crate) async fn reaches(place: &Place, series: &str, expected: f64) {
    let start = Instant::now();
    while value(&place.measured().await, series) < expected {
        assert!(start.elapsed() < Duration::from_secs(20), "{series} does not become {expected}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_served_is_measured_without_any_text_of_clients() {
    let place = Place::new().await;
    let text = place.measured().await;
    let replies = |end: &str| format!("nsbridge_gateway_replies_total{{end=\"{end}\"}}");
    assert_eq!(value(&text, &replies("done")), 0.0);
    let ask = |pieces: u32| {
        json!({
            "model": "words", "prompt": "20 Madagascar", "max_tokens": pieces, "seed": 7,
            "stream": true
        })
    };
    assert_eq!(place.post("/v1/completions", &ask(5), &[]).await.status, 200);
    let retry = ("x-stainless-retry-count", "1");
    let mut left = place.open("/v1/completions", &ask(500), &[]).await;
    left.until("\"finish_reason\":null").await;
    let text = place.measured().await;
    assert_eq!(value(&text, "nsbridge_gateway_streams_open"), 1.0);
    assert_eq!(value(&text, "nsbridge_gateway_replies_running"), 1.0);
    drop(left);
    reaches(&place, &replies("cancelled"), 1.0).await;
    let mut again = place.open("/v1/completions", &ask(500), &[retry]).await;
    again.until("\"finish_reason\":null").await;
    reaches(&place, FIRST_CHUNKS, 3.0).await;
    let text = place.measured().await;
    assert_eq!(value(&text, "nsbridge_gateway_replies_joined_total"), 1.0);
    assert_eq!(value(&text, "nsbridge_gateway_replies_reattached_total"), 1.0);
    assert_eq!(place.get("/v1/responses/resp_Madagascar").await.status, 404);
    assert_eq!(place.get("/Madagascar").await.status, 404);
    assert_eq!(place.post_as("Madagascar", "/v1/responses", &ask(1)).await.status, 401);
    let text = place.measured().await;
    assert_eq!(value(&text, &replies("done")), 1.0);
    let labels = "{model=\"words\",operation=\"completion\"}";
    let count =
        |name: &str| value(&text, &format!("gen_ai_client_operation_{name}_seconds_count{labels}"));
    assert_eq!((count("duration"), count("time_to_first_chunk")), (1.0, 3.0));
    let usage = "gen_ai_client_token_usage_sum{model=\"words\",operation=\"completion\",type=";
    assert_eq!(value(&text, &format!("{usage}\"output\"}}")), 5.0);
    let requests = "http_server_request_duration_seconds_count";
    let labels = "{method=\"POST\",route=\"/v1/completions\",status=\"200\"}";
    // The duration of a stream is known at its end, and one is open.
    assert_eq!(value(&text, &format!("{requests}{labels}")), 2.0);
    drop(again);
    reaches(&place, &format!("{requests}{labels}"), 3.0).await;
    let labels = "{method=\"GET\",route=\"/v1/responses/{id}\",status=\"404\"}";
    assert_eq!(value(&text, &format!("{requests}{labels}")), 1.0);
    let refused =
        |code: &str| format!("nsbridge_gateway_requests_refused_total{{code=\"{code}\"}}");
    for code in ["not_found", "unknown_url", "invalid_api_key"] {
        assert_eq!(value(&text, &refused(code)), 1.0, "{code}");
    }
    let reserved = value(&text, "nsbridge_gateway_tokens_reserved_total");
    let settled = value(&text, "nsbridge_gateway_tokens_settled_total");
    assert!(reserved >= 1005.0 && (16.0..500.0).contains(&settled), "{reserved} {settled}");
    assert!(!text.contains("Madagascar") && text.ends_with("# EOF\n"), "{text}");
    assert_eq!(place.get("/metrics").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_reloaded_is_shown_and_the_previous_keys_stay_valid() {
    let place = Place::new().await;
    let refused = |file: &str| format!("nsbridge_gateway_file_refused{{file=\"{file}\"}}");
    let text = place.measured().await;
    for file in ["keyring", "api_keys", "certificate"] {
        assert_eq!(value(&text, &refused(file)), 0.0, "{file}");
    }
    place.damage_api_keys();
    reaches(&place, &refused("api_keys"), 1.0).await;
    assert_eq!(place.get("/v1/models").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_fails_is_counted_by_its_code_and_logged_with_model_and_key() {
    let place = Place::new().await;
    let body =
        json!({ "model": "words", "prompt": "1 Tuvalu fails", "max_tokens": 3, "stream": true });
    let failed = place.post("/v1/completions", &body, &[]).await;
    assert_eq!(failed.status, 200);
    let events = failed.events();
    let error = events.iter().find(|event| event["error"].is_object()).unwrap();
    assert_eq!(error["error"]["type"], "invalid_request_error", "{error}");
    // The end is counted and logged after its client received it.
    reaches(&place, "nsbridge_gateway_replies_failed_total{code=\"invalid_request_error\"}", 1.0)
        .await;
    let key = place.key.split('_').nth(1).unwrap();
    let is_end = |line: &str| {
        line.contains("a reply ended") && line.contains(key) && line.contains("invalid_request")
    };
    within(TEST_TIMEOUT, "it is not logged", || logged().lines().any(is_end)).await;
    let log = logged();
    let line = log.lines().find(|line| is_end(line));
    assert!(line.is_some_and(|line| line.contains("model=test-")), "{line:?}");
    assert!(!log.contains("Tuvalu"));
}
