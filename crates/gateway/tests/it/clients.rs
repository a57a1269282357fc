//! Requests as clients and web pages send them: compressed bodies, other origins, inputs of a model's own
//! kind.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::http::{Answer, request};
use crate::place::Place;

const COMPLETIONS: &str = "/v1/completions";
const RUN: &str = "/v1/models/words/run";

fn completion() -> Value {
    json!({ "model": "words", "prompt": "0 a client", "max_tokens": 2, "seed": 7 })
}

/// Bytes as the `deflate` of a client that does not compress: a zlib stream with one stored block.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    let head = [0x78, 0x01, 0x01];
    let (length, inverse) = (length.to_le_bytes(), (!length).to_le_bytes());
    [&head[..], &length, &inverse, bytes, &(b << 16 | a).to_be_bytes()].concat()
}

/// Sends a body as it is, with its encoding.
async fn send(place: &Place, path: &str, body: &[u8], encoding: &str) -> Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
         content-encoding: {encoding}\r\ncontent-length: {}\r\n\r\n",
        place.key,
        body.len()
    );
    let mut connection = place.connect().await;
    let _ = connection.stream.write_all(&[head.as_bytes(), body].concat()).await;
    connection.rest().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_may_be_compressed_and_its_limit_counts_what_it_decompresses_to() {
    let place = Place::with("max_body = 2000", Limits::default()).await;
    let body = completion().to_string();
    let plain = place.post(COMPLETIONS, &completion(), &[]).await;
    let compressed = send(&place, COMPLETIONS, &stored(body.as_bytes()), "deflate").await;
    assert_eq!((compressed.status, compressed.text()), (200, plain.text()));
    let mut large = completion();
    large["user"] = json!("x".repeat(2000));
    let large = send(&place, COMPLETIONS, &stored(large.to_string().as_bytes()), "deflate").await;
    assert_eq!(large.status, 413, "{}", large.body);
    let broken = send(&place, COMPLETIONS, b"no zlib", "deflate").await;
    assert_eq!(broken.status, 400, "{}", broken.body);
    let unknown = send(&place, COMPLETIONS, body.as_bytes(), "snappy").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (415, "unsupported_encoding"));
    assert!(unknown.body.contains("snappy"), "{}", unknown.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_listed_origins_may_call_and_others_may_not() {
    const PAGE: &str = "https://app.example";
    let place = Place::with(&format!("allow_origins = [\"{PAGE}\"]"), Limits::default()).await;
    let asked = [
        ("origin", PAGE),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,x-stainless-lang"),
    ];
    let preflight = place.raw(&request("OPTIONS", COMPLETIONS, "", "", &asked)).await;
    assert_eq!(preflight.status, 200);
    assert_eq!(preflight.header("access-control-allow-origin"), Some(PAGE));
    let allowed = preflight.header("access-control-allow-headers").unwrap();
    assert_eq!(allowed, "authorization,x-stainless-lang");
    let mut streamed = completion();
    streamed["stream"] = json!(true);
    for (body, status) in [(completion(), 200), (streamed, 200), (json!({}), 400)] {
        let answer = place.post(COMPLETIONS, &body, &[("origin", PAGE)]).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE), "{}", answer.head);
        let exposed = answer.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-request-id"), "{exposed}");
    }
    let other = [("origin", "https://other.example")];
    let answer = place.post(COMPLETIONS, &completion(), &other).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    assert_eq!(answer.header("access-control-expose-headers"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_of_a_models_own_kind_has_its_pieces_as_a_list_or_as_events() {
    let place = Place::new().await;
    let input = json!({ "prompt": "0 a run", "max_tokens": 2 });
    let ask = |stream: bool| json!({ "input": input, "seed": 7, "stream": stream });
    let whole = place.post(RUN, &ask(false), &[]).await.json();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("run"), &json!("words")));
    assert_eq!(
        (&whole["finish_reason"], &whole["usage"]["output_tokens"]),
        (&json!("length"), &json!(2))
    );
    let pieces = whole["pieces"].as_array().unwrap();
    assert_eq!((pieces.len(), &pieces[1]["token"]), (2, &json!(1)));
    let streamed = place.post(RUN, &ask(true), &[]).await;
    let data: Vec<&str> =
        streamed.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let [one, two, end, "[DONE]"] = data.as_slice() else { panic!("{}", streamed.body) };
    let read = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    assert_eq!([read(one)["piece"].clone(), read(two)["piece"].clone()], pieces[..]);
    assert_eq!(read(end)["finish_reason"], "length");
    // What the handler refuses is an error with a status, with and without a stream.
    for stream in [false, true] {
        let wrong = json!({ "input": { "prompt": "no pace" }, "stream": stream });
        let refused = place.post(RUN, &wrong, &[]).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    // Null is an input like any other; this handler takes none.
    let null = place.post(RUN, &json!({ "input": null }), &[]).await;
    assert!(null.status == 400 && !null.body.contains("missing"), "{}", null.body);
    let missing = place.post(RUN, &json!({}), &[]).await;
    assert_eq!((missing.status, &missing.json()["error"]["param"]), (400, &json!("input")));
    assert_eq!(place.post("/v1/models/none/run", &ask(false), &[]).await.status, 404);
    for (method, path, status, methods) in [
        ("OPTIONS", RUN, 200, "post"),
        ("OPTIONS", "/v1/models/words", 200, "get,head"),
        ("POST", "/v1/models/words", 405, "get,head"),
    ] {
        let answer = place.raw(&request(method, path, &place.key, "", &[])).await;
        assert_eq!((answer.status, answer.header("allow")), (status, Some(methods)), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_a_worker_refuses_has_the_status_of_an_error() {
    let place = Place::new().await;
    for stream in [false, true] {
        let wrong = json!({ "model": "words", "prompt": "no pace", "stream": stream });
        let refused = place.post(COMPLETIONS, &wrong, &[]).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert_eq!(refused.header("content-type"), Some("application/json"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_told_the_schema_of_a_models_inputs() {
    let schema = json!({ "type": "object", "required": ["prompt"] });
    let table = "input_schema = { type = \"object\", required = [\"prompt\"] }\n";
    let place = Place::scripted("", table, Limits::default()).await;
    let model = place.get("/v1/models/words").await.json();
    assert_eq!((&model["input_schema"], &model["id"]), (&schema, &json!("words")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_may_refer_to_items_of_a_response_that_is_kept() {
    const RESPONSES: &str = "/v1/responses";
    let place = Place::new().await;
    let ask = |input: Value, store: bool| {
        let body = json!({ "model": "words", "input": input, "store": store, "seed": 7,
            "max_output_tokens": 2 });
        let place = &place;
        async move { place.post(RESPONSES, &body, &[]).await }
    };
    let reference =
        |response: &Value| json!({ "type": "item_reference", "id": response["output"][0]["id"] });
    let refer = |response: &Value| json!([{ "role": "user", "content": "0 more" }, reference(response), { "role": "user", "content": "0 on" }]);
    let first = ask(json!("0 a question"), true).await.json();
    let second = ask(refer(&first), true).await;
    assert_eq!(second.status, 200, "{}", second.body);
    // The handler takes the last message, which must begin with a number: it has the reply's text here.
    let alone = ask(json!([reference(&first)]), true).await;
    assert!(alone.status == 400 && alone.body.contains("no pace"), "{}", alone.body);
    let unknown = json!({ "output": [{ "id": "msg_01a22850fa11752491b391c21acfda93" }] });
    let forgotten = ask(json!("0 a secret"), false).await.json();
    for response in [&unknown, &forgotten] {
        let refused = ask(refer(response), true).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "item_not_found"));
        assert_eq!(refused.json()["error"]["param"], "input[1].id");
    }
    let field = json!({ "model": "words", "input": "0 a", "max_tokens": 2 });
    let other = place.post(RESPONSES, &field, &[]).await;
    assert_eq!((other.status, &other.json()["error"]["param"]), (400, &json!("max_tokens")));
    let id = |response: &Value| response["id"].as_str().unwrap().to_owned();
    for (response, status) in [(&first, 200), (&forgotten, 404)] {
        assert_eq!(place.get(&format!("{RESPONSES}/{}", id(response))).await.status, status);
    }
}
