//! A sealed request as a message.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_crypto::RequestHead;
use nsbridge_protocol::topology::header;
use nsbridge_queue::{Header, Message};

/// The message that carries a sealed request. `again` counts the copies that were enqueued before:
/// a worker that sees one waits for the pieces that are here already.
pub(crate) fn message(
    frame: Vec<u8>,
    head: &RequestHead,
    reply_queue: &str,
    again: u16,
) -> Message {
    let mut message = Message::new(frame);
    let properties = &mut message.properties;
    properties.message_id = Some(head.id.to_string());
    properties.correlation_id = Some(head.id.to_string());
    properties.reply_to = Some(reply_queue.to_owned());
    properties.persistent = true;
    // Never shorter than the finish-by time: the broker drops a returned message whose time is
    // over, and a worker may have held it for long.
    let expires = UNIX_EPOCH + Duration::from_millis(head.expires_at_ms);
    let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
    properties.expiration = Some(left);
    let headers = &mut properties.headers;
    headers.insert(header::MODEL.into(), Header::Text(head.model.to_string()));
    headers.insert(header::KEY_ID.into(), Header::Text(head.key_id.to_string()));
    if again > 0 {
        headers.insert(header::EPOCH.into(), Header::Int(again.into()));
    }
    message
}
