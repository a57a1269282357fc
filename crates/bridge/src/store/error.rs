//! Errors of the model store.

use std::io;

/// Error of the model store: one sentence that names the object and the remedy.
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
        /// Error code of the store.
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
    },
    /// The object was found but is invalid.
    #[error("{object} cannot be used: {why}")]
    Unusable {
        /// Address of the object.
        object: String,
        /// Reason.
        why: String,
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
    pub(crate) fn unusable(object: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unusable { object: object.into(), why: why.into() }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }
}

/// Failure of one request, which decides about a retry.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Transient failure: a retry may succeed.
    Passing(String),
    /// Permanent failure.
    Lasting(StoreError),
}

impl Fault {
    /// Converts the failure to an error where there is no retry.
    pub(crate) fn lasting(self, object: &str) -> StoreError {
        match self {
            Self::Lasting(error) => error,
            Self::Passing(why) => StoreError::unusable(object, why),
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Lasting(error)
    }
}
