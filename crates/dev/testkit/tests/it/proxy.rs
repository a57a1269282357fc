//! Tests of the proxy's faults.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use nsbridge_testkit::Proxy;

/// Starts an echo server behind a proxy.
fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &socket, &mut &socket));
        }
    });
    Proxy::to(addr).unwrap()
}

fn connect(proxy: &Proxy) -> TcpStream {
    let socket = TcpStream::connect(proxy.addr()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[track_caller]
fn answers(socket: &mut TcpStream) {
    socket.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

#[track_caller]
fn is_closed(socket: &mut TcpStream) {
    let read = socket.read(&mut [0]);
    let closed = match &read {
        Ok(count) => *count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    assert!(closed, "{read:?}");
}

/// Sends and receives through another proxy, often enough that a connection which is not frozen has
/// passed on what was sent before.
fn meanwhile() {
    let proxy = echo();
    let mut socket = connect(&proxy);
    (0..1000).for_each(|_| answers(&mut socket));
}

/// Checks that a connection is open and that nothing has arrived.
#[track_caller]
fn is_silent(socket: &mut TcpStream) {
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
}

#[test]
fn a_cut_closes_what_is_open_and_nothing_new() {
    let proxy = echo();
    let mut before = connect(&proxy);
    answers(&mut before);
    proxy.cut();
    is_closed(&mut before);
    answers(&mut connect(&proxy));
}

#[test]
fn a_refusing_proxy_closes_new_connections_and_keeps_old_ones() {
    let proxy = echo();
    let mut before = connect(&proxy);
    answers(&mut before);
    proxy.refuse();
    is_closed(&mut connect(&proxy));
    answers(&mut before);
    proxy.accept();
    answers(&mut connect(&proxy));
}

#[test]
fn a_frozen_proxy_holds_everything_back_until_it_thaws() {
    let proxy = echo();
    let mut socket = connect(&proxy);
    answers(&mut socket);
    proxy.freeze();
    socket.write_all(b"hello").unwrap();
    meanwhile();
    is_silent(&mut socket);
    proxy.thaw();
    let mut answer = [0; 5];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

/// Sends an AMQP client's connection name, and reads it back from the echo server.
fn introduce(proxy: &Proxy, name: &str) -> TcpStream {
    let mut socket = connect(proxy);
    let mut hello = b"AMQP\x00\x00\x09\x01\x0fconnection_nameS".to_vec();
    hello.extend((name.len() as u32).to_be_bytes());
    hello.extend(name.as_bytes());
    socket.write_all(&hello).unwrap();
    socket.read_exact(&mut vec![0; hello.len()]).unwrap();
    socket
}

#[test]
fn a_cut_by_name_spares_the_others() {
    let proxy = echo();
    let mut publishes = introduce(&proxy, "w1 publish");
    let mut consumes = introduce(&proxy, "w1 consume");
    assert_eq!(proxy.names(), ["w1 publish", "w1 consume"]);
    assert_eq!(proxy.cut_named(" publish"), 1);
    is_closed(&mut publishes);
    answers(&mut consumes);
}

#[test]
fn what_a_frozen_connection_held_is_lost_with_a_cut() {
    let sink = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(sink.local_addr().unwrap()).unwrap();
    let mut socket = connect(&proxy);
    socket.write_all(b"AMQP\x00\x00\x09\x01\x0fconnection_nameS\x00\x00\x00\x02w1").unwrap();
    let (mut server, _) = sink.accept().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    server.read_exact(&mut [0; 31]).unwrap();
    proxy.freeze_named("w1");
    socket.write_all(b"never seen").unwrap();
    meanwhile();
    proxy.cut_named("w1");
    let mut rest = Vec::new();
    let _ = server.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

#[test]
fn a_freeze_by_name_spares_the_others_and_holds_newcomers() {
    let proxy = echo();
    let mut frozen = introduce(&proxy, "w1 consume");
    let mut free = introduce(&proxy, "w2 consume");
    proxy.freeze_named("w1");
    answers(&mut free);
    frozen.write_all(b"hello").unwrap();
    let mut newcomer = connect(&proxy);
    newcomer.write_all(b"\x0fconnection_nameS\x00\x00\x00\x02w1").unwrap();
    meanwhile();
    for socket in [&mut frozen, &mut newcomer] {
        is_silent(socket);
    }
    proxy.thaw();
    frozen.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 5];
    frozen.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

#[test]
fn a_torn_connection_forwards_half_a_piece_and_new_ones_are_whole() {
    let proxy = echo();
    let mut socket = connect(&proxy);
    answers(&mut socket);
    proxy.tear();
    socket.write_all(b"hello!").unwrap();
    is_closed(&mut socket);
    answers(&mut connect(&proxy));
}
