//! Publish rate with 256 outstanding confirms, compared with plain lapin on the same broker.
//!
//! Run `cargo bench -p nsbridge-queue --bench publish`. The benchmark needs RabbitMQ, as the tests
//! do. CPU time is that of this process alone; on a busy machine it is more meaningful than the
//! rate.

#![expect(clippy::unwrap_used, reason = "a benchmark ends where it fails")]
#![expect(clippy::print_stdout, reason = "the figures are what this prints")]

use std::collections::VecDeque;
use std::time::Instant;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, ConnectionProperties};
use nsbridge_queue::{AmqpBroker, Broker, Connection, Message};
use nsbridge_testkit::amqp_url;

const MESSAGES: u32 = 100_000;
const WINDOW: usize = 256;
const BYTES: usize = 256;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let broker = AmqpBroker::new(&amqp_url()).unwrap();
    for round in 1..=3 {
        let connection = broker.connect("bench").await.unwrap();
        let queue = format!("nsbridge.reply.bench{}.{round}", std::process::id());
        connection.declare_reply_queue(&queue).await.unwrap();
        let drain = connection.consume(&queue, 1000).await.unwrap();
        drop(drain);
        timed("nsbridge-queue", ours(&*connection, &queue)).await;
        timed("lapin", lapins(&queue)).await;
    }
}

async fn ours(connection: &dyn Connection, queue: &str) {
    let publisher = connection.publisher().await.unwrap();
    let mut window = VecDeque::with_capacity(WINDOW);
    for _ in 0..MESSAGES {
        let message = Message::new(vec![7; BYTES]);
        window.push_back(publisher.publish("", queue, message).await.unwrap());
        if window.len() == WINDOW {
            window.pop_front().unwrap().await.unwrap();
        }
    }
    for confirm in window {
        confirm.await.unwrap();
    }
}

async fn lapins(queue: &str) {
    let properties = ConnectionProperties::default();
    let connection = lapin::Connection::connect(&amqp_url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let mut window = VecDeque::with_capacity(WINDOW);
    for _ in 0..MESSAGES {
        let properties = BasicProperties::default().with_delivery_mode(1);
        let body = vec![7; BYTES];
        let published = channel.basic_publish("".into(), queue.into(), options, &body, properties);
        window.push_back(published.await.unwrap());
        if window.len() == WINDOW {
            window.pop_front().unwrap().await.unwrap();
        }
    }
    for confirm in window {
        confirm.await.unwrap();
    }
}

async fn timed(name: &str, work: impl Future<Output = ()>) {
    let (clock, processor) = (Instant::now(), processor_ticks());
    work.await;
    let (seconds, ticks) = (clock.elapsed().as_secs_f64(), processor_ticks() - processor);
    let each = ticks * 10_000.0 / f64::from(MESSAGES);
    println!(
        "{name}: {:.0} publishes a second, {each:.1} us of processor each",
        f64::from(MESSAGES) / seconds
    );
}

/// Returns the CPU time of this process so far, in hundredths of a second, from Linux's `/proc`.
fn processor_ticks() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
}
