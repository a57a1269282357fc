//! Conversion of messages to and from lapin's types.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use nsbridge_protocol::topology::header;

use crate::message;
use crate::message::{Header, Message, Properties};

/// Headers with a dead letter's reason. RabbitMQ 3.10 sets only the first death, later versions
/// also the last.
const DEATHS: [&str; 2] = ["x-last-death-reason", "x-first-death-reason"];

const TRANSIENT: u8 = 1;
const PERSISTENT: u8 = 2;

/// Converts the properties of a message to publish.
///
/// A text longer than the 255 bytes that AMQP allows is omitted, because properties are only hints.
pub(super) fn outgoing(properties: &Properties) -> BasicProperties {
    let mode = if properties.persistent { PERSISTENT } else { TRANSIENT };
    let mut out = BasicProperties::default().with_delivery_mode(mode);
    if let Some(text) = short(properties.message_id.as_deref()) {
        out = out.with_message_id(text);
    }
    if let Some(text) = short(properties.correlation_id.as_deref()) {
        out = out.with_correlation_id(text);
    }
    if let Some(text) = short(properties.reply_to.as_deref()) {
        out = out.with_reply_to(text);
    }
    if let Some(text) = short(properties.content_type.as_deref()) {
        out = out.with_content_type(text);
    }
    if let Some(expiration) = properties.expiration {
        out = out.with_expiration(expiration.as_millis().to_string().into());
    }
    if !properties.headers.is_empty() {
        out = out.with_headers(headers(&properties.headers));
    }
    out
}

/// Converts a delivered message, without the headers that the broker itself sets.
pub(super) fn incoming(body: Vec<u8>, properties: &BasicProperties) -> Message {
    let text = |text: &Option<ShortString>| text.as_ref().map(|text| text.as_str().to_owned());
    let properties = Properties {
        message_id: text(properties.message_id()),
        correlation_id: text(properties.correlation_id()),
        reply_to: text(properties.reply_to()),
        content_type: text(properties.content_type()),
        persistent: *properties.delivery_mode() == Some(PERSISTENT),
        expiration: properties.expiration().as_ref().and_then(milliseconds),
        headers: properties.headers().as_ref().map(own_headers).unwrap_or_default(),
    };
    Message { body, properties }
}

/// Returns the number of earlier deliveries from the headers; rule A1 of `docs/protocol.md`.
///
/// `x-acquired-count` exists from RabbitMQ 4.3 on, and counts every delivery. An older broker passes a
/// publisher's own header through, so it is ignored there. From 4.3 on, `x-delivery-count` may be a
/// publisher's on a message that was nacked.
pub(super) fn deliveries(properties: &BasicProperties, knows_acquired_count: bool) -> u64 {
    let Some(headers) = properties.headers() else { return 0 };
    let count = |name| headers.inner().get(name).and_then(whole).unwrap_or(0);
    let name = if knows_acquired_count { header::ACQUIRED_COUNT } else { header::DELIVERY_COUNT };
    u64::try_from(count(name)).unwrap_or(0)
}

/// Returns the reason for which the broker moved a message to this queue, if it did.
pub(super) fn death(properties: &BasicProperties) -> Option<String> {
    let headers = properties.headers().as_ref()?.inner();
    match header_of(DEATHS.iter().find_map(|name| headers.get(*name))?)? {
        Header::Text(reason) => Some(reason),
        Header::Int(_) => None,
    }
}

fn short(text: Option<&str>) -> Option<ShortString> {
    text.and_then(|text| ShortString::try_new(text).ok())
}

fn milliseconds(text: &ShortString) -> Option<Duration> {
    text.as_str().parse().ok().map(Duration::from_millis)
}

fn headers(headers: &BTreeMap<String, Header>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        let Ok(name) = ShortString::try_new(name.as_str()) else { continue };
        let value = match value {
            Header::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Header::Int(number) => AMQPValue::LongLongInt(*number),
        };
        table.insert(name, value);
    }
    table
}

fn own_headers(table: &FieldTable) -> BTreeMap<String, Header> {
    let own = table.inner().iter().filter(|(name, _)| !message::is_brokers(name.as_str()));
    own.filter_map(|(name, value)| Some((name.as_str().to_owned(), header_of(value)?))).collect()
}

fn header_of(value: &AMQPValue) -> Option<Header> {
    match value {
        AMQPValue::LongString(text) => Some(Header::Text(text.to_string())),
        AMQPValue::ShortString(text) => Some(Header::Text(text.to_string())),
        number => whole(number).map(Header::Int),
    }
}

fn whole(value: &AMQPValue) -> Option<i64> {
    match *value {
        AMQPValue::ShortShortInt(number) => Some(number.into()),
        AMQPValue::ShortShortUInt(number) => Some(number.into()),
        AMQPValue::ShortInt(number) => Some(number.into()),
        AMQPValue::ShortUInt(number) => Some(number.into()),
        AMQPValue::LongInt(number) => Some(number.into()),
        AMQPValue::LongUInt(number) => Some(number.into()),
        AMQPValue::LongLongInt(number) => Some(number),
        _ => None,
    }
}
