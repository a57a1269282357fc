//! AMQP message of a sealed request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nsbridge_crypto::RequestHead;
use nsbridge_protocol::topology::{header, request_queue};
use nsbridge_protocol::{Priority, TraceParent};
use nsbridge_queue::{Header, Message};

/// Unsealed properties of a sealed request.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) head: RequestHead,
    /// Class that selects the queue.
    pub(crate) priority: Priority,
    /// Span of the caller.
    pub(crate) trace: TraceParent,
    /// Span of an attempt at an earlier copy.
    pub(crate) before: Option<TraceParent>,
}

impl Envelope {
    /// Returns the queue of the request.
    pub(crate) fn queue(&self) -> String {
        request_queue(&self.head.model, self.priority)
    }

    /// Builds the message of a copy. `again` is the number of copies enqueued before.
    pub(crate) fn message(&self, frame: Vec<u8>, reply_queue: &str, again: u16) -> Message {
        let Self { head, trace, before, .. } = self;
        request_message(frame, head, reply_queue, again, [Some(*trace), *before])
    }
}

/// Builds the message that carries a sealed request, for clients and for what publishes on behalf of them.
///
/// `epoch` is the number of copies enqueued before: a worker that receives a later copy waits for the
/// pieces that the client already has. `spans` are those of the caller and of an attempt at an earlier
/// copy.
pub fn request_message(
    frame: Vec<u8>,
    head: &RequestHead,
    reply_queue: &str,
    epoch: u16,
    spans: [Option<TraceParent>; 2],
) -> Message {
    let mut message = Message::new(frame);
    let properties = &mut message.properties;
    properties.message_id = Some(head.id.to_string());
    properties.correlation_id = Some(head.id.to_string());
    properties.reply_to = Some(reply_queue.to_owned());
    properties.persistent = true;
    // Never shorter than the time to the deadline: the broker drops a redelivered message whose
    // expiration has passed, even if a worker has held it for most of that time.
    let expires = UNIX_EPOCH + Duration::from_millis(head.expires_at_ms);
    let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
    properties.expiration = Some(left);
    let headers = &mut properties.headers;
    headers.insert(header::MODEL.into(), Header::Text(head.model.to_string()));
    headers.insert(header::KEY_ID.into(), Header::Text(head.key_id.to_string()));
    for (name, span) in [header::TRACE_PARENT, header::TRACE_BEFORE].into_iter().zip(spans) {
        if let Some(span) = span {
            headers.insert(name.into(), Header::Text(span.to_string()));
        }
    }
    if epoch > 0 {
        headers.insert(header::EPOCH.into(), Header::Int(epoch.into()));
    }
    message
}
