//! Messages and their AMQP properties.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nsbridge_protocol::CONTENT_TYPE;
use nsbridge_protocol::topology::header;

/// Message: sealed bytes and properties that the broker can read. A literal ends in
/// `..Message::new(body)`: minor versions add fields.
///
/// ```
/// use nsbridge_queue::{Header, Message};
///
/// let mut message = Message::new(b"sealed".to_vec());
/// message.properties.headers.insert("nsb-epoch".to_owned(), Header::Int(1));
/// assert_eq!(message.properties.int("nsb-epoch"), Some(1));
/// // The body is never printed.
/// assert!(!format!("{message:?}").contains("sealed"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Sealed frame.
    pub body: Vec<u8>,
    /// Properties in the clear.
    pub properties: Properties,
}

/// Properties in the clear: hints for routing and for people, never trusted. A literal ends in
/// `..Properties::default()`: minor versions add fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Identifier of the message.
    pub message_id: Option<String>,
    /// Identifier of the request that the message belongs to.
    pub correlation_id: Option<String>,
    /// Queue for the answer.
    pub reply_to: Option<String>,
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Persistence flag: the message survives a restart of the broker.
    pub persistent: bool,
    /// Maximum time in the queue, which continues to count after a requeue.
    pub expiration: Option<Duration>,
    /// Message headers.
    ///
    /// A delivered message lacks the headers that the broker sets, so that republishing does not
    /// carry them on.
    pub headers: BTreeMap<String, Header>,
}

/// Value of a header. Values of types that the protocol does not use are skipped on receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// Text.
    Text(String),
    /// Integer of any width.
    Int(i64),
}

impl Message {
    /// Creates a transient message of the protocol with this body.
    pub fn new(body: Vec<u8>) -> Self {
        let content_type = Some(CONTENT_TYPE.to_owned());
        Self { body, properties: Properties { content_type, ..Properties::default() } }
    }
}

impl fmt::Debug for Message {
    /// Shows only the size of the body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("bytes", &self.body.len())
            .field("properties", &self.properties)
            .finish()
    }
}

impl Properties {
    /// Returns the text of a header; `None` if the header is missing or an integer.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.headers.get(name)? {
            Header::Text(text) => Some(text),
            Header::Int(_) => None,
        }
    }

    /// Returns the integer in a header; `None` if the header is missing or a text.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.headers.get(name)? {
            Header::Int(number) => Some(*number),
            Header::Text(_) => None,
        }
    }
}

/// Returns true for a header that the broker sets, or that looks like one.
pub(crate) fn is_brokers(name: &str) -> bool {
    name == header::DELIVERY_COUNT
        || name == header::ACQUIRED_COUNT
        || name == "x-death"
        || name.starts_with("x-first-")
        || name.starts_with("x-last-")
}
