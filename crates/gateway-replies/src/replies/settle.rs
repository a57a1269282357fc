//! End of a reply: for its caller's limits, for the metrics and for the log.

use std::time::Instant;

use nsbridge_gateway_access::Reservation;

use super::Entry;
use crate::observer::{Observer, Outcome};
use crate::reply_end::ReplyEnd;

/// Part of a prompt's tokens that a request costs which its worker refused: the worker has only
/// tokenized the prompt.
const TOKENIZED_PARTS: u64 = 4;

/// Charges the tokens that a reply took to its caller's limits, and returns their number.
pub(super) fn settle(entry: &Entry, reservation: Reservation) -> u64 {
    let tokens = cost(entry);
    reservation.settle(tokens);
    tokens
}

/// Returns the tokens of a reply: those that its worker counted, else an estimate.
fn cost(entry: &Entry) -> u64 {
    let (prompt, received) = (entry.record.prompt_tokens(), entry.log.received());
    match entry.log.end() {
        Some(ReplyEnd::Done(summary)) => {
            match summary.usage.input_tokens + summary.usage.output_tokens {
                // The handler does not count.
                0 => prompt + received,
                counted => counted,
            }
        }
        // A reply that was given up may have been computed from the first token of the prompt on.
        Some(ReplyEnd::Failed(_)) if entry.log.is_cancelled() || received > 0 => prompt + received,
        Some(ReplyEnd::Failed(failure)) if failure.is_of_client() => {
            prompt.div_ceil(TOKENIZED_PARTS)
        }
        // No worker has had it, or the fault is not the caller's.
        _ => 0,
    }
}

/// Returns the outcome of a reply for its observer.
pub(super) fn outcome(entry: &Entry) -> Outcome {
    match entry.log.end() {
        Some(ReplyEnd::Done(summary)) => Outcome::Done(summary.usage),
        Some(ReplyEnd::Failed(_)) if entry.log.is_cancelled() => Outcome::Cancelled,
        Some(ReplyEnd::Failed(_)) | None => Outcome::Failed,
    }
}

/// Counts a failure, and writes a line about a reply that has ended. The line has no text of client
/// or model.
pub(super) fn log_end(entry: &Entry, observer: &dyn Observer, began: Instant, tokens: u64) {
    let record = &entry.record;
    let (end, code) = match entry.log.end() {
        Some(ReplyEnd::Done(_)) => ("done", String::new()),
        Some(ReplyEnd::Failed(_)) if entry.log.is_cancelled() => ("cancelled", String::new()),
        Some(ReplyEnd::Failed(failure)) => ("failed", failure.code().to_owned()),
        None => ("failed", String::new()),
    };
    if !code.is_empty() {
        observer.failed(&code);
    }
    let (pieces, ms) = (entry.log.received(), began.elapsed().as_millis());
    tracing::info!(
        reply = %record.id, model = %record.model, key = record.key, endpoint = record.kind, end,
        code, pieces, tokens, ms = %ms, "a reply ended"
    );
}
