//! Messages between a proxy and its gateway, over a WebSocket.
//!
//! A binary message is the length of its head as a u32 (big-endian), the head as JSON, and a body: a
//! sealed frame, or nothing.

use nsbridge_protocol::{TraceParent, topology};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum number of bytes of a head.
const MOST_HEAD: usize = 4 << 10;

/// Maximum number of bytes of a message. The largest frame is that of a resume.
pub(crate) const MOST_MESSAGE: usize = topology::CONTROL_BODY + MOST_HEAD + 4;

/// Maximum number of deliveries that a proxy has not acknowledged.
pub(crate) const MOST_PREFETCH: u16 = 512;

/// Message of a proxy. `number` is repeated in the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Command {
    /// Declares the reply queue of a client.
    Declare { number: u64, client: String },
    /// Consumes the reply queue of a client.
    Consume { number: u64, client: String, prefetch: u16 },
    /// Publishes the frame of a request.
    Request { number: u64, client: String, bulk: bool, epoch: u16, trace: Trace },
    /// Publishes a control frame under a routing key.
    Control { number: u64, key: String, before: Option<TraceParent> },
    /// Acknowledges a delivery.
    Ack { tag: u64 },
    /// Returns a delivery to its queue.
    Requeue { tag: u64 },
}

/// Spans of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) parent: Option<TraceParent>,
    pub(crate) before: Option<TraceParent>,
}

/// Message of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Report {
    /// Answers a command.
    Answered { number: u64, answer: Answer },
    /// Delivers a frame of a reply.
    Delivered { tag: u64, redelivered: bool, reply_to: Option<String>, span: Option<TraceParent> },
    /// Says that the broker ended the subscription.
    Ended,
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    /// The broker has the message.
    Taken,
    /// No queue has the message.
    Returned,
    /// The queue is full, or the key is at a limit.
    Refused,
    NoQueue,
    /// The queue's node of the cluster is down.
    NodeDown,
    /// Unknown outcome: the broker may have the message.
    Lost,
    /// Another try meets the same refusal.
    Rejected {
        reason: String,
    },
}

/// Returns a message as bytes.
pub(crate) fn encode(head: &impl Serialize, body: &[u8]) -> Vec<u8> {
    // Only a map whose keys are no texts cannot be written.
    let head = serde_json::to_vec(head).unwrap_or_default();
    let length = u32::try_from(head.len()).unwrap_or_default();
    [&length.to_be_bytes(), head.as_slice(), body].concat()
}

/// Reads a message: its head, and its body. `None` if it is none.
pub(crate) fn decode<T: DeserializeOwned>(message: &[u8]) -> Option<(T, &[u8])> {
    let (length, rest) = message.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    if length > MOST_HEAD {
        return None;
    }
    let (head, body) = rest.split_at_checked(length)?;
    Some((serde_json::from_slice(head).ok()?, body))
}

#[cfg(test)]
mod tests {
    use super::{Answer, Command, MOST_HEAD, Report, decode, encode};
    use proptest::prelude::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let command = Command::Ack { tag: 7 };
        let written = encode(&command, b"");
        assert_eq!(decode::<Command>(&written), Some((command, b"".as_slice())));
        let answer = Answer::Rejected { reason: "no".to_owned() };
        let report = Report::Answered { number: 1, answer };
        let written = encode(&report, b"sealed");
        assert_eq!(decode::<Report>(&written), Some((report, b"sealed".as_slice())));
        for cut in 0..written.len() - 6 {
            assert_eq!(decode::<Report>(&written[..cut]), None);
        }
        let long = encode(&"x".repeat(MOST_HEAD), b"");
        assert_eq!(decode::<String>(&long), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in any::<Vec<u8>>()) {
            let _ = decode::<Command>(&bytes);
            let _ = decode::<Report>(&bytes);
        }
    }
}
