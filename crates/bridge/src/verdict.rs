//! Verdict on a call: consequences of its outcome for the client, the message and the worker.

use std::time::Duration;

use nsbridge_handler::transcript::Reader;
use nsbridge_handler::{Error as HandlerError, Finish, Stop};
use nsbridge_protocol::{ErrorCode, Failure};

use crate::attempt::Ending;
use crate::metrics;
use crate::runner::Outcome;

/// Next step of the worker after a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Take the next delivery.
    Next,
    /// Stop consuming for this long, then take the next delivery.
    Rest(Duration),
    /// Exit, because the handler is broken. Carries the reason.
    Leave(&'static str),
}

/// Settlement of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Ack,
    Requeue,
    /// Publish a copy that is delivered later, then ack.
    Retry,
    /// Send the client the error, publish the dead letter, ack (rule R1). Carries the number of
    /// recorded runs that did not return.
    Poison(u32),
}

/// Consequences of a call's outcome for the client, the message and the worker.
pub(crate) struct Verdict {
    /// Error code in the log; `None` is success.
    pub(crate) code: Option<ErrorCode>,
    /// Last frame of the stream; `None` if the client is gone.
    pub(crate) ending: Option<Ending>,
    pub(crate) settlement: Settlement,
    pub(crate) after: After,
}

impl Verdict {
    /// Returns the outcome as the metrics count it.
    pub(crate) fn outcome(&self) -> metrics::Outcome {
        match (&self.ending, self.settlement, self.code) {
            (Some(Ending::Ok(finish)), _, _) => metrics::Outcome::Ok(finish.usage),
            (_, Settlement::Requeue, _) => metrics::Outcome::Moved,
            (_, Settlement::Retry, _) => metrics::Outcome::Retried,
            (_, Settlement::Poison(_), _) => metrics::Outcome::Failed(ErrorCode::Poison),
            (_, Settlement::Ack, code) => {
                metrics::Outcome::Failed(code.unwrap_or(ErrorCode::Internal))
            }
        }
    }
}

pub(crate) fn judge(outcome: Outcome, reader: &Reader) -> Verdict {
    let ok = |finish: Finish| Verdict {
        code: None,
        ending: Some(Ending::Ok(finish)),
        settlement: Settlement::Ack,
        after: After::Next,
    };
    let fail = |code: ErrorCode, message: String| Verdict {
        code: Some(code),
        ending: Some(Ending::Error(Failure::new(code, message))),
        settlement: Settlement::Ack,
        after: After::Next,
    };
    let hand_over = |settlement: Settlement, code: ErrorCode, after: After| Verdict {
        code: Some(code),
        ending: Some(Ending::Moved),
        settlement,
        after,
    };
    let error = match outcome {
        // A call may succeed before it has seen a stop, but not after.
        Outcome::Returned(Ok(finish)) if !reader.told() => return ok(finish),
        Outcome::Returned(Ok(_)) => HandlerError::retry("it was stopped and took no notice"),
        Outcome::Panicked => {
            let after = After::Leave("it panicked");
            return hand_over(Settlement::Requeue, ErrorCode::ModelFailed, after);
        }
        Outcome::GivenUp => HandlerError::retry("it was stopped and did not return"),
        Outcome::Returned(Err(error)) => error,
    };
    // A stop decides the verdict, whatever the handler returned.
    match (reader.stopped(), error) {
        (Some(Stop::ClientGone), _) => {
            let quiet = fail(ErrorCode::Cancelled, String::new());
            Verdict { ending: None, ..quiet }
        }
        (Some(stop @ Stop::Cancelled), _) => fail(ErrorCode::Cancelled, stop.to_string()),
        (Some(stop @ Stop::Deadline), _) => fail(ErrorCode::Deadline, stop.to_string()),
        (Some(stop @ Stop::TooLarge), _) => fail(ErrorCode::ReplyTooLarge, stop.to_string()),
        (Some(Stop::HandOff), _) => {
            hand_over(Settlement::Requeue, ErrorCode::Internal, After::Next)
        }
        (None, HandlerError::BadInput(why)) => fail(ErrorCode::BadInput, why),
        (None, HandlerError::Fatal(_)) => {
            let after = After::Leave("it said so");
            hand_over(Settlement::Requeue, ErrorCode::ModelFailed, after)
        }
        (None, _) => hand_over(Settlement::Retry, ErrorCode::ModelFailed, After::Next),
    }
}
