//! `nsbridge health` of a worker, of a gateway, and of servers that are neither.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::door::Door;
use crate::place::{Place, output, until};

/// Returns the exit code of the check and what it says.
fn health(arguments: &[&str]) -> (Option<i32>, String) {
    let (done, out, err) = output(&[&["health"], arguments].concat());
    let said = format!("{out}{err}");
    assert_eq!(said.lines().count(), 1, "{said}");
    (done.status.code(), said)
}

#[track_caller]
fn check(arguments: &[&str], code: i32, part: &str) {
    let (ended, said) = health(arguments);
    assert!(ended == Some(code) && said.contains(part), "{arguments:?}: {said}");
}

/// Returns an address that was free a moment ago.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_worker_is_alive_loaded_and_ready_until_it_is_gone() {
    let (place, address) = (Place::new(), free());
    let listen = [("NSBRIDGE_HEALTH__LISTEN", address.clone())];
    let worker = place.worker_in(&listen);
    check(&["--address", &address], 0, "is alive");
    check(&["--address", &address, "--loaded"], 0, "is alive and loaded");
    until(|| health(&["--address", &address, "--ready"]).0 == Some(0));
    drop(worker);
    check(
        &["--address", &address],
        1,
        &format!("no answer from http://{address}/livez: cannot connect"),
    );
}

#[test]
fn a_gateway_is_alive_and_ready() {
    let door = Door::new();
    let address = free();
    let config = door.place.path("gateway.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let metrics = format!("[server]\nmetrics = \"{address}\"\n");
    std::fs::write(&config, text.replace("[server]\n", &metrics)).unwrap();
    let _gateway = door.open();
    check(&["--address", &address], 0, "is alive");
    check(&["--address", &address, "--ready"], 0, "is ready");
    // A gateway has no model to load.
    check(&["--address", &address, "--loaded"], 1, "does not say");
}

/// Serves one request with this text, or with nothing until its client leaves.
fn answering(text: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        match text {
            Some(text) => stream.write_all(text.as_bytes()).unwrap(),
            None => drop(stream.read_to_end(&mut Vec::new())),
        }
    });
    address
}

#[test]
fn a_worker_that_is_not_well_is_told_with_the_reason() {
    let loading = "HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{\"loaded\":false}";
    check(&["--address", &answering(Some(loading))], 0, "is alive");
    check(
        &["--address", &answering(Some(loading)), "--loaded"],
        1,
        "does not say that the model is loaded",
    );
    let page = "{\"alive\":false,\"loaded\":true,\"consuming\":false,\"draining\":false}";
    let dead = format!("HTTP/1.1 503 No\r\ncontent-length: {}\r\n\r\n{page}", page.len());
    let address = answering(Some(dead.leak()));
    check(
        &["--address", &address],
        1,
        "/livez answers 503 Service Unavailable: `consuming` is false",
    );
}

#[test]
fn what_is_no_answer_is_one_sentence_within_the_limit() {
    check(&["--address", &answering(Some("SSH-2.0\r\n"))], 1, "not HTTP");
    check(&["--address", &answering(None)], 1, "no answer within 5000 ms");
}
