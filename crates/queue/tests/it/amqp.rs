//! Tests that apply only to the RabbitMQ backend.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_queue::{
    AmqpBroker, Broker, Confirmation, Error, Limits, Message, Publisher, ReconnectingConnection,
    Timing,
};
use nsbridge_testkit::{Proxy, amqp_url};

/// Starts a proxy in front of RabbitMQ; returns it with the broker's address through it.
pub(crate) fn proxied() -> (Proxy, String) {
    let url = amqp_url();
    let host = url.rsplit_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = Proxy::to(host.parse().unwrap()).unwrap();
    let url = url.replace(host, &proxy.addr().to_string());
    (proxy, url)
}

fn reply_queue() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    nsbridge_protocol::topology::reply_queue(now.as_nanos())
}

/// Blocks the only thread of the caller's runtime, for longer than the broker waits for a heartbeat.
#[tokio::test(flavor = "current_thread")]
async fn a_caller_that_blocks_its_runtime_keeps_its_connection() {
    let broker = AmqpBroker::new(&format!("{}?heartbeat=1", amqp_url())).unwrap();
    let connection = broker.connect("blocked caller").await.unwrap();
    let queue = reply_queue();
    connection.declare_reply_queue(&queue).await.unwrap();

    let blocked = Instant::now();
    while blocked.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(100));
    }

    let lost = tokio::time::timeout(Duration::from_millis(100), connection.lost());
    assert!(lost.await.is_err(), "the connection was lost");
    assert_eq!(connection.depth(&queue).await.unwrap().messages, 0);
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let url = amqp_url().replace("guest:guest", "guest:secret");
    let error = AmqpBroker::new(&url).unwrap().connect("denied").await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("secret"));
}

#[tokio::test]
async fn a_wrong_virtual_host_is_denied() {
    let url = amqp_url().replace("%2f", "nowhere");
    let error = AmqpBroker::new(&url).unwrap().connect("denied").await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_unreachable() {
    let error = AmqpBroker::new("amqp://127.0.0.1:1").unwrap().connect("nobody").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

/// Returns the nodes that hold a connection of this name.
fn holders<'a>(nodes: &'a [Proxy], name: &str) -> Vec<&'a Proxy> {
    nodes.iter().filter(|node| node.names().iter().any(|each| each.contains(name))).collect()
}

#[tokio::test]
async fn connections_to_a_cluster_begin_at_a_node_by_chance_and_pass_over_one_that_is_gone() {
    let (nodes, urls): (Vec<Proxy>, Vec<String>) = (0..3).map(|_| proxied()).unzip();
    let urls = urls.join(",");
    let mut first = Vec::new();
    let mut connections = Vec::new();
    while !nodes.iter().all(|node| first.contains(&node.addr())) {
        let (broker, name) = (AmqpBroker::new(&urls).unwrap(), format!("first {}", first.len()));
        connections.push(broker.connect(&name).await.unwrap());
        first.push(holders(&nodes, &name)[0].addr());
        assert!(first.len() < 200, "a node of three is never the first: {first:?}");
    }

    let broker = AmqpBroker::new(&urls).unwrap();
    connections.push(broker.connect("stays a").await.unwrap());
    connections.push(broker.connect("stays b").await.unwrap());
    let home = holders(&nodes, "stays a")[0];
    assert_eq!(holders(&nodes, "stays b")[0].addr(), home.addr());

    home.refuse();
    connections.push(broker.connect("moves a").await.unwrap());
    let next = holders(&nodes, "moves a")[0];
    assert_ne!(next.addr(), home.addr());
    home.accept();
    connections.push(broker.connect("moves b").await.unwrap());
    assert_eq!(holders(&nodes, "moves b")[0].addr(), next.addr(), "it is tried first from now on");

    assert!(broker.listens().await);
    nodes[1..].iter().for_each(Proxy::refuse);
    assert!(broker.listens().await, "one node listens");
    nodes[0].refuse();
    assert!(!broker.listens().await);
    let error = broker.connect("nowhere").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_node_that_refuses_the_login_is_told_before_one_that_is_gone() {
    let refused = amqp_url().replace("guest:guest", "guest:secret");
    for urls in [format!("{refused},amqp://127.0.0.1:1"), format!("amqp://127.0.0.1:1,{refused}")] {
        let error = AmqpBroker::new(&urls).unwrap().connect("denied").await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(!format!("{error:?} {error}").contains("secret"));
    }
}

#[tokio::test]
async fn a_queue_declared_with_other_arguments_is_told_in_one_sentence() {
    let ours = AmqpBroker::new(&amqp_url()).unwrap().connect("ours").await.unwrap();
    let other = Limits { reply_queue_bytes: 1, ..Limits::default() };
    let other = AmqpBroker::with_limits(&amqp_url(), other).unwrap();
    let other = other.connect("other").await.unwrap();
    let queue = reply_queue();
    other.declare_reply_queue(&queue).await.unwrap();
    let error = ours.declare_reply_queue(&queue).await.unwrap_err();
    assert!(matches!(error, Error::Topology { .. }), "{error:?}");
    let sentence = error.to_string();
    assert!(sentence.contains(&queue) && sentence.contains("x-max-length-bytes"), "{sentence}");
    // A failed declaration closes only its own channel.
    ours.declare_reply_queue(&reply_queue()).await.unwrap();
}

#[tokio::test]
async fn a_channel_is_stale_once_it_is_refused_and_no_longer_new() {
    for (fresh_channel, is_stale) in [(Duration::ZERO, true), (Duration::from_secs(60), false)] {
        let limits = Limits { reply_queue_bytes: 16, ..Limits::default() };
        let mut timing = Timing::default();
        timing.fresh_channel = fresh_channel;
        let broker = AmqpBroker::with_limits(&amqp_url(), limits).unwrap().with_timing(timing);
        let connection = broker.connect("refused").await.unwrap();
        let queue = reply_queue();
        connection.declare_reply_queue(&queue).await.unwrap();
        let publisher = connection.publisher().await.unwrap();
        let publish = async || {
            publisher.publish("", &queue, Message::new(vec![0; 8])).await.unwrap().await.unwrap()
        };
        assert_eq!(publish().await, Confirmation::Ack);
        assert!(!publisher.is_stale(), "nothing was refused");
        while publish().await == Confirmation::Ack {}
        assert_eq!(publisher.is_stale(), is_stale);
        assert!(!connection.publisher().await.unwrap().is_stale(), "a new channel");
    }
}

/// A broker without a majority refuses after seconds. Such a refusal must not cost one new channel after
/// the other.
#[tokio::test]
async fn a_slow_refusal_of_what_was_published_on_a_new_channel_is_believed() {
    let (proxy, url) = proxied();
    let limits = Limits { reply_queue_bytes: 16, ..Limits::default() };
    let mut timing = Timing::default();
    timing.fresh_channel = Duration::from_millis(500);
    let broker = AmqpBroker::with_limits(&url, limits).unwrap().with_timing(timing.clone());
    let connection = broker.connect("refused late").await.unwrap();
    let queue = reply_queue();
    connection.declare_reply_queue(&queue).await.unwrap();
    let message = || Message::new(vec![0; 8]);
    let filling = connection.publisher().await.unwrap();
    while filling.publish("", &queue, message()).await.unwrap().await.unwrap() == Confirmation::Ack
    {
    }

    let publisher = connection.publisher().await.unwrap();
    let opened = Instant::now();
    proxy.freeze();
    let confirm = publisher.publish("", &queue, message()).await.unwrap();
    while opened.elapsed() < 2 * timing.fresh_channel {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.thaw();
    assert_eq!(confirm.await.unwrap(), Confirmation::Nack);
    assert!(!publisher.is_stale());
    let again = publisher.publish("", &queue, message()).await.unwrap();
    assert_eq!(again.await.unwrap(), Confirmation::Nack);
    assert!(publisher.is_stale(), "the channel is no longer new");
}

#[tokio::test]
async fn a_peer_that_falls_silent_is_noticed_by_its_missing_heartbeats() {
    let (proxy, url) = proxied();
    let broker = AmqpBroker::new(&format!("{url}?heartbeat=1")).unwrap();
    let connection = broker.connect("silent").await.unwrap();
    proxy.freeze();
    let lost = tokio::time::timeout(Duration::from_secs(20), connection.lost()).await;
    assert!(lost.is_ok(), "two seconds without a heartbeat went unnoticed");
}

#[tokio::test]
async fn headers_that_are_nested_without_end_are_a_message_like_others() {
    let broker = AmqpBroker::new(&amqp_url()).unwrap();
    let connection = broker.connect("reader").await.unwrap();
    let queue = reply_queue();
    connection.declare_reply_queue(&queue).await.unwrap();
    let mut consumer = connection.consume(&queue, 8).await.unwrap();
    publish_nested(&queue, 20_000);
    publish_nested(&queue, 2);
    for _ in 0..2 {
        let message = tokio::time::timeout(Duration::from_secs(10), consumer.recv());
        let delivery = message.await.unwrap().expect("the connection lives on");
        assert_eq!(delivery.message.body, b"body");
        delivery.ack().await.unwrap();
    }
}

/// Publishes a message with this many nested arrays, written without lapin, which could not encode
/// it.
fn publish_nested(queue: &str, times: u32) {
    let url = amqp_url();
    let host = url.rsplit_once('@').unwrap().1.split('/').next().unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let mut answers = stream.try_clone().unwrap();
    stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
    let short = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let long = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    let mut send = |kind: u8, channel: u8, parts: &[&[u8]]| {
        let payload = long(&parts.concat());
        stream.write_all(&[&[kind, 0, channel], &payload[..], &[0xce]].concat()).unwrap();
    };
    // Reads a frame and returns its payload.
    let mut answer = || {
        let mut head = [0; 7];
        answers.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes(head[3..].try_into().unwrap()) as usize + 1];
        answers.read_exact(&mut payload).unwrap();
        payload
    };
    // connection.start, .start-ok, .tune, .tune-ok, .open, .open-ok
    answer();
    let login = [&[0; 4][..], &short("PLAIN"), &long(b"\0guest\0guest"), &short("en_US")].concat();
    send(1, 0, &[&[0, 10, 0, 11], &login]);
    let tune = answer();
    send(1, 0, &[&[0, 10, 0, 31], &tune[4..10], &[0, 0]]);
    send(1, 0, &[&[0, 10, 0, 40], &short("/"), &[0, 0]]);
    answer();
    // channel.open, .open-ok
    send(1, 1, &[&[0, 20, 0, 10], &[0]]);
    answer();
    // basic.publish
    send(1, 1, &[&[0, 60, 0, 40, 0, 0], &short(""), &short(queue), &[0]]);
    let arrays =
        (0..times).rev().flat_map(|inner| [&b"A"[..], &(5 * inner).to_be_bytes()].concat());
    let headers = long(&[&short("a")[..], &arrays.collect::<Vec<u8>>()].concat());
    send(2, 1, &[&[0, 60, 0, 0], &4_u64.to_be_bytes(), &0x2000_u16.to_be_bytes(), &headers]);
    send(3, 1, &[b"body"]);
    // channel.close, .close-ok: the message has been accepted by then.
    send(1, 1, &[&[0, 20, 0, 40], &[0, 200], &short("done"), &[0; 4]]);
    assert_eq!(answer()[..4], [0, 20, 0, 41]);
}

/// A proxy accepts connections even without a broker behind it.
#[tokio::test]
async fn an_open_port_without_a_broker_behind_it_does_not_listen() {
    assert!(AmqpBroker::new(&amqp_url()).unwrap().listens().await);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("amqp://guest:guest@{}/%2f", silent.local_addr().unwrap());
    let proxy = std::thread::spawn(move || drop(silent.accept().unwrap()));
    let broker = AmqpBroker::new(&url).unwrap();
    assert!(!broker.listens().await, "it hung up");
    proxy.join().unwrap();
    assert!(!broker.listens().await, "nothing is there");
}

/// Time limit under test.
const TESTED_TIMEOUT: Duration = Duration::from_millis(200);

/// Time after which a test gives up.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a port that takes connections and never answers.
fn silent() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("amqp://guest:guest@{}/%2f", listener.local_addr().unwrap());
    (listener, url)
}

#[tokio::test]
async fn an_attempt_to_connect_to_a_silent_port_has_a_time_limit() {
    let (_listener, url) = silent();
    let mut timing = Timing::default();
    timing.connect_limit = TESTED_TIMEOUT;
    let broker = AmqpBroker::new(&url).unwrap().with_timing(timing);
    let attempt = tokio::time::timeout(TEST_TIMEOUT, broker.connect("silent")).await;
    let error = attempt.expect("the limit of a connection attempt").unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(cause.as_deref(), Some("no answer within 0.2 seconds"), "{error:?}");
}

#[tokio::test]
async fn a_probe_of_a_silent_port_has_a_time_limit() {
    let (_listener, url) = silent();
    let mut timing = Timing::default();
    timing.probe_limit = TESTED_TIMEOUT;
    let broker = AmqpBroker::new(&url).unwrap().with_timing(timing);
    let listens = tokio::time::timeout(TEST_TIMEOUT, broker.listens()).await;
    assert_eq!(listens, Ok(false));
}

#[tokio::test]
async fn a_close_that_the_broker_does_not_answer_has_a_time_limit() {
    let (proxy, url) = proxied();
    let mut timing = Timing::default();
    timing.close_limit = TESTED_TIMEOUT;
    let broker = AmqpBroker::new(&url).unwrap().with_timing(timing);
    let connection = broker.connect("frozen").await.unwrap();
    proxy.freeze();
    let closed = tokio::time::timeout(TEST_TIMEOUT, connection.close()).await;
    assert!(closed.is_ok(), "the limit of a closing handshake");
    connection.lost().await;
}

#[tokio::test]
async fn a_large_message_passes_a_connection_with_small_frames() {
    let broker = AmqpBroker::new(&amqp_url()).unwrap().with_frame_max(8 << 10);
    let connection = broker.connect("small frames").await.unwrap();
    let queue = reply_queue();
    connection.declare_reply_queue(&queue).await.unwrap();
    let mut replies = connection.consume(&queue, 1).await.unwrap();
    let publisher = connection.publisher().await.unwrap();
    let body: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
    let confirm = publisher.publish("", &queue, Message::new(body.clone())).await.unwrap();
    assert_eq!(confirm.await.unwrap(), Confirmation::Ack);
    assert!(replies.recv().await.unwrap().message.body == body);
}

/// The broker closes the channel of a publish that it refuses, and lapin never uses that id again.
#[tokio::test]
async fn channels_that_the_broker_closed_use_up_no_connection_for_good() {
    let broker = AmqpBroker::new(&format!("{}?channel_max=4", amqp_url())).unwrap();
    let connection = ReconnectingConnection::new(Arc::new(broker), "refused".to_owned());
    let mut refused = 0;
    for _ in 0..40 {
        // A connection without a free id is replaced.
        let Ok(publisher) = connection.connection().await.publisher().await else { continue };
        let message = Message::new(b"refused".to_vec());
        let confirm = publisher.publish("no.such.exchange", "key", message).await.unwrap();
        assert!(matches!(confirm.await, Err(Error::Lost { .. })));
        refused += 1;
    }
    assert!(refused >= 20, "only {refused} of 40 channels were opened");
    let publisher = open_publisher(&connection).await;
    let message = Message::new(b"returned".to_vec());
    let confirm = publisher.publish("amq.direct", "no.such.key", message).await.unwrap();
    assert_eq!(confirm.await.unwrap(), Confirmation::Returned);
}

async fn open_publisher(connection: &ReconnectingConnection) -> Box<dyn Publisher> {
    for _ in 0..2 {
        if let Ok(publisher) = connection.connection().await.publisher().await {
            return publisher;
        }
    }
    panic!("neither this connection nor the next one opens a channel");
}
