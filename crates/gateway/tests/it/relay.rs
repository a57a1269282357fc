//! Proxies: sealed requests through a gateway that has no key of them.

use std::net::SocketAddr;
use std::time::Duration;

use nsbridge_gateway::GatewayBroker;
use nsbridge_gateway::access::Limits;
use nsbridge_protocol::topology::reply_queue;
use nsbridge_queue::Broker as _;
use nsbridge_testkit::Proxy;
use serde_json::{Value, json};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::handler::{runs, said};
use crate::http::request;
use crate::place::{Place, logged, secret, within};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const PATH: &str = "/v1/completions";

fn ask(prompt: &str, pieces: u32) -> Value {
    json!({ "model": "words", "prompt": prompt, "max_tokens": pieces, "seed": 7, "stream": true })
}

async fn proxy(gateway: &Place) -> Place {
    gateway.proxy(gateway.address, &gateway.key, "one").await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_through_a_gateway_without_its_key_is_that_of_a_direct_run() {
    let gateway = Place::sealed(Limits::default()).await;
    let proxy = proxy(&gateway).await;
    let answer = proxy.post(PATH, &ask("1 canary of a sealed prompt", 30), &[]).await;
    assert_eq!((answer.status, answer.text()), (200, said(7, 30)));
    // The gateway itself can seal nothing that the worker opens.
    let own = json!({ "model": "words", "prompt": "1 unsealed", "max_tokens": 1 });
    let direct = tokio::time::timeout(Duration::from_secs(2), gateway.post(PATH, &own, &[]));
    assert!(direct.await.is_err() || runs("1 unsealed").is_empty());
    assert!(runs("1 unsealed").is_empty());
    let log = logged();
    assert!(log.contains("/v1/sealed") && !log.contains("canary of a sealed"), "{log}");
    assert!(!log.contains(secret(&gateway.key)));
    let measured = gateway.measured().await;
    let reserved = "nsbridge_gateway_tokens_reserved_total ";
    let reserved = measured.lines().find_map(|line| line.strip_prefix(reserved)).unwrap();
    assert!(reserved.parse::<u64>().unwrap() > 0, "{reserved}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_to_the_gateway_loses_nothing_of_a_reply() {
    let gateway = Place::sealed(Limits::default()).await;
    let wire = Proxy::to(gateway.address).unwrap();
    let proxy = gateway.proxy(wire.addr(), &gateway.key, "one").await.unwrap();
    let prompt = "20 cut on the way to the gateway";
    let mut client = proxy.open(PATH, &ask(prompt, 100), &[]).await;
    for cut in 1..=3 {
        client.until(&format!("\"text\":\"{}", word(20 * cut))).await;
        wire.cut();
    }
    let answer = client.rest().await;
    assert_eq!(answer.text(), said(7, 100));
    assert_eq!(runs(prompt).len(), 1, "{:?}", runs(prompt));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_keys_serves_no_page_of_another_host() {
    let gateway = Place::sealed(Limits::default()).await;
    let proxy = proxy(&gateway).await;
    let body = ask("1 of a page", 1).to_string();
    let own = request("POST", PATH, "", &body, &[("origin", "http://localhost:8080")]);
    assert_eq!(proxy.raw(&own).await.status, 200);
    let page = request("POST", PATH, "", &body, &[("origin", "https://evil.example")]);
    let rebound = own.replace("host: localhost", "host: evil.example");
    for refused in [page, rebound] {
        let answer = proxy.raw(&refused).await;
        assert_eq!((answer.status, answer.code()), (403, "foreign_origin".to_owned()));
        // A gateway that asks for a key serves every page that has one.
        let keyed = refused.replace("\r\n\r\n", &format!("\r\nx-api-key: {}\r\n\r\n", gateway.key));
        let keyed = keyed.replace(&format!("POST {PATH}"), "GET /v1/models");
        assert_eq!(gateway.raw(&keyed).await.status, 200);
    }
}

/// Opens a session as a proxy does. Returns the connection after the head of the answer.
async fn session(gateway: &Place) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let head = format!(
        "GET /v1/sealed HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        gateway.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.unwrap());
    }
    (socket, String::from_utf8(answer).unwrap())
}

/// Sends the beginning of a binary message of 8 MB that has no end.
async fn begin_message(socket: &mut TcpStream, bytes: usize) -> std::io::Result<()> {
    let mut begin = vec![0x02, 0x80 | 127];
    begin.extend(8_000_000_u64.to_be_bytes());
    begin.extend([0; 4]);
    begin.resize(begin.len() + bytes, 0);
    socket.write_all(&begin).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m1_messages_that_do_not_end_take_a_bounded_memory_of_one_tenant() {
    let gateway = Place::sealed(Limits::default()).await;
    let mut sessions = Vec::new();
    for _ in 0..40 {
        let (mut socket, answer) = session(&gateway).await;
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        // The gateway ends the connection when the tenant has no memory left.
        let _ = begin_message(&mut socket, 7_900_000).await;
        sessions.push(socket);
    }
    let mut open = 0;
    for socket in &mut sessions {
        // A session that is open sends a ping and waits.
        let mut pings = Vec::new();
        let ended = timeout(Duration::from_millis(50), socket.read_to_end(&mut pings)).await;
        open += usize::from(ended.is_err());
    }
    // Half of 384 MiB has room for 25 of them.
    assert!((10..=26).contains(&open), "{open} of 40");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_a_session_declares_one_reply_queue() {
    let gateway = Place::sealed(Limits::default()).await;
    let broker = GatewayBroker::new(&format!("http://{}", gateway.address), &gateway.key).unwrap();
    let connection = broker.connect("one queue").await.unwrap();
    let [first, second] = [1, 2].map(reply_queue);
    connection.declare_reply_queue(&first).await.unwrap();
    // A client that subscribes again declares it again.
    connection.declare_reply_queue(&first).await.unwrap();
    let refused = connection.declare_reply_queue(&second).await.unwrap_err();
    assert!(refused.to_string().contains("one reply queue"), "{refused}");
}

/// Returns the word at `index` of a reply.
fn word(index: usize) -> String {
    said(7, index + 1).split(' ').nth(index).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_the_proxy_cancels_its_request() {
    let gateway = Place::sealed(Limits::default()).await;
    let proxy = proxy(&gateway).await;
    let prompt = "20 left at the proxy";
    let mut client = proxy.open(PATH, &ask(prompt, 1000), &[]).await;
    client.until("\"finish_reason\":null").await;
    drop(client);
    within(TEST_TIMEOUT, "the run goes on", || runs(prompt).iter().all(|run| run.ended)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limits_of_the_key_hold_for_sealed_requests() {
    let limits = Limits { concurrent: Some(1), ..Limits::default() };
    let gateway = Place::sealed(limits).await;
    let proxy = gateway.proxy(gateway.address, &gateway.other, "two").await.unwrap();
    let mut first = proxy.open(PATH, &ask("20 first of the key", 1000), &[]).await;
    first.until("\"finish_reason\":null").await;
    let second = proxy.post(PATH, &ask("1 second of the key", 1), &[]).await;
    assert_eq!((second.status, second.code().as_str()), (503, "queue_full"));
    drop(first);
    let started = std::time::Instant::now();
    while proxy.post(PATH, &ask("1 third of the key", 1), &[]).await.status == 503 {
        assert!(started.elapsed() < TEST_TIMEOUT, "a request that was canceled still counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_let_in_only_for_what_its_key_allows() {
    let gateway = Place::sealed(Limits::default()).await;
    let refused = async |address: SocketAddr, key: &str| {
        let error = gateway.proxy(address, key, "one").await.err().unwrap();
        let mut told = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            told = format!("{told}: {error}");
            cause = error.source();
        }
        told
    };
    let disabled = refused(gateway.address, &gateway.disabled).await;
    assert!(disabled.contains("API key is not valid"), "{disabled}");
    let closed = Place::new().await;
    let unserved = refused(closed.address, &closed.key).await;
    assert!(unserved.contains("takes no sealed requests"), "{unserved}");
    // Another tenant than that of the key, and a model that the gateway does not serve.
    let foreign = gateway.proxy(gateway.address, &gateway.key, "two").await.unwrap();
    let answer = foreign.post(PATH, &ask("1 of another tenant", 1), &[]).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "gateway_refused"));
    assert!(answer.body.contains("another tenant"), "{answer:?}");
    let proxy = proxy(&gateway).await;
    let absent = json!({ "model": "absent", "prompt": "1 x" });
    let absent = proxy.post(PATH, &absent, &[]).await;
    assert_eq!((absent.status, absent.code().as_str()), (500, "gateway_refused"));
    assert!(absent.body.contains("no such model"), "{absent:?}");
    let plain = gateway.get("/v1/sealed").await;
    assert_eq!((plain.status, plain.code().as_str()), (400, "upgrade_required"));
    let anonymous = gateway.raw(&request("GET", "/v1/sealed", "", "", &[])).await;
    assert_eq!(anonymous.status, 401);
}
