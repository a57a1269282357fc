//! Reference traffic by lapin alone: no sealing, no JSON, no merging.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

/// Size on the wire of a sealed frame with one piece of 256 bytes.
const FRAME: usize = 384;

/// Maximum number of unconfirmed messages per channel, equal to a worker's reply window.
const WINDOW: usize = 256;

/// Consumer prefetch, equal to a client's.
const PREFETCH: u16 = 512;

/// Publishes `streams * frames` messages to one queue, and reads and acks them on another
/// connection. Each stream has a channel of one shared connection, and each message is mandatory
/// and confirmed. Returns the messages per second.
pub(crate) async fn frames_per_s(url: &str, streams: usize, frames: usize) -> Result<f64> {
    let (sender, receiver) = (connect(url).await?, connect(url).await?);
    let channel = receiver.create_channel().await?;
    let queue = declare(&channel, "classic").await?;
    let consumer = consume(&channel, &queue).await?;
    let reading = tokio::spawn(read(consumer, streams * frames));
    let started = Instant::now();
    let mut writing = Vec::new();
    for _ in 0..streams {
        let channel = sender.create_channel().await?;
        writing.push(tokio::spawn(write(channel, queue.clone(), frames)));
    }
    for task in writing {
        task.await??;
    }
    reading.await??;
    let rate = (streams * frames) as f64 / started.elapsed().as_secs_f64();
    close([sender, receiver]).await;
    Ok(rate)
}

/// Sends plain requests through a quorum queue and replies through a classic queue, one at a time.
/// Returns each round trip in milliseconds.
pub(crate) async fn round_trip_ms(url: &str, requests: usize) -> Result<Vec<f64>> {
    let (client, worker) = (connect(url).await?, connect(url).await?);
    let (asking, answering) = (client.create_channel().await?, worker.create_channel().await?);
    let (requests_queue, replies_queue) =
        (declare(&answering, "quorum").await?, declare(&asking, "classic").await?);
    let mut replies = consume(&asking, &replies_queue).await?;
    let jobs = consume(&answering, &requests_queue).await?;
    asking.confirm_select(ConfirmSelectOptions::default()).await?;
    let answering = tokio::spawn(answer(jobs, answering, replies_queue, requests));
    let mut times = Vec::new();
    for _ in 0..requests {
        let started = Instant::now();
        publish(&asking, &requests_queue, 2).await?.await?;
        let reply = replies.next().await.context("the reply queue is gone")??;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        reply.ack(BasicAckOptions::default()).await?;
    }
    answering.await??;
    close([client, worker]).await;
    Ok(times)
}

async fn answer(mut jobs: Consumer, channel: Channel, to: String, count: usize) -> Result<()> {
    for _ in 0..count {
        let job = jobs.next().await.context("the request queue is gone")??;
        publish(&channel, &to, 1).await?;
        job.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

async fn write(channel: Channel, queue: String, frames: usize) -> Result<()> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut window = VecDeque::new();
    for _ in 0..frames {
        if window.len() == WINDOW
            && let Some(oldest) = window.pop_front()
        {
            confirmed(oldest).await?;
        }
        window.push_back(publish(&channel, &queue, 1).await?);
    }
    for confirm in window {
        confirmed(confirm).await?;
    }
    Ok(())
}

async fn confirmed(confirm: lapin::PublisherConfirm) -> Result<()> {
    anyhow::ensure!(confirm.await?.is_ack(), "the broker refused a message");
    Ok(())
}

async fn read(mut consumer: Consumer, count: usize) -> Result<()> {
    for _ in 0..count {
        let delivery = consumer.next().await.context("the queue is gone")??;
        anyhow::ensure!(delivery.data.len() == FRAME, "a message of another size");
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

async fn publish(channel: &Channel, queue: &str, mode: u8) -> Result<lapin::PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default().with_delivery_mode(mode);
    let body = vec![0; FRAME];
    Ok(channel.basic_publish("".into(), queue.into(), options, &body, properties).await?)
}

/// Closes the connections. lapin returns an error if a channel is closing at that moment, which is
/// ignored.
async fn close(connections: [Connection; 2]) {
    for connection in connections {
        let _ = connection.close(200, "done".into()).await;
    }
}

async fn connect(url: &str) -> Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await.context("connecting")
}

/// Declares a durable queue with a random name that expires after 60 s without use.
async fn declare(channel: &Channel, kind: &str) -> Result<String> {
    let name = format!("bench.{:016x}", getrandom::u64().unwrap_or_default());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    arguments.insert("x-expires".into(), AMQPValue::LongInt(60_000));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(ShortString::from(name.as_str()), options, arguments).await?;
    Ok(name)
}

async fn consume(channel: &Channel, queue: &str) -> Result<Consumer> {
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    Ok(channel.basic_consume(queue.into(), "".into(), options, arguments).await?)
}
