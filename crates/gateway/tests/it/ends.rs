//! Ends of replies that are read after a restart and from another replica: each is as it was.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use crate::batches::until;
use crate::handler::runs;
use crate::http::TEST_TIMEOUT;
use crate::place::{Place, within};

const PATH: &str = "/v1/responses";

/// Prompt that the handler refuses as bad input: it names no pace.
const REFUSED: &str = "refused without a pace";

async fn in_background(place: &Place, prompt: &str) -> String {
    let body = json!({ "model": "words", "input": prompt, "max_output_tokens": 400,
                       "background": true });
    let response = place.post(PATH, &body, &[]).await.json();
    format!("{PATH}/{}", response["id"].as_str().unwrap())
}

/// Returns the paths of a canceled and of a refused response, and their objects.
async fn ended(place: &Place, canceled: &str) -> [(String, Value); 2] {
    let stopped = in_background(place, canceled).await;
    within(TEST_TIMEOUT, "the run to begin", || !runs(canceled).is_empty()).await;
    let cancel = place.post(&format!("{stopped}/cancel"), &json!({}), &[]).await;
    assert_eq!(cancel.status, 200, "{}", cancel.body);
    let refused = in_background(place, REFUSED).await;
    let mut ends = Vec::new();
    for (path, status) in [(stopped, "cancelled"), (refused, "failed")] {
        ends.push((path.clone(), until(place, &path, status).await));
    }
    assert_eq!(ends[1].1["error"]["code"], "invalid_prompt");
    ends.try_into().unwrap()
}

/// Checks that a response is as it was, but for the facts that only its first gateway knows.
async fn check_same(place: &Place, path: &str, before: &Value) {
    let mut after = place.get(path).await.json();
    let mut before = before.clone();
    for fact in ["attempts", "continued", "worker_fingerprint", "system_fingerprint"] {
        after["nsbridge"][fact] = Value::Null;
        before["nsbridge"][fact] = Value::Null;
    }
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_and_a_refused_response_are_so_after_a_restart() {
    let mut place = Place::stored("", Limits::default()).await;
    let ends = ended(&place, "20 canceled before a restart").await;
    place.restart().await;
    for (path, before) in &ends {
        check_same(&place, path, before).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_and_a_refused_response_are_so_at_another_replica() {
    let [one, two] = Place::pair().await;
    for (path, before) in &ended(&one, "20 canceled at a replica").await {
        check_same(&two, path, before).await;
    }
}
