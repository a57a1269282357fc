//! Seeds of responses, the object `nsbridge`, and the chat page.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use crate::http::request;
use crate::place::Place;

const PATH: &str = "/v1/responses";

fn ask(seed: Option<i64>, stream: bool) -> Value {
    json!({ "model": "words", "input": "0 a response", "max_output_tokens": 3, "seed": seed,
            "stream": stream })
}

fn text(response: &Value) -> String {
    response["output"][0]["content"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_seeds_give_equal_responses_and_the_seed_is_told() {
    let place = Place::new().await;
    let first = place.post(PATH, &ask(Some(7), false), &[]).await.json();
    let second = place.post(PATH, &ask(Some(7), false), &[]).await.json();
    let other = place.post(PATH, &ask(Some(8), false), &[]).await.json();
    assert_eq!(text(&first), text(&second));
    assert_ne!(text(&first), text(&other));
    let facts = &first["nsbridge"];
    assert_eq!(
        (&facts["seed"], &facts["attempts"], &facts["continued"]),
        (&json!(7), &json!(1), &json!(0))
    );
    assert_eq!(facts["worker_fingerprint"], "776f726473206f66206120746573742e");
    // A seed that the gateway chose computes the response again.
    let random = place.post(PATH, &ask(None, false), &[]).await.json();
    let seed = random["nsbridge"]["seed"].as_i64();
    let again = place.post(PATH, &ask(seed, false), &[]).await.json();
    assert!(seed.is_some());
    assert_eq!(text(&again), text(&random));
    let events = place.post(PATH, &ask(Some(7), true), &[]).await.events();
    assert_eq!(events[0]["response"]["nsbridge"], json!({ "seed": 7 }));
    let last = &events.last().unwrap()["response"]["nsbridge"];
    assert_eq!(*last, json!({ "seed": 7, "drafted_tokens": 0, "accepted_tokens": 0 }));
    let wrong = json!({ "model": "words", "input": "0 a", "seed": "seven" });
    let refused = place.post(PATH, &wrong, &[]).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("seed")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_served_without_a_key_unless_it_is_turned_off() {
    let place = Place::new().await;
    let page = place.raw(&request("GET", "/", "", "", &[])).await;
    assert_eq!(page.status, 200);
    assert!(page.body.starts_with("<!doctype html>"));
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let tag = page.header("etag").unwrap();
    let known = place.raw(&request("GET", "/", "", "", &[("if-none-match", tag)])).await;
    assert_eq!((known.status, known.body.as_str()), (304, ""));
    assert_eq!(place.raw(&request("GET", "/page/app.js", "", "", &[])).await.status, 200);
    assert_eq!(place.raw(&request("POST", "/", "", "", &[])).await.status, 405);
    let none = Place::with("page = false", Limits::default()).await;
    for path in ["/", "/page/app.js"] {
        let answer = none.get(path).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_url"), "{path}");
    }
}
