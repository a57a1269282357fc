//! Errors of the model store.

use std::io;

use nsbridge_handler::Cause;

/// Error of the model store: one sentence that names the object and the remedy. Its source, if there
/// is one, has the details.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The object does not exist.
    #[error("there is no {object}")]
    Missing {
        /// Object that was looked up.
        object: String,
    },
    /// The object changed since it was opened.
    #[error("{object} changed while it was read: push a model under a new revision instead")]
    Changed {
        /// Address of the object.
        object: String,
    },
    /// The bytes do not match the manifest.
    #[error(
        "chunk {chunk} of {object} is not what the manifest says, in {tries} readings: \
         push the model again, with --force"
    )]
    Corrupt {
        /// Address of the object.
        object: String,
        /// Number of the chunk, from 0.
        chunk: u64,
        /// Number of reads.
        tries: u32,
    },
    /// The store denied access.
    #[error("access to {object} was refused ({code}): see that this role may read and list it")]
    Denied {
        /// Address of the object.
        object: String,
        /// Error code of the store, and its message.
        code: String,
    },
    /// The store does not answer.
    #[error("{object} could not be had: no byte of it came for {seconds} s ({why})")]
    Unreachable {
        /// Address of the object.
        object: String,
        /// Time without a byte, in seconds.
        seconds: u64,
        /// Last failure.
        why: String,
        /// Error behind the last failure, unless the store itself noticed it.
        source: Option<Cause>,
    },
    /// The object was found but is invalid.
    #[error("{object} cannot be used: {why}")]
    Unusable {
        /// Address of the object.
        object: String,
        /// Reason.
        why: String,
        /// Error behind the reason, unless the store itself noticed it.
        source: Option<Cause>,
    },
    /// This machine's disk, memory or threads failed.
    #[error("could not {what}")]
    System {
        /// Operation that failed, in the infinitive.
        what: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The request was refused because it would do harm.
    #[error("{0}")]
    Refused(String),
    /// The load was aborted.
    #[error("the load was given up")]
    GivenUp,
}

impl StoreError {
    pub(crate) fn unusable(object: impl Into<String>, reason: impl Into<Failure>) -> Self {
        let Failure { why, source } = reason.into();
        Self::Unusable { object: object.into(), why, source }
    }

    pub(crate) fn unreachable(object: String, seconds: u64, last: Failure) -> Self {
        let Failure { why, source } = last;
        Self::Unreachable { object, seconds, why, source }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }
}

/// Failure of one request, which decides about a retry.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Transient failure: a retry may succeed.
    Passing(Failure),
    /// Permanent failure.
    Lasting(StoreError),
}

impl Fault {
    pub(crate) fn passing(failure: impl Into<Failure>) -> Self {
        Self::Passing(failure.into())
    }

    /// Converts the failure to an error where there is no retry.
    pub(crate) fn lasting(self, object: &str) -> StoreError {
        match self {
            Self::Lasting(error) => error,
            Self::Passing(failure) => StoreError::unusable(object, failure),
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Lasting(error)
    }
}

/// Reason of a failure, for a sentence that names the object, and the error behind it.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(crate) struct Failure {
    why: String,
    source: Option<Cause>,
}

impl Failure {
    pub(crate) fn new(why: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self { why: why.into(), source: Some(source.into()) }
    }

    /// Returns the failure to make or fill a buffer.
    pub(crate) fn of_buffer(error: nsbridge_handler::Error) -> Self {
        use nsbridge_handler::Error;

        match error {
            Error::Failed(cause) | Error::Retry(cause) | Error::Fatal(cause) => {
                Self::new("its bytes cannot be held in memory", cause)
            }
            other => other.to_string().into(),
        }
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, source: None }
    }
}

impl From<&str> for Failure {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}
