//! Conversion of lapin's errors to errors of this crate.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::ShortString;

use super::address::Address;
use crate::{Error, Result};

/// Converts the error of a failed connection attempt.
pub(super) fn connecting(address: &Address, error: lapin::Error) -> Error {
    let address = address.to_string();
    if refused_login(&error) {
        return Error::Denied { address, source: Box::new(error) };
    }
    Error::Unreachable { address, source: Box::new(error) }
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

/// Converts the error of a failed declaration.
pub(super) fn declaring(queue: &str, error: &lapin::Error) -> Error {
    let clash = [AMQPSoftError::PRECONDITIONFAILED, AMQPSoftError::RESOURCELOCKED];
    match soft(error) {
        Some(kind) if clash.contains(kind) => {
            Error::Topology { queue: queue.to_owned(), broker_says: words(error) }
        }
        _ => lost(error),
    }
}

/// Converts the error of a failed use of a queue that should exist.
pub(super) fn using(queue: &str, error: &lapin::Error) -> Error {
    match soft(error) {
        // A queue that is exclusive to another connection does not exist for this one.
        Some(AMQPSoftError::NOTFOUND | AMQPSoftError::RESOURCELOCKED) => {
            Error::NoQueue { queue: queue.to_owned() }
        }
        _ => lost(error),
    }
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
