//! End of a reply, as it is told and as both stores keep it.
//!
//! A reply that is read back has the end that it had, with all that clients are told of it: kind,
//! code, field and message.

use nsbridge_client::Summary;
use nsbridge_protocol::NO_ROOM;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// End of a reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "StoredEnd", into = "StoredEnd")]
pub enum ReplyEnd {
    /// Complete reply.
    Done(Summary),
    /// Reply that failed, or that was given up.
    Failed(Failure),
}

/// End of a reply as it is stored.
#[derive(Serialize, Deserialize)]
enum StoredEnd {
    Done(Summary),
    Failed {
        code: String,
        message: String,
        /// Whole failure; absent in what earlier versions stored, and ignored by them.
        #[serde(default)]
        error: Option<Box<Failure>>,
    },
}

impl From<ReplyEnd> for StoredEnd {
    fn from(end: ReplyEnd) -> Self {
        match end {
            ReplyEnd::Done(summary) => Self::Done(summary),
            ReplyEnd::Failed(failure) => Self::Failed {
                code: failure.code().to_owned(),
                message: failure.message().to_owned(),
                error: Some(Box::new(failure)),
            },
        }
    }
}

impl From<StoredEnd> for ReplyEnd {
    fn from(end: StoredEnd) -> Self {
        match end {
            StoredEnd::Done(summary) => Self::Done(summary),
            StoredEnd::Failed { error: Some(failure), .. } => Self::Failed(*failure),
            StoredEnd::Failed { code, message, error: None } => {
                Self::Failed(former_failure(Some(&code), message))
            }
        }
    }
}

/// Returns the failure that an earlier version stored by its message, and in shared stores by its
/// code.
pub(crate) fn former_failure(code: Option<&str>, message: String) -> Failure {
    let cancelled = Failure::cancelled();
    if code == Some(cancelled.code()) || message == cancelled.message() {
        return cancelled;
    }
    if message.contains(NO_ROOM) {
        return Failure::bad_request(message).coded("context_length_exceeded");
    }
    match code {
        Some("invalid_request_error") => Failure::bad_request(message),
        Some(code) => Failure::internal(message).coded(code),
        None => Failure::internal(message),
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::NO_ROOM;

    use super::{ReplyEnd, former_failure};
    use crate::failure::Failure;
    use crate::store::testing::{assert_same, ends};

    #[test]
    fn an_end_is_read_back_as_it_was() {
        for end in ends() {
            let stored = serde_json::to_vec(&end).unwrap();
            assert_same(&serde_json::from_slice(&stored).unwrap(), &end);
        }
    }

    #[test]
    fn the_failures_of_earlier_versions_have_their_codes() {
        let status = |failure: &Failure| (failure.kind().status(), failure.code().to_owned());
        let canceled = || "the request was canceled".to_owned();
        for code in [None, Some("cancelled")] {
            let failure = former_failure(code, canceled());
            assert_eq!(status(&failure), (400, "cancelled".to_owned()));
        }
        let long = former_failure(None, format!("the prompt {NO_ROOM}"));
        assert_eq!(status(&long), (400, "context_length_exceeded".to_owned()));
        let poison = former_failure(Some("poison"), "the model failed".to_owned());
        assert_eq!(status(&poison), (500, "poison".to_owned()));
        let shared = r#"{"Failed":{"code":"cancelled","message":"the request was canceled"}}"#;
        let shared = serde_json::from_str(shared).unwrap();
        assert_same(&shared, &ReplyEnd::Failed(Failure::cancelled()));
    }
}
