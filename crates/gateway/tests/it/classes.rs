//! Classes of requests: the queue that they wait in, and the tier that their answers tell.

use std::time::{Duration, Instant};

use nsbridge_gateway::access::Limits;
use nsbridge_protocol::Priority;
use nsbridge_protocol::topology::request_queue;
use nsbridge_queue::Connection;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::http::request;
use crate::place::Place;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the numbers of interactive and of bulk requests that wait for the model `absent`.
async fn waiting(connection: &dyn Connection) -> [u32; 2] {
    let mut waiting = [0; 2];
    for (count, class) in waiting.iter_mut().zip([Priority::Interactive, Priority::Bulk]) {
        let queue = request_queue(&"absent".parse().unwrap(), class);
        *count = connection.depth(&queue).await.unwrap().messages;
    }
    waiting
}

/// Sends a request that no worker answers, and waits until the queues hold these numbers.
async fn check(
    place: &Place,
    queues: &dyn Connection,
    (key, path, body): (&str, &str, Value),
    expected: [u32; 2],
) {
    let mut connection = place.connect().await;
    connection.send(&request("POST", path, key, &body.to_string(), &[])).await;
    let started = Instant::now();
    loop {
        let found = waiting(queues).await;
        if found == expected {
            return;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{path} {body}: {found:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_bulk_key_and_of_the_tier_flex_wait_with_the_lines_of_batches() {
    let place = Place::stored("", Limits::default()).await;
    let queues = place.declare_absent().await;
    let prompt = |tier: Value| json!({ "model": "absent", "prompt": "1 x", "service_tier": tier });
    let completions = "/v1/completions";
    let input = json!({ "model": "absent", "input": "1 x", "service_tier": "flex" });
    let text = json!({ "model": "absent", "prompt": "1 x" });
    let (key, bulk) = (place.key.as_str(), place.bulk.as_str());
    let cases = [
        ((key, completions, prompt(Value::Null)), [1, 0]),
        ((key, completions, prompt("auto".into())), [2, 0]),
        ((key, completions, prompt("priority".into())), [3, 0]),
        ((key, completions, prompt("flex".into())), [3, 1]),
        ((key, "/v1/responses", input), [3, 2]),
        ((bulk, completions, prompt(Value::Null)), [3, 3]),
        ((bulk, completions, prompt("default".into())), [3, 4]),
        ((key, "/tokenize", text.clone()), [4, 4]),
        ((bulk, "/tokenize", text), [4, 5]),
    ];
    for (case, expected) in cases {
        check(&place, queues.as_ref(), case, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_tells_the_tier_that_served_it() {
    let place = Place::new().await;
    let chat = |tier: Value| {
        let messages = json!([{ "role": "user", "content": "1 tier" }]);
        json!({ "model": "words", "messages": messages, "max_tokens": 1, "service_tier": tier })
    };
    let none = Value::Null;
    for (key, asked, told) in [
        (&place.key, none.clone(), none.clone()),
        (&place.key, "auto".into(), "default".into()),
        (&place.key, "flex".into(), json!("flex")),
        (&place.bulk, none.clone(), "flex".into()),
        (&place.bulk, "default".into(), "flex".into()),
    ] {
        let whole = place.post_as(key, "/v1/chat/completions", &chat(asked.clone())).await;
        assert_eq!((whole.status, &whole.json()["service_tier"]), (200, &told), "{asked}");
        let body = json!({
            "model": "words", "input": "1 tier", "max_output_tokens": 1, "service_tier": asked
        });
        let made = place.post_as(key, "/v1/responses", &body).await.json();
        let of_response = if told.is_null() { &json!("default") } else { &told };
        assert_eq!(&made["service_tier"], of_response, "{asked}");
        // A response that is read again tells the tier that served it.
        let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
        let again = place.get_as(key, &path).await.json();
        assert_eq!(&again["service_tier"], of_response, "{asked}");
    }
    let odd = place.post("/v1/chat/completions", &chat("instant".into()), &[]).await;
    assert_eq!((odd.status, &odd.json()["error"]["param"]), (400, &json!("service_tier")));
    let mut streamed = chat("flex".into());
    streamed["stream"] = true.into();
    let stream = place.post("/v1/chat/completions", &streamed, &[]).await;
    let mut events = stream.body.lines().filter_map(|line| line.strip_prefix("data: {"));
    assert!(events.all(|event| event.contains(r#""service_tier":"flex""#)), "{}", stream.body);
}
