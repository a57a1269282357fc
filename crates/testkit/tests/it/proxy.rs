//! What the proxy does to a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use nsbridge_testkit::Proxy;

/// A server that sends back what it gets.
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
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let silence = socket.read(&mut [0]).unwrap_err().kind();
    assert!(matches!(silence, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence:?}");
    proxy.thaw();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 5];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}
