//! Tests of the private node.

use std::net::TcpStream;

use nsbridge_testkit::Rabbit;

#[test]
fn a_node_restarts_on_the_same_port_and_is_gone_when_dropped() {
    let mut rabbit = Rabbit::start().unwrap();
    let (url, addr) = (rabbit.url(), rabbit.addr());
    TcpStream::connect(addr).unwrap();

    rabbit.stop().unwrap();
    TcpStream::connect(addr).unwrap_err();
    rabbit.restart().unwrap();
    assert_eq!(rabbit.url(), url);
    TcpStream::connect(addr).unwrap();
    rabbit.crash().unwrap();
    TcpStream::connect(addr).unwrap();
    assert!(rabbit.ctl(&["status"]).unwrap().contains("RabbitMQ"));

    drop(rabbit);
    TcpStream::connect(addr).unwrap_err();
}
