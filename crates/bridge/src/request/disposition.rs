//! Disposition of a run: its consequences for the client, the message and the worker.

use std::time::Duration;

use nsbridge_handler::transcript::Reader;
use nsbridge_handler::{Error, Finish, Stop};
use nsbridge_protocol::{ErrorCode, Failure};

use crate::observability::metrics::Outcome;
use crate::request::runner::CallEnd;
use crate::timing::Timing;

/// Next step of the worker after a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerAction {
    /// Take the next delivery, unless the worker leaves.
    Continue,
    /// Stop consuming for this long, then take the next delivery.
    Pause(Duration),
}

/// Reason and consequences of the end of a run.
#[derive(Clone, Debug)]
pub(crate) enum Disposition {
    /// Complete reply: ack.
    Completed(Finish),
    /// Failure that the client receives: ack.
    Failed(Failure),
    /// Reply that cannot be delivered, because the client is gone or the time is over: ack.
    Undelivered(ErrorCode),
    /// Job that another worker continues: requeue.
    HandedOff,
    /// Request on which the model failed: publish a copy that is delivered later, then ack.
    RetryLater,
    /// Broken handler, for which the worker exits: requeue.
    Broken,
    /// Reply that could not be sealed: requeue, and the worker pauses.
    Unsealed,
    /// Request that ends its workers (rule R1): send the client the error, publish the dead letter,
    /// ack. Carries the number of recorded runs that did not return.
    Poison(u32),
}

impl Disposition {
    /// Decides the disposition of a run from the end of its call. A stop decides it, whatever the
    /// handler returned, unless the handler is broken.
    pub(crate) fn of(end: CallEnd, reader: &Reader) -> Self {
        let fail = |code: ErrorCode, message: String| Self::Failed(Failure::new(code, message));
        let result = match end {
            // A call may succeed before it has seen a stop, but not after.
            CallEnd::Returned(Ok(finish)) if !reader.told() => return Self::Completed(finish),
            CallEnd::Broke(_) => return Self::Broken,
            CallEnd::Returned(result) => result,
            CallEnd::GivenUp => Err(Error::retry("it was stopped and did not return")),
        };
        match (reader.stopped(), result) {
            (Some(Stop::ClientGone), _) => Self::Undelivered(ErrorCode::Cancelled),
            (Some(stop @ Stop::Cancelled), _) => fail(ErrorCode::Cancelled, stop.to_string()),
            (Some(stop @ Stop::Deadline), _) => fail(ErrorCode::Deadline, stop.to_string()),
            (Some(stop @ Stop::TooLarge), _) => fail(ErrorCode::ReplyTooLarge, stop.to_string()),
            (Some(Stop::HandOff), _) => Self::HandedOff,
            (None, Err(Error::BadInput(why))) => fail(ErrorCode::BadInput, why),
            // A handler around another one returns what stopped the inner reply.
            (None, Err(Error::Stopped(stop @ Stop::TooLarge))) => {
                fail(ErrorCode::ReplyTooLarge, stop.to_string())
            }
            // The cause may quote what the user wrote, and paths and addresses of the worker.
            (None, Err(Error::Failed(_))) => {
                fail(ErrorCode::ModelFailed, "the model failed on this request".to_owned())
            }
            (None, _) => Self::RetryLater,
        }
    }

    /// Returns true if the reply has ended, or no client waits for it any more. False for a poison
    /// request: its end is published by the settlement, which may fail.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Failed(_) | Self::Undelivered(_))
    }

    /// Returns the next step of the worker.
    pub(crate) fn action(&self, timing: &Timing) -> WorkerAction {
        match self {
            Self::Unsealed => WorkerAction::Pause(timing.seal_pause),
            _ => WorkerAction::Continue,
        }
    }

    /// Returns the error code of the run; `None` for a complete reply and for a hand-off.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Completed(_) | Self::HandedOff | Self::Unsealed => None,
            Self::Failed(failure) => Some(failure.code),
            Self::Undelivered(code) => Some(*code),
            Self::RetryLater | Self::Broken => Some(ErrorCode::ModelFailed),
            Self::Poison(_) => Some(ErrorCode::Poison),
        }
    }

    /// Returns the word for the log.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Completed(_) => "ok",
            Self::HandedOff | Self::Unsealed => "moved",
            Self::RetryLater => "retried",
            _ => self.code().map_or("ok", ErrorCode::as_str),
        }
    }

    /// Returns the outcome as the metrics count it.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Completed(finish) => Outcome::Ok(finish.usage),
            Self::Failed(failure) => Outcome::Failed(failure.code),
            Self::Undelivered(code) => Outcome::Failed(*code),
            Self::HandedOff | Self::Broken | Self::Unsealed => Outcome::Moved,
            Self::RetryLater => Outcome::Retried,
            Self::Poison(_) => Outcome::Failed(ErrorCode::Poison),
        }
    }
}
