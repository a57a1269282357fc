//! End of a reply, for its caller's limits and for the metrics.

use crate::access::Reservation;
use crate::metrics::End;
use crate::run::{Ending, Run};

/// Charges the tokens that a reply took to its caller's limits, and returns their number.
pub(super) fn settle(run: &Run, reservation: Reservation) -> u64 {
    let tokens = match run.ending() {
        Some(Ending::Done(summary)) => summary.usage.input_tokens + summary.usage.output_tokens,
        // A reply that was given up has cost the tokens that it has.
        Some(Ending::Failed(_)) if run.is_cancelled() => run.pieces().0.len() as u64,
        _ => 0,
    };
    reservation.settle(tokens);
    tokens
}

/// Returns the end of a reply for the metrics.
pub(super) fn end(run: &Run) -> End {
    match run.ending() {
        Some(Ending::Done(summary)) => End::Done(summary.usage),
        Some(Ending::Failed(_)) if run.is_cancelled() => End::Cancelled,
        Some(Ending::Failed(_)) | None => End::Failed,
    }
}
