//! Conversion of lapin's errors to errors of this crate.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::ShortString;

use super::address::Address;
use crate::error::{Error, Result};

/// Faults of TLS by the words of their errors, with the remedies.
const TLS_REMEDIES: [(&str, &str); 4] = [
    (
        "UnknownIssuer",
        "name the certificate of its authority, by `ca_file` of [broker] or by `cacertfile` in the address",
    ),
    (
        "InvalidContentType",
        "nothing there speaks TLS; RabbitMQ's port for amqps is 5671 by default",
    ),
    ("not valid for name", "the address must have a name that is in the broker's certificate"),
    (
        "CertificateRequired",
        "name a certificate and its key, by `cert_file` and `key_file` of [broker] or by `certfile` and \
         `keyfile` in the address",
    ),
];

/// Converts the error of a failed connection attempt.
pub(super) fn connecting(address: &Address, error: lapin::Error) -> Error {
    let address = address.to_string();
    if let ErrorKind::ProtocolError(refusal) = error.kind()
        && names_a_limit(refusal.get_message().as_str())
    {
        return Error::Limit { broker_says: words(&error) };
    }
    if refused_login(&error) {
        return Error::Denied { address, source: Box::new(error) };
    }
    let said = words(&error);
    if let Some((_, remedy)) = TLS_REMEDIES.iter().find(|(fault, _)| said.contains(fault)) {
        return Error::Unreachable { address, source: format!("{said}: {remedy}").into() };
    }
    Error::Unreachable { address, source: Box::new(error) }
}

/// Creates the error of a connection attempt whose files could not be read.
pub(super) fn unread(address: &Address, error: std::io::Error) -> Error {
    Error::Unreachable { address: address.to_string(), source: Box::new(error) }
}

/// Creates the error of a connection attempt without an answer.
pub(super) fn silent(address: &Address, waited: Duration) -> Error {
    let source = format!("no answer within {} seconds", waited.as_secs_f64());
    Error::Unreachable { address: address.to_string(), source: source.into() }
}

/// Converts an error on an open connection.
pub(super) fn lost(error: &lapin::Error) -> Error {
    Error::Lost { reason: words(error) }
}

/// Thing that is declared.
#[derive(Clone, Copy, Debug)]
pub(super) enum Declared<'a> {
    Queue(&'a str),
    Exchange(&'a str),
}

/// Converts the error of a failed declaration.
///
/// The broker has one error code for arguments that differ, for limits, and for arguments that it
/// does not know. Only its message tells them apart.
pub(super) fn declaring(declared: Declared<'_>, error: &lapin::Error) -> Error {
    if let Declared::Queue(queue) = declared
        && is_node_down(error)
    {
        return Error::NodeDown { queue: queue.to_owned() };
    }
    let refused = [AMQPSoftError::PRECONDITIONFAILED, AMQPSoftError::RESOURCELOCKED];
    if !soft(error).is_some_and(|kind| refused.contains(kind)) {
        return lost(error);
    }
    refused_declaration(declared, words(error))
}

fn refused_declaration(declared: Declared<'_>, broker_says: String) -> Error {
    if names_a_limit(&broker_says) {
        return Error::Limit { broker_says };
    }
    let differs = broker_says.contains("inequivalent arg");
    match declared {
        Declared::Queue(queue) if differs => {
            Error::Topology { queue: queue.to_owned(), broker_says }
        }
        Declared::Exchange(exchange) if differs => {
            Error::Exchange { exchange: exchange.to_owned(), broker_says }
        }
        Declared::Queue(name) | Declared::Exchange(name) => {
            Error::Refused { name: name.to_owned(), broker_says }
        }
    }
}

/// Returns true if a message of the broker is about a limit, such as "queue limit in vhost 'q' (3) is
/// reached".
fn names_a_limit(broker_says: &str) -> bool {
    broker_says.contains("limit") && broker_says.contains("is reached")
}

/// Returns true if a queue is exclusive to another connection.
pub(super) fn is_locked(error: &lapin::Error) -> bool {
    soft(error) == Some(&AMQPSoftError::RESOURCELOCKED)
}

/// Converts the error of a failed use of a queue that should exist.
pub(super) fn using(queue: &str, error: &lapin::Error) -> Error {
    match soft(error) {
        _ if is_node_down(error) => Error::NodeDown { queue: queue.to_owned() },
        // A queue that is exclusive to another connection does not exist for this one.
        Some(AMQPSoftError::NOTFOUND | AMQPSoftError::RESOURCELOCKED) => {
            Error::NoQueue { queue: queue.to_owned() }
        }
        _ => lost(error),
    }
}

/// Returns true if the broker found a queue whose node is down, for example "home node 'a@host' of durable
/// queue 'q' in vhost '/' is down or inaccessible" or, after a minute, "failed to perform operation on queue
/// 'q' in vhost '/' due to timeout".
fn is_node_down(error: &lapin::Error) -> bool {
    let is_said = |words: String| {
        words.contains("is down or inaccessible") || words.ends_with("due to timeout")
    };
    matches!(soft(error), Some(AMQPSoftError::NOTFOUND)) && is_said(words(error))
}

/// Returns true if a channel could not be opened because its id had belonged to a channel that the
/// broker closed. A broker refuses no channel itself with an error of a channel.
pub(super) fn is_lost_id(error: &lapin::Error) -> bool {
    soft(error).is_some()
}

/// Returns true if no id is left for another channel.
pub(super) fn is_channel_limit(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ChannelsLimitReached)
}

fn words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    }
}

fn soft(error: &lapin::Error) -> Option<&AMQPSoftError> {
    let ErrorKind::ProtocolError(error) = error.kind() else { return None };
    match error.kind() {
        AMQPErrorKind::Soft(soft) => Some(soft),
        AMQPErrorKind::Hard(_) => None,
    }
}

/// Returns true if the broker refused the login.
///
/// In AMQP, a wrong user or password is a soft error, and a wrong virtual host is a hard one.
fn refused_login(error: &lapin::Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else { return false };
    matches!(
        error.kind(),
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
            | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED | AMQPHardError::INVALIDPATH)
    )
}

/// Converts a queue name to AMQP's type. A name that is too long for it belongs to no queue.
pub(super) fn name(queue: &str) -> Result<ShortString> {
    ShortString::try_new(queue).map_err(|_| Error::NoQueue { queue: queue.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::{Declared, refused_declaration};
    use crate::error::Error;

    #[track_caller]
    fn check(declared: Declared<'_>, broker_says: &str, sentence: &str, is_retryable: bool) {
        let error: Error = refused_declaration(declared, broker_says.to_owned());
        assert!(error.to_string().starts_with(sentence), "{error}");
        assert_eq!(error.is_retryable(), is_retryable, "{error}");
    }

    /// Messages of RabbitMQ 3.10 and 4.0.
    #[test]
    fn a_refused_declaration_is_told_by_its_cause() {
        let queue = Declared::Queue("nsbridge.m");
        let classic = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'nsbridge.m' in \
                       vhost '/': received 'quorum' but current is 'classic'";
        check(queue, classic, "the queue nsbridge.m exists with other arguments", false);
        let fanout = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'nsbridge.reply' in \
                      vhost '/': received 'direct' but current is 'fanout'";
        let exchange = Declared::Exchange("nsbridge.reply");
        check(exchange, fanout, "the exchange nsbridge.reply is not nsbridge's", false);
        let limit = "PRECONDITION_FAILED - cannot declare queue 'nsbridge.m': queue limit in vhost 'q' \
                     (3) is reached";
        check(queue, limit, "a limit of the broker is reached", true);
        let other = "PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue 'nsbridge.m'";
        check(queue, other, "the broker refused to declare nsbridge.m", false);
        let locked =
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'nsbridge.m'";
        check(queue, locked, "the broker refused to declare nsbridge.m", false);
    }
}
