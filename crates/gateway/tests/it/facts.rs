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
async fn anthropics_clients_see_models_in_their_form_and_send_lost_threads_whole() {
    let place = Place::new().await;
    let ask = async |method: &str, path: &str, body: &str| {
        let headers = [("anthropic-version", "2023-06-01"), ("x-api-key", &*place.key)];
        place.raw(&request(method, path, "", body, &headers)).await
    };
    let list = ask("GET", "/v1/models", "").await.json();
    assert_eq!(list["has_more"], false);
    let first = &list["data"][0];
    assert_eq!((&first["type"], &first["id"]), (&json!("model"), &list["first_id"]));
    assert_eq!(first["display_name"], first["id"]);
    assert!(first["created_at"].as_str().unwrap().ends_with('Z'), "{first}");
    let one = ask("GET", "/v1/models/words", "").await.json();
    assert_eq!((&one["type"], &one["object"]), (&json!("model"), &Value::Null));

    let message = |thread: Value| {
        json!({ "model": "words", "max_tokens": 3, "thread": thread,
                "messages": [{ "role": "user", "content": "0 a thread" }] })
        .to_string()
    };
    let begun = ask("POST", "/v1/messages", &message(json!({ "type": "create" }))).await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    let on = json!({ "type": "continue", "previous_message_id": begun.json()["id"] });
    let lost = ask("POST", "/v1/messages", &message(on)).await;
    assert_eq!(lost.status, 404);
    assert_eq!(lost.json()["error"]["details"]["error_code"], "thread_not_found");
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
