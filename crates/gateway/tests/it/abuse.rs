//! Clients that send too much, too slowly, or nothing that can be read; and a drain.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::handler::{runs, said};
use crate::http::{Connection, TEST_TIMEOUT, request};
use crate::place::{Place, logged, secret, within};

const PATH: &str = "/v1/completions";

/// Time limits of one second, and bodies of 4 KiB.
const STRICT: &str =
    "header_timeout_s = 1\nbody_timeout_s = 1\nwrite_timeout_s = 1\nmax_body = 4096";

async fn strict() -> Place {
    Place::with(STRICT, Limits::default()).await
}

fn ask(prompt: &str, pieces: u32) -> Value {
    json!({ "model": "words", "prompt": prompt, "seed": 7, "max_tokens": pieces, "stream": true })
}

/// Returns the head of a request with these lines.
fn head(place: &Place, lines: &str) -> String {
    let key = &place.key;
    format!("POST {PATH} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n{lines}\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_not_read_whole() {
    let place = strict().await;
    // The length alone is enough: nothing of this body is sent.
    let answer =
        place.raw(&head(&place, "connection: close\r\ncontent-length: 1073741824\r\n")).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
    // A body that does not tell its length, and has no end.
    let mut endless = place.connect().await;
    endless.send(&head(&place, "connection: close\r\ntransfer-encoding: chunked\r\n")).await;
    for _ in 0..6 {
        endless.send(&format!("400\r\n{}\r\n", "x".repeat(1024))).await;
    }
    assert_eq!(endless.rest().await.status, 413);
    let fits =
        json!({ "model": "words", "prompt": format!("1 {}", "x".repeat(3900)), "max_tokens": 1 });
    assert_eq!(place.post(PATH, &fits, &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_before_the_end_of_a_body_is_read_without_a_reset() {
    let place = Place::new().await;
    let body = "x".repeat(4 << 20);
    for (path, key, status) in [(PATH, "", 401), ("/v1/files", &*place.key, 501)] {
        let kind = ("content-type", "multipart/form-data; boundary=cut");
        let text = request("POST", path, key, &body, &[kind]);
        let (first, second) = text.split_at(text.len() / 2);
        let mut large = place.connect().await;
        large.send(first).await;
        large.send(second).await;
        assert_eq!(large.end().await.status, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_send_the_rest_of_a_body_is_refused() {
    let place = Place::new().await;
    for more in ["", "expect: 100-continue\r\n"] {
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 9\r\n{more}\r\n"
        );
        let answer = place.raw(&head).await;
        assert_eq!(answer.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_whole_request_is_closed() {
    let place = strict().await;
    let begun =
        ["", "P", "POST", "PRI * HTTP/2.0\r\n", "POST / HTTP/1.1\r\nhost: test\r\nx-slow: "];
    for begun in begun {
        let mut slow = place.connect().await;
        slow.send(begun).await;
        let answer = slow.rest().await;
        assert!(!matches!(answer.status, 200..400), "{begun:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_never_end_are_refused() {
    let place = strict().await;
    let mut many = place.connect().await;
    many.send("GET /livez HTTP/1.1\r\nhost: test\r\n").await;
    for index in 0..1000 {
        many.send(&format!("x-{index}: {}\r\n", "y".repeat(100))).await;
    }
    let answer = many.rest().await;
    assert!(matches!(answer.status, 0 | 400..500), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_arrive_in_time_is_given_up() {
    let place = strict().await;
    let mut slow = place.connect().await;
    slow.send(&head(&place, "connection: close\r\ncontent-length: 100\r\n")).await;
    slow.send("{\"model\"").await;
    assert_eq!(slow.rest().await.status, 408);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_is_closed_and_its_reply_ends() {
    let (place, prompt) = (strict().await, "20 large and never read");
    let mut silent = Connection::narrow(place.address).await;
    let body = ask(prompt, 100_000).to_string();
    silent.send(&request("POST", PATH, &place.key, &body, &[])).await;
    within(TEST_TIMEOUT, "it does not start", || !runs(prompt).is_empty()).await;
    let ended = || runs(prompt).iter().all(|run| run.ended);
    within(TEST_TIMEOUT, "the reply goes on", ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_refused() {
    let place = Place::new().await;
    let deep = |open: &str| format!("{{\"model\":\"words\",\"prompt\":{}", open.repeat(100_000));
    for path in [PATH, "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/tokenize"] {
        let bodies =
            ["", "{", "null", "[]", "\"x\"", "{\"model\":1}", "{\"model\":\"words\"}", "\u{0}"];
        let bodies = bodies.map(str::to_owned).into_iter().chain([deep("["), deep("{\"a\":")]);
        for body in bodies {
            let answer = place.raw(&request("POST", path, &place.key, &body, &[])).await;
            let shown: String = body.chars().take(60).collect();
            assert_eq!(answer.status, 400, "{path} {shown}: {answer:?}");
            assert!(!answer.code().is_empty());
        }
    }
    // Two lengths are two requests to a proxy that believes the other one.
    let twice = head(&place, "content-length: 2\r\ncontent-length: 3\r\n") + "{}x";
    assert_eq!(place.raw(&twice).await.status, 400);
    let both = head(&place, "content-length: 2\r\ntransfer-encoding: chunked\r\n") + "0\r\n\r\n";
    let answer = place.raw(&(both.replace("\r\nhost", "\r\nconnection: close\r\nhost"))).await;
    assert!(matches!(answer.status, 400..500), "{answer:?}");
    for path in ["/page/x", "/v1", "/v1/nothing", "/metrics", "/v1/responses/%00/cancel/x", "/%ff"]
    {
        let answer = place.get(path).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_url"), "{path}");
    }
    assert_eq!(place.get(PATH).await.status, 405);
    assert_eq!(place.get("/v1/responses/resp_%00").await.status, 404);
    assert_eq!(place.get("/livez").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_path_or_query_is_refused_as_json() {
    let place = Place::new().await;
    let paths = [
        "/v1/responses/x?stream=null",
        "/v1/responses/x?stream=true&stream=true",
        "/v1/models/%ff",
    ];
    for path in paths {
        let answer = place.get(path).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid_request_error"),
            "{path}"
        );
    }
}

/// Waits until the server has accepted a connection and read everything that was sent on it.
async fn until_read(place: &Place, connection: &Connection) {
    let (server, client) = (place.address.port(), connection.stream.local_addr().unwrap().port());
    let socket = format!(" 0100007F:{server:04X} 0100007F:{client:04X} ");
    let is_read = || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut own = sockets.lines().filter(|line| line.contains(&socket));
        // State, 1 if it is established, and the bytes in both queues, of which the second is read.
        own.any(|line| {
            let mut fields = line.split_whitespace().skip(3);
            fields.next() == Some("01") && fields.next().is_some_and(|it| it.ends_with(":00000000"))
        })
    };
    within(TEST_TIMEOUT, "the server does not read", is_read).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_refuses_requests_and_ends_streams_whole() {
    let (place, prompt) = (Place::new().await, "20 through a drain");
    let mut running = place.open(PATH, &ask(prompt, 60), &[]).await;
    running.until("\"finish_reason\":null").await;
    // These connections were accepted before the drain, and their requests come after it.
    let (mut late, mut probe) = (place.connect().await, place.connect().await);
    late.send("POST /v1/completions HTTP/1.1\r\nhost: test\r\n").await;
    probe.send("GET /readyz HTTP/1.1\r\nhost: test\r\n").await;
    for connection in [&late, &probe] {
        until_read(&place, connection).await;
    }
    place.drain.cancel();
    let refuses = || std::net::TcpStream::connect(place.address).is_err();
    within(TEST_TIMEOUT, "the drain does not begin", refuses).await;
    let body = ask("1 too late", 1).to_string();
    let (key, length) = (&place.key, body.len());
    late.send(&format!("authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"))
        .await;
    let refused = late.rest().await;
    assert_eq!((refused.status, refused.header("x-should-retry")), (503, Some("true")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    probe.send("\r\n").await;
    assert_eq!(probe.rest().await.status, 503);
    assert_eq!(running.rest().await.text(), said(7, 60));
    assert_eq!(runs(prompt).len(), 1);
    let address = place.address;
    place.gateway.await.unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_no_text_of_requests() {
    let place = Place::new().await;
    let text = "Zanzibar";
    let body = ask(&format!("1 {text}"), 2);
    place.post(PATH, &body, &[("x-request-id", "seen-in-the-log")]).await;
    let chat = json!({
        "model": "words", "messages": [{ "role": "user", "content": format!("1 {text}") }],
        "max_tokens": 2, text: text
    });
    assert_eq!(place.post("/v1/chat/completions", &chat, &[]).await.status, 400);
    let input = json!({ "model": "words", "input": format!("1 {text}"), "max_output_tokens": 2 });
    assert_eq!(place.post("/v1/responses", &input, &[("idempotency-key", text)]).await.status, 200);
    place.raw(&request("POST", PATH, &place.key, text, &[])).await;
    place.post(PATH, &json!({ "model": text, "prompt": text }), &[]).await;
    place.get_as(&place.key, &format!("/v1/models?{text}")).await;
    let log = logged();
    assert!(log.contains("seen-in-the-log"), "{log}");
    let told: Vec<_> = log.lines().filter(|line| line.contains(text)).collect();
    assert!(told.is_empty(), "{told:?}");
    assert!(!log.contains(&place.key) && !log.contains(secret(&place.key)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_of_many_prompts_is_not_kept_for_each_of_them() {
    let place = Place::new().await;
    let prompts: Vec<String> = (0..128).map(|n| format!("0 many {n}")).collect();
    // Fields that clients send and that have no effect may be large.
    let ask = json!({
        "model": "words", "prompt": prompts, "max_tokens": 1, "user": "x".repeat(4 << 20)
    });
    let before = resident();
    assert_eq!(place.post(PATH, &ask, &[]).await.status, 200);
    let grown = resident().saturating_sub(before);
    assert!(grown < 128 << 20, "{} MiB for a body of 4 MiB", grown >> 20);
    // Each prompt has a copy of the fields that have an effect.
    let ids: Vec<u32> = (0..20_000).collect();
    let ask = json!({ "model": "words", "prompt": prompts, "stop_token_ids": ids });
    let answer = place.post(PATH, &ask, &[]).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "field_too_large"));
}

/// Answers the pings of an HTTP/2 connection and sends no request, until the server closes it.
async fn ping_without_end(place: &Place) {
    const PING: u8 = 6;
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    // Empty settings.
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        if stream.read_exact(&mut payload).await.is_err() {
            return;
        }
        if (head[3], head[4]) == (PING, 0) {
            head[4] = 1;
            let _ = stream.write_all(&[&head[..], &payload].concat()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_only_answer_pings_leave_their_places() {
    let place = Place::with(&format!("{STRICT}\nmax_connections = 2"), Limits::default()).await;
    let both = async { tokio::join!(ping_without_end(&place), ping_without_end(&place)) };
    timeout(TEST_TIMEOUT, both).await.expect("the server closes the connections");
    assert_eq!(place.get("/livez").await.status, 200);
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Returns a figure of this process's memory in MiB, such as `VmHWM`, its peak.
fn memory_mib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_values_beyond_their_bounds_take_no_memory() {
    let place = Place::new().await;
    let wide = |objects: usize| r#"{"":0},"#.repeat(objects) + "0";
    let before = memory_mib("VmHWM");
    let field = |name: &str| format!(r#"{{"model":"words","{name}":[{}]}}"#, wide(1_100_000));
    let metadata = format!(
        r#"{{"model":"words","input":"1 a","stream":true,"metadata":{{"a":[{}]}}}}"#,
        wide(1_100_000)
    );
    let chat = "/v1/chat/completions";
    let requests = [
        ("/v1/responses", metadata),
        ("/v1/responses", field("input")),
        (chat, field("messages")),
        (chat, field("unknown")),
        ("/v1/messages", field("system")),
        (PATH, field("prompt")),
        ("/v1/embeddings", field("input")),
        ("/v1/moderations", field("input")),
        ("/v1/decisions", field("questions")),
        ("/tokenize", field("messages")),
        ("/detokenize", field("tokens")),
    ];
    for (path, body) in requests {
        let answer = place.raw(&request("POST", path, &place.key, &body, &[])).await;
        assert!(matches!(answer.status, 400..500), "{path}: {answer:?}");
    }
    let grown = memory_mib("VmHWM") - before;
    assert!(grown < 160, "{grown} MiB for bodies of 8 MB, one after another");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_a_body_that_breaks_the_rules_of_its_chunks_is_malformed() {
    let place = Place::new().await;
    let chunked = head(&place, "connection: close\r\ntransfer-encoding: chunked\r\n");
    for chunks in ["10000000000000000\r\nx\r\n0\r\n\r\n", "1\nx\r\n0\r\n\r\n", "z\r\n"] {
        let answer = place.raw(&format!("{chunked}{chunks}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request_error"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m2_an_http_2_connection_without_a_request_ends_with_the_time_for_headers() {
    let place = strict().await;
    let mut silent = TcpStream::connect(place.address).await.unwrap();
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    silent.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    // It answers no ping: with a grace it would stay for 40 s.
    let mut frames = Vec::new();
    let ended = timeout(std::time::Duration::from_secs(15), silent.read_to_end(&mut frames)).await;
    assert!(ended.is_ok(), "the connection is open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m2_one_address_does_not_take_all_places_nor_those_of_the_health_checks() {
    let few = "max_connections_of_address = 3";
    let place = Place::with(few, Limits::default()).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut connection = place.connect().await;
        connection.send("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        connection.until("ok").await;
        held.push(connection);
    }
    let mut refused = place.connect().await;
    refused.send(&request("GET", "/livez", "", "", &[])).await;
    assert_eq!(refused.rest().await.status, 0);
    for path in ["/livez", "/readyz", "/metrics"] {
        let mut internal = Connection::to(place.metrics).await;
        internal.send(&request("GET", path, "", "", &[])).await;
        assert_eq!(internal.rest().await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_comes_whole_and_tells_its_length() {
    let place = Place::new().await;
    let instructions = "x".repeat(200_000);
    let ask = json!({ "model": "words", "input": "1 a", "instructions": instructions });
    let mut connection = place.connect().await;
    let body = ask.to_string();
    connection.send(&request("POST", "/v1/responses", &place.key, &body, &[])).await;
    connection.until("content-length: 20").await;
    let answer = connection.rest().await;
    assert_eq!(
        (answer.status, answer.json()["instructions"].as_str().unwrap().len()),
        (200, 200_000)
    );
}
