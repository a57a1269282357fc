//! What a call's outcome means: for its client, for its message, for its worker.

use std::time::Duration;

use nsbridge_handler::transcript::Reader;
use nsbridge_handler::{Error as HandlerError, Finish, Stop};
use nsbridge_protocol::{ErrorCode, Failure};

use crate::attempt::Ending;
use crate::metrics;
use crate::runner::Outcome;

/// What becomes of the slot after a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It takes the next.
    Next,
    /// It rests first.
    Rest(Duration),
    /// The handler is broken: the worker leaves.
    Leave(&'static str),
}

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Ack,
    Requeue,
    /// Publish a copy that comes back later, then ack.
    Retry,
    /// Rule R1: so many recorded runs did not return. Tell the client, publish the dead letter, ack.
    Poison(u32),
}

/// What a call's outcome means for its client, its message and its worker.
pub(crate) struct Verdict {
    /// The code in logs; `None` is success.
    pub(crate) code: Option<ErrorCode>,
    /// The last frame; `None` if nobody is there to read it.
    pub(crate) ending: Option<Ending>,
    pub(crate) settlement: Settlement,
    pub(crate) after: After,
}

impl Verdict {
    /// The same in the words of the metrics.
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
        // A handler may finish before it meets a stop, and not after.
        Outcome::Returned(Ok(finish)) if !reader.told() => return ok(finish),
        Outcome::Returned(Ok(_)) => HandlerError::retry("it was stopped and took no notice"),
        Outcome::Panicked => {
            let after = After::Leave("it panicked");
            return hand_over(Settlement::Requeue, ErrorCode::ModelFailed, after);
        }
        Outcome::GivenUp => HandlerError::retry("it was stopped and did not return"),
        Outcome::Returned(Err(error)) => error,
    };
    // A stop is the reason whatever the handler made of it.
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
