//! End of a reply as both stores keep it.
//!
//! A reply that is read back has the end that it had, with all that clients are told of it: status,
//! code, field and message.

use std::time::SystemTime;

use nsbridge_client::Summary;
use nsbridge_protocol::NO_ROOM;
use serde::{Deserialize, Serialize};

use crate::replies::reply_log::Ending;
use crate::text::error::ApiError;

/// End of a reply as it is stored.
#[derive(Serialize, Deserialize)]
pub(crate) enum StoredEnd {
    Done(Summary),
    Failed {
        code: String,
        message: String,
        /// Whole error; absent in what earlier versions stored, and ignored by them.
        #[serde(default)]
        error: Option<Box<ApiError>>,
    },
}

impl From<&Ending> for StoredEnd {
    fn from(ending: &Ending) -> Self {
        match ending {
            Ending::Done(summary) => Self::Done(summary.clone()),
            Ending::Failed(error) => Self::Failed {
                code: error.code().to_owned(),
                message: error.message().to_owned(),
                error: Some(Box::new(error.clone())),
            },
        }
    }
}

impl From<StoredEnd> for Ending {
    fn from(end: StoredEnd) -> Self {
        match end {
            StoredEnd::Done(summary) => Self::Done(summary),
            StoredEnd::Failed { error: Some(error), .. } => Self::Failed(*error),
            StoredEnd::Failed { code, message, error: None } => {
                Self::Failed(former(Some(&code), message))
            }
        }
    }
}

/// End of a reply, and its time, as the store on disk keeps it.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeptEnding {
    pub(crate) at: SystemTime,
    /// Absent in what earlier versions stored.
    #[serde(default)]
    end: Option<StoredEnd>,
    /// Summary of a complete reply of an earlier version.
    #[serde(default, skip_serializing)]
    summary: Option<Summary>,
    /// Error message of an earlier version.
    #[serde(default, skip_serializing)]
    message: String,
}

impl KeptEnding {
    pub(crate) fn now(ending: &Ending) -> Self {
        let (at, end) = (SystemTime::now(), Some(ending.into()));
        Self { at, end, summary: None, message: String::new() }
    }

    pub(crate) fn ending(self) -> Ending {
        match (self.end, self.summary) {
            (Some(end), _) => end.into(),
            (None, Some(summary)) => Ending::Done(summary),
            (None, None) => Ending::Failed(former(None, self.message)),
        }
    }
}

/// Returns the error that an earlier version stored by its message, and in shared stores by its code.
fn former(code: Option<&str>, message: String) -> ApiError {
    let cancelled = ApiError::cancelled();
    if code == Some(cancelled.code()) || message == cancelled.message() {
        return cancelled;
    }
    if message.contains(NO_ROOM) {
        return ApiError::bad_request(message).coded("context_length_exceeded");
    }
    match code {
        Some("invalid_request_error") => ApiError::bad_request(message),
        Some(code) => ApiError::internal(message).coded(code),
        None => ApiError::internal(message),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use nsbridge_client::{Error, ErrorCode, Summary};
    use nsbridge_protocol::{Finish, NO_ROOM};

    use super::{StoredEnd, former};
    use crate::replies::reply_log::Ending;
    use crate::text::error::ApiError;

    /// Returns an end of each kind, for the tests of both stores. The complete reply has no pieces.
    pub(crate) fn ends() -> Vec<Ending> {
        let worker = |code, message: &str| {
            ApiError::from(Error::Failed { code, message: message.to_owned() })
        };
        let too_long = format!("the prompt has 9 tokens, which {NO_ROOM} of 8");
        let errors = [
            ApiError::cancelled(),
            worker(ErrorCode::BadInput, &too_long),
            worker(ErrorCode::BadInput, "`top_p` must be above 0"),
            worker(ErrorCode::ReplyTooLarge, "the reply is too large"),
            worker(ErrorCode::ModelFailed, "it failed"),
            worker(ErrorCode::Expired, ""),
            ApiError::timeout("the reply was not complete at its deadline"),
            ApiError::limited("wait", Duration::from_secs(9)),
            ApiError::no_broker(),
            ApiError::not_found("it is gone"),
        ];
        let done = Ending::Done(Summary::new(Finish::LENGTH));
        std::iter::once(done).chain(errors.map(Ending::Failed)).collect()
    }

    /// Checks that clients are told the same of both ends.
    #[track_caller]
    pub(crate) fn assert_same(read: &Ending, told: &Ending) {
        assert_eq!(format!("{read:?}"), format!("{told:?}"));
    }

    #[test]
    fn an_end_is_read_back_as_it_was() {
        for ending in ends() {
            let stored = serde_json::to_vec(&StoredEnd::from(&ending)).unwrap();
            let read: StoredEnd = serde_json::from_slice(&stored).unwrap();
            assert_same(&read.into(), &ending);
        }
    }

    #[test]
    fn the_errors_of_earlier_versions_have_their_codes() {
        let status = |error: &ApiError| (error.status().as_u16(), error.code().to_owned());
        let canceled = || "the request was canceled".to_owned();
        for code in [None, Some("cancelled")] {
            assert_eq!(status(&former(code, canceled())), (400, "cancelled".to_owned()));
        }
        let long = former(None, format!("the prompt {NO_ROOM}"));
        assert_eq!(status(&long), (400, "context_length_exceeded".to_owned()));
        let poison = former(Some("poison"), "the model failed".to_owned());
        assert_eq!(status(&poison), (500, "poison".to_owned()));
        let shared = r#"{"Failed":{"code":"cancelled","message":"the request was canceled"}}"#;
        let shared: StoredEnd = serde_json::from_str(shared).unwrap();
        assert_same(&shared.into(), &Ending::Failed(ApiError::cancelled()));
    }
}
