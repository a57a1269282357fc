//! Publisher without a key: publishes all that the broker permissions of a client allow.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nsbridge_protocol::topology::{CONTROL_EXCHANGE, model_queue, reply_queue};
use nsbridge_queue::{Broker, Header, Message};
use tokio::time::{Instant, sleep, timeout};

use crate::random::Random;
use crate::stage::Stage;
use crate::verdict::Verdict;

const EVERY: Duration = Duration::from_millis(20);

/// Time limit for a publisher confirm, for messages of any size.
const CONFIRM_WITHIN: Duration = Duration::from_secs(60);

/// Publishes random messages until the time is over.
pub(crate) async fn attack(
    stage: Arc<Stage>,
    mut random: Random,
    until: Instant,
    verdict: Arc<Verdict>,
) -> Result<()> {
    let broker = stage.broker()?;
    let connection = broker.connect("publisher without a key").await?;
    let mut publisher = connection.publisher().await?;
    let queue = model_queue(&stage.model);
    while Instant::now() < until {
        let (name, exchange, key, message) = draw(&mut random, &queue, stage.model.as_str());
        let began = Instant::now();
        let sent = timeout(CONFIRM_WITHIN, async {
            publisher.publish(exchange, &key, message).await?.await
        });
        let ended = match sent.await {
            Ok(Ok(confirmed)) => format!("{confirmed:?}").to_lowercase(),
            // The broker closes the channel for some of the messages.
            Ok(Err(_)) => "refused by the broker".to_owned(),
            Err(_) => "not confirmed".to_owned(),
        };
        if !ended.starts_with("taken") && !ended.starts_with("returned") {
            publisher = if let Ok(anew) = connection.publisher().await {
                anew
            } else {
                broker.connect("publisher without a key").await?.publisher().await?
            };
        }
        verdict.made(name, &ended, began.elapsed());
        sleep(EVERY).await;
    }
    Ok(())
}

/// Draws a message with its name, exchange and routing key.
fn draw(
    random: &mut Random,
    queue: &str,
    model: &str,
) -> (&'static str, &'static str, String, Message) {
    let to_queue = |name, message| (name, "", queue.to_owned(), message);
    match random.below(1000) {
        0 => to_queue("120 MB", Message::new(vec![b'x'; 120 << 20])),
        1..=4 => to_queue("20 MB under our magic", Message::new(magic(random, 20 << 20))),
        5..=300 => {
            let size = random.of(&[0, 1, 100, 5000, 100_000]);
            let mut message = Message::new(random.bytes(size));
            spoil(random, &mut message, queue);
            to_queue("garbage", message)
        }
        301..=600 => {
            let size = random.of(&[4, 40, 400, 4000]);
            let mut message = Message::new(magic(random, size));
            spoil(random, &mut message, queue);
            to_queue("garbage under our magic", message)
        }
        601..=900 => {
            let size = random.of(&[1, 60, 200, 5000, 500_000]);
            let mut message = Message::new([&b"NSBC\x01"[..], &random.bytes(size)].concat());
            spoil(random, &mut message, queue);
            ("garbage for control", CONTROL_EXCHANGE, model.to_owned(), message)
        }
        901..=902 => {
            let message = Message::new(vec![0; 30 << 20]);
            ("30 MB for control", CONTROL_EXCHANGE, model.to_owned(), message)
        }
        _ => {
            let key = reply_queue(u128::from(random.next()));
            ("frames without a receiver", "", key, Message::new(random.bytes(200)))
        }
    }
}

fn magic(random: &mut Random, size: usize) -> Vec<u8> {
    let version = random.of(&[0, 1, 1, 1, 1, 2, 255]);
    let mut bytes = [&b"NSBQ"[..], &[version, 1]].concat();
    bytes.extend(random.bytes(size.min(4096)));
    bytes.resize(size.max(6), 7);
    bytes
}

/// Sets false headers and properties.
fn spoil(random: &mut Random, message: &mut Message, queue: &str) {
    let properties = &mut message.properties;
    properties.reply_to = match random.below(5) {
        0 => None,
        1 => Some(queue.to_owned()),
        2 => Some("\u{202e}../../etc/passwd".to_owned()),
        3 => Some("x".repeat(255)),
        _ => Some(reply_queue(u128::from(random.next()))),
    };
    properties.expiration =
        (random.below(3) == 0).then(|| Duration::from_millis(random.next() >> 40));
    properties.persistent = random.below(2) == 0;
    for name in
        ["x-delivery-count", "nsb-epoch", "nsb-tries", "nsb-revision", "traceparent", "x-death"]
    {
        if random.below(3) == 0 {
            let value = match random.below(3) {
                0 => Header::Int(random.next() as i64),
                1 => Header::Int(random.of(&[0, -1, 1, 65_535, 65_536])),
                _ => Header::Text("x".repeat(random.below(300))),
            };
            properties.headers.insert(name.to_owned(), value);
        }
    }
}
