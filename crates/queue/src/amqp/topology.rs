//! Declaration of the protocol's queues and exchanges.

use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use nsbridge_protocol::topology::{self, CONTROL_EXCHANGE, REPLY_EXCHANGE, RETRY_TIERS};
use nsbridge_protocol::{ModelName, Priority, Revision};

use super::fault::{self, Declared};
use crate::error::Result;
use crate::limits::Limits;

/// Declares all queues and exchanges of a model.
pub(super) async fn declare_model(
    channel: &Channel,
    model: &ModelName,
    limits: &Limits,
) -> Result<()> {
    declare_exchanges(channel).await?;
    for (queue, arguments) in queues_of(model, limits) {
        declare(channel, &queue, durable(), arguments).await?;
    }
    Ok(())
}

/// Returns the queues of a model with their arguments. A queue comes after the target of its dead letters.
pub(super) fn queues_of(model: &ModelName, limits: &Limits) -> Vec<(String, FieldTable)> {
    let dead = topology::dead_queue(model);
    let mut queues = vec![(dead.clone(), dead_letters(limits))];
    for priority in Priority::ALL {
        let requests = topology::request_queue(model, priority);
        queues.push((requests.clone(), work(&dead, limits)));
        for tier in RETRY_TIERS {
            let queue = topology::retry_queue(model, priority, tier);
            queues.push((queue, retry(&requests, tier.delay.as_millis(), limits)));
        }
    }
    queues
}

/// Declares a client's reply queue.
pub(super) async fn declare_reply_queue(
    channel: &Channel,
    queue: &str,
    limits: &Limits,
) -> Result<()> {
    declare_exchanges(channel).await?;
    declare(channel, queue, durable(), replies(limits)).await?;
    bind(channel, queue, REPLY_EXCHANGE, queue).await
}

/// Declares a request's run record and returns the number of its entries.
pub(super) async fn declare_run_record(channel: &Channel, queue: &str) -> Result<u32> {
    let expires = u64::try_from(topology::RUN_RECORD_EXPIRES.as_millis()).unwrap_or(u64::MAX);
    let arguments = table([
        ("x-queue-type", text("classic")),
        ("x-expires", number(expires)),
        ("x-max-length", number(topology::RUN_RECORD_LENGTH.into())),
    ]);
    let declared = channel.queue_declare(fault::name(queue)?, durable(), arguments).await;
    let declared = declared.map_err(|error| fault::declaring(Declared::Queue(queue), &error))?;
    Ok(declared.message_count())
}

/// Removes one entry from a run record, and deletes the record with its last entry.
pub(super) async fn strike_run_record(channel: &Channel, queue: &str) -> Result<()> {
    let name = fault::name(queue)?;
    let entry = channel.basic_get(name.clone(), BasicGetOptions { no_ack: true }).await;
    let entry = entry.map_err(|error| fault::using(queue, &error))?;
    if entry.is_none_or(|entry| entry.message_count == 0) {
        // The broker refuses if an entry arrived in between. This closes the channel, which is not
        // used again.
        let options = QueueDeleteOptions { if_empty: true, ..QueueDeleteOptions::default() };
        drop(channel.queue_delete(name, options).await);
    }
    Ok(())
}

/// Declares a worker's control queue, which is deleted with the connection.
pub(super) async fn declare_control_queue(
    channel: &Channel,
    queue: &str,
    model: &ModelName,
    revision: Option<&Revision>,
) -> Result<()> {
    declare_exchanges(channel).await?;
    let arguments = table([("x-queue-type", text("classic"))]);
    declare(channel, queue, QueueDeclareOptions::exclusive(), arguments).await?;
    bind(channel, queue, CONTROL_EXCHANGE, queue).await?;
    bind(channel, queue, CONTROL_EXCHANGE, model.as_str()).await?;
    match revision.map(|revision| topology::revision_key(model, revision)) {
        Some(key) => bind(channel, queue, CONTROL_EXCHANGE, &key).await,
        None => Ok(()),
    }
}

/// Declares an exclusive queue, which is deleted with the connection. Returns false if it is exclusive to
/// another connection.
pub(super) async fn lock(channel: &Channel, name: &str) -> Result<bool> {
    let arguments = table([("x-queue-type", text("classic"))]);
    let options = QueueDeclareOptions::exclusive();
    match channel.queue_declare(fault::name(name)?, options, arguments).await {
        Ok(_) => Ok(true),
        Err(error) if fault::is_locked(&error) => Ok(false),
        Err(error) => Err(fault::declaring(Declared::Queue(name), &error)),
    }
}

async fn declare_exchanges(channel: &Channel) -> Result<()> {
    for exchange in [CONTROL_EXCHANGE, REPLY_EXCHANGE] {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declaring = channel.exchange_declare(
            exchange.into(),
            ExchangeKind::Direct,
            options,
            FieldTable::default(),
        );
        declaring.await.map_err(|error| fault::declaring(Declared::Exchange(exchange), &error))?;
    }
    Ok(())
}

async fn declare(
    channel: &Channel,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: FieldTable,
) -> Result<()> {
    let declared = channel.queue_declare(fault::name(queue)?, options, arguments).await;
    declared.map(drop).map_err(|error| fault::declaring(Declared::Queue(queue), &error))
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<()> {
    let (queue, key) = (fault::name(queue)?, fault::name(key)?);
    let binding = channel.queue_bind(
        queue,
        exchange.into(),
        key,
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    binding.await.map_err(|error| fault::lost(&error))
}

fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions::durable()
}

fn work(dead: &str, limits: &Limits) -> FieldTable {
    let mut arguments = table([
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", number(u64::from(limits.deliveries))),
        ("x-max-length-bytes", number(limits.model_queue_bytes)),
    ]);
    dead_letter_to(&mut arguments, dead);
    arguments
}

fn retry(requests: &str, delay_ms: u128, limits: &Limits) -> FieldTable {
    let delay = u64::try_from(delay_ms).unwrap_or(u64::MAX);
    let mut arguments = table([
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", number(delay)),
        ("x-max-length-bytes", number(limits.retry_queue_bytes)),
    ]);
    dead_letter_to(&mut arguments, requests);
    arguments
}

/// Sets `queue` as the target of expired, rejected and too often redelivered messages, without
/// loss.
///
/// RabbitMQ offers at-least-once dead-lettering only for queues with the overflow policy
/// `reject-publish`.
fn dead_letter_to(arguments: &mut FieldTable, queue: &str) {
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(queue));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
}

fn dead_letters(limits: &Limits) -> FieldTable {
    let kept = u64::try_from(topology::DEAD_LETTER_TTL.as_millis()).unwrap_or(u64::MAX);
    table([
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", number(kept)),
        ("x-max-length-bytes", number(limits.dead_queue_bytes)),
        ("x-overflow", text("drop-head")),
        ("x-delivery-limit", number(topology::DEAD_LETTER_LOOKS)),
    ])
}

fn replies(limits: &Limits) -> FieldTable {
    let lease = u64::try_from(limits.reply_lease.as_millis()).unwrap_or(u64::MAX);
    table([
        ("x-queue-type", text("classic")),
        ("x-expires", number(lease)),
        ("x-max-length-bytes", number(limits.reply_queue_bytes)),
        ("x-overflow", text("reject-publish")),
    ])
}

fn table<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn number(number: u64) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(number).unwrap_or(i64::MAX))
}
