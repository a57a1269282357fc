//! Publishing in place of a reply stream: copies for a retry, a wait or a renewal, dead letters,
//! error replies and hints to clients, and the probe for workers of a revision.
//!
//! A copy has the sealed bytes of its original, so it is the same job. It is a new message for the
//! broker: its delivery count begins at 0. Its `nsb-epoch` is higher, so its run is a later attempt.

use std::time::{Duration, SystemTime};

use nsbridge_crypto::{ErrorHint, ReplySealer, RequestFrame};
use nsbridge_protocol::topology::{
    CONTROL_EXCHANGE, REPLY_EXCHANGE, RETRY_TIERS, RetryTier, dead_queue, header, request_queue,
    retry_queue, revision_key,
};
use nsbridge_protocol::{ErrorCode, Failure, ModelName, Open, Revision};
use nsbridge_queue::{Confirmation, Error, Header, Message, Publisher, Result};
use tokio::time::sleep;

use crate::clock::now_ms;
use crate::observability::traces::{parent, put};
use crate::request::admission::{Rejection, ReplyTo, epoch, remaining};
use crate::request::channel_pool::ChannelPool;
use crate::request::delivery_trace::DeliveryTrace;
use crate::request::in_flight::OwnedDelivery;

/// Headers that are copied with a message into another queue. All others are left behind, because a
/// publisher may have written anything into them.
const KEPT: [&str; 4] = [header::MODEL, header::KEY_ID, header::EPOCH, header::TRIES];

/// Pauses between tries to publish a refusal to a full reply queue. A list rather than a back-off: the
/// worker gives up after these, 750 ms in all.
const FULL_PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500)];

/// Publishes a copy of a delivery, still sealed, to the dead-letter queue, and waits for the
/// publisher confirm. A body that is no request is left out, because it may be anything, of any
/// size.
pub(crate) async fn dead_letter(
    pool: &ChannelPool,
    model: &ModelName,
    owned: &OwnedDelivery,
    code: ErrorCode,
    trace: &DeliveryTrace,
) -> Result<()> {
    let delivery = &owned.delivery;
    let message = &delivery.message;
    let no_request = matches!(code, ErrorCode::Malformed | ErrorCode::Oversized)
        && RequestFrame::parse(&message.body).is_err();
    let mut letter = if no_request { head(message) } else { copy(message) };
    let headers = &mut letter.properties.headers;
    if no_request {
        let bytes = delivery.oversized.unwrap_or(message.body.len() as u64);
        headers.insert(header::BYTES.into(), Header::Int(saturate(bytes)));
    }
    headers.insert(header::REASON.into(), Header::Text(code.as_str().into()));
    headers.insert(header::DELIVERIES.into(), Header::Int(saturate(delivery.earlier_deliveries)));
    headers.insert(header::DEAD_AT.into(), Header::Int(saturate(now_ms())));
    headers.insert(header::QUEUE.into(), Header::Text(request_queue(model, owned.priority)));
    confirmed(pool, &dead_queue(model), letter).await?;
    trace.metrics().dead_lettered(code);
    Ok(())
}

/// Returns true if the broker has a worker of this revision that takes control frames: one that
/// serves the model or is about to.
pub(crate) async fn is_served(
    pool: &ChannelPool,
    model: &ModelName,
    revision: &Revision,
) -> Result<bool> {
    // An empty message is no control frame, so workers drop it.
    let probe = Message::new(Vec::new());
    let answer = publish(pool, CONTROL_EXCHANGE, &revision_key(model, revision), probe).await?;
    Ok(answer != Confirmation::Returned)
}

/// Returns true if the request can wait in the next retry queue: it was retried fewer than `most`
/// times and has more time left than the queue's delay.
pub(crate) fn may_retry(owned: &OwnedDelivery, deadline: SystemTime, most: usize) -> bool {
    next_tier(owned).is_some_and(|(tries, tier)| {
        usize::try_from(tries).is_ok_and(|tries| tries < most) && remaining(deadline) > tier.delay
    })
}

/// Returns the number of earlier retries and the tier of the next retry queue.
fn next_tier(owned: &OwnedDelivery) -> Option<(i64, RetryTier)> {
    let tries = owned.delivery.message.properties.int(header::TRIES).unwrap_or(0);
    let tier = usize::try_from(tries).ok().and_then(|tries| RETRY_TIERS.get(tries))?;
    Some((tries, *tier))
}

/// Result of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// A copy waits.
    Waits,
    /// No retry queue is left, or the deadline would pass in the next one.
    Over,
    /// The retry queue is full.
    Full,
}

/// Publishes a copy of a delivery to the next retry queue of its class.
pub(crate) async fn retry(
    pool: &ChannelPool,
    model: &ModelName,
    owned: &OwnedDelivery,
    deadline: SystemTime,
    trace: &DeliveryTrace,
) -> Result<Retry> {
    let Some((tries, tier)) = next_tier(owned) else { return Ok(Retry::Over) };
    let Some(mut again) = again(owned, tier.delay, deadline, trace) else {
        return Ok(Retry::Over);
    };
    again.properties.headers.insert(header::TRIES.into(), Header::Int(tries + 1));
    let queue = retry_queue(model, owned.priority, tier);
    match publish(pool, "", &queue, again).await? {
        Confirmation::Ack => {
            trace.metrics().retried(tier);
            Ok(Retry::Waits)
        }
        Confirmation::Returned => Err(Error::NoQueue { queue }),
        Confirmation::Nack => Ok(Retry::Full),
    }
}

/// Publishes a copy of a delivery that comes back after about `pause` and does not count as a try.
/// Returns `false` if the deadline would pass before.
pub(crate) async fn wait(
    pool: &ChannelPool,
    model: &ModelName,
    owned: &OwnedDelivery,
    deadline: SystemTime,
    pause: Duration,
    trace: &DeliveryTrace,
) -> Result<bool> {
    let [first, longer @ ..] = RETRY_TIERS;
    let tier = longer.into_iter().rev().find(|tier| tier.delay <= pause).unwrap_or(first);
    let Some(again) = again(owned, tier.delay, deadline, trace) else { return Ok(false) };
    confirmed(pool, &retry_queue(model, owned.priority, tier), again).await?;
    Ok(true)
}

/// Publishes a copy of a delivery to the end of its own queue, where the broker's delivery count
/// begins at 0. Returns `false` if its deadline has passed.
pub(crate) async fn renew(
    pool: &ChannelPool,
    model: &ModelName,
    owned: &OwnedDelivery,
    deadline: SystemTime,
    trace: &DeliveryTrace,
) -> Result<bool> {
    let Some(again) = again(owned, Duration::ZERO, deadline, trace) else { return Ok(false) };
    confirmed(pool, &request_queue(model, owned.priority), again).await?;
    Ok(true)
}

/// Returns a copy for delivery after `delay` at the earliest; `None` if the deadline would pass
/// before.
fn again(
    owned: &OwnedDelivery,
    delay: Duration,
    deadline: SystemTime,
    trace: &DeliveryTrace,
) -> Option<Message> {
    let left = remaining(deadline);
    if left <= delay {
        return None;
    }
    let mut again = copy(&owned.delivery.message);
    again.properties.expiration = Some(left);
    let epoch = epoch(&owned.delivery.message).saturating_add(1);
    again.properties.headers.insert(header::EPOCH.into(), Header::Int(epoch.into()));
    put(&mut again.properties, header::TRACE_BEFORE, trace.span());
    Some(again)
}

/// Sends a client the refusal of its request: sealed if the reply root is known, else as a hint.
///
/// A client that is gone needs none. A client whose queue stays full gets none either, because its
/// request must not be redelivered for that, again and again.
pub(crate) async fn notify_client(
    pool: &ChannelPool,
    from: &RefusingWorker<'_>,
    rejection: &Rejection,
) -> Result<()> {
    let Some(reply) = &rejection.reply else { return Ok(()) };
    let sealed = sealed_refusal(from, rejection, reply);
    send(pool, reply, sealed.unwrap_or_else(|| vec![hint(rejection, reply)])).await
}

/// Sends a client a hint with the reason why its request waits for another worker. The request is
/// not over, so it gets no final error.
pub(crate) async fn hint_client(pool: &ChannelPool, rejection: &Rejection) -> Result<()> {
    let Some(reply) = &rejection.reply else { return Ok(()) };
    send(pool, reply, vec![hint(rejection, reply)]).await
}

async fn send(pool: &ChannelPool, reply: &ReplyTo, frames: Vec<Vec<u8>>) -> Result<()> {
    let publisher = pool.take().await?;
    for frame in frames {
        let mut message = Message::new(frame);
        message.properties.correlation_id = Some(reply.request.to_string());
        message.properties.persistent = true;
        match publish_to_full(&*publisher, &reply.queue, &message).await? {
            Confirmation::Ack => {}
            Confirmation::Returned => break,
            Confirmation::Nack => {
                tracing::warn!(request = %reply.request, "a client's full queue took no refusal");
                break;
            }
        }
    }
    pool.give_back(publisher);
    Ok(())
}

/// Publishes to a reply queue, with a few retries while it is full.
async fn publish_to_full(
    publisher: &dyn Publisher,
    queue: &str,
    message: &Message,
) -> Result<Confirmation> {
    for pause in FULL_PAUSES {
        let answer = publisher.publish(REPLY_EXCHANGE, queue, message.clone()).await?.await?;
        if answer != Confirmation::Nack {
            return Ok(answer);
        }
        sleep(pause).await;
    }
    Ok(Confirmation::Nack)
}

/// Worker that refuses a request, as the open frame of its error names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusingWorker<'a> {
    pub(crate) worker: &'a str,
    pub(crate) revision: Option<&'a Revision>,
}

fn sealed_refusal(
    from: &RefusingWorker<'_>,
    rejection: &Rejection,
    reply: &ReplyTo,
) -> Option<Vec<Vec<u8>>> {
    let root = reply.root.as_ref()?;
    let mut open = Open::new(from.worker, now_ms());
    open.revision = from.revision.cloned();
    let open = serde_json::to_vec(&open).ok()?;
    let (sealer, first) = ReplySealer::start(root, reply.request, reply.attempt, &open).ok()?;
    let failure = Failure::new(rejection.code, rejection.message.clone());
    let failure = serde_json::to_vec(&failure).ok()?;
    Some(vec![first, sealer.seal_final_error(&failure).ok()?])
}

fn hint(rejection: &Rejection, reply: &ReplyTo) -> Vec<u8> {
    ErrorHint { request: reply.request, code: rejection.code }.encode()
}

fn copy(message: &Message) -> Message {
    Message { body: message.body.clone(), ..head(message) }
}

/// Copies a message without its body, with the properties that may follow it into another queue.
fn head(message: &Message) -> Message {
    let mut copy = Message::new(Vec::new());
    copy.properties.persistent = true;
    copy.properties.message_id = message.properties.message_id.clone();
    copy.properties.reply_to = message.properties.reply_to.clone();
    copy.properties.correlation_id = message.properties.correlation_id.clone();
    for name in KEPT {
        if let Some(value) = message.properties.headers.get(name) {
            copy.properties.headers.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(client) = parent(&message.properties, header::TRACE_PARENT) {
        put(&mut copy.properties, header::TRACE_PARENT, client);
    }
    copy
}

/// Publishes one message on a channel of the pool and waits for the publisher confirm.
async fn publish(
    pool: &ChannelPool,
    exchange: &str,
    key: &str,
    message: Message,
) -> Result<Confirmation> {
    loop {
        let publisher = pool.take().await?;
        let answer = publisher.publish(exchange, key, message.clone()).await?.await?;
        let is_refused_by_stale = answer == Confirmation::Nack && publisher.is_stale();
        pool.give_back(publisher);
        // Each turn drops one stale channel, and a new one is not stale.
        if !is_refused_by_stale {
            return Ok(answer);
        }
    }
}

async fn confirmed(pool: &ChannelPool, queue: &str, message: Message) -> Result<()> {
    match publish(pool, "", queue, message).await? {
        Confirmation::Ack => Ok(()),
        Confirmation::Returned => Err(Error::NoQueue { queue: queue.to_owned() }),
        Confirmation::Nack => Err(Error::Lost { reason: format!("the queue {queue} is full") }),
    }
}

fn saturate(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
