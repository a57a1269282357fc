//! A message and what travels beside its body.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nsbridge_protocol::CONTENT_TYPE;
use nsbridge_protocol::topology::header;

/// A message: sealed bytes and what the broker may read.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The sealed frame.
    pub body: Vec<u8>,
    /// What travels in the clear.
    pub properties: Properties,
}

/// What travels in the clear: hints for routing and for people, never believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The identifier of the message.
    pub message_id: Option<String>,
    /// The identifier of the request it belongs to.
    pub correlation_id: Option<String>,
    /// Where an answer goes.
    pub reply_to: Option<String>,
    /// The MIME type of the body.
    pub content_type: Option<String>,
    /// Whether it survives a restart of the broker.
    pub persistent: bool,
    /// How long it may wait, even after it was returned to its queue.
    pub expiration: Option<Duration>,
    /// Headers. On a message that was delivered, those that the broker sets are left out: nothing
    /// that is republished carries them on.
    pub headers: BTreeMap<String, Header>,
}

/// The value of a header; types that the protocol does not use are left out when reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// A text.
    Text(String),
    /// A whole number of any width.
    Int(i64),
}

impl Message {
    /// A message of the protocol with this body, not persistent.
    pub fn new(body: Vec<u8>) -> Self {
        let content_type = Some(CONTENT_TYPE.to_owned());
        Self { body, properties: Properties { content_type, ..Properties::default() } }
    }
}

impl fmt::Debug for Message {
    /// Tells the body's size only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("bytes", &self.body.len())
            .field("properties", &self.properties)
            .finish()
    }
}

impl Properties {
    /// The text of a header, if it is one.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.headers.get(name)? {
            Header::Text(text) => Some(text),
            Header::Int(_) => None,
        }
    }

    /// The number in a header, if it is one.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.headers.get(name)? {
            Header::Int(number) => Some(*number),
            Header::Text(_) => None,
        }
    }
}

/// Whether a header is the broker's own, or passes for one.
pub(crate) fn is_brokers(name: &str) -> bool {
    name == header::DELIVERY_COUNT
        || name == header::ACQUIRED_COUNT
        || name == "x-death"
        || name.starts_with("x-first-")
        || name.starts_with("x-last-")
}
