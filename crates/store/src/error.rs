//! Why a model's bytes cannot be had.

use std::io;

/// Why a model's bytes cannot be had: one sentence with the object and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing is there.
    #[error("there is no {object}")]
    Missing {
        /// What was looked for.
        object: String,
    },
    /// The object is another one than it was.
    #[error("{object} changed while it was read: push a model under a new revision instead")]
    Changed {
        /// The object.
        object: String,
    },
    /// The bytes are not those that the manifest promises.
    #[error(
        "chunk {chunk} of {object} is not what the manifest says, in {tries} readings: \
         push the model again, with --force"
    )]
    Corrupt {
        /// The object.
        object: String,
        /// The number of the chunk, from 0.
        chunk: u64,
        /// How often it was read.
        tries: u32,
    },
    /// The store does not let us.
    #[error("access to {object} was refused ({code}): see that this role may read and list it")]
    Denied {
        /// The object.
        object: String,
        /// The store's word.
        code: String,
    },
    /// The store does not answer.
    #[error("{object} could not be had: no byte of it came for {seconds} s ({why})")]
    Unreachable {
        /// The object.
        object: String,
        /// How long nothing came.
        seconds: u64,
        /// What happened last.
        why: String,
    },
    /// It was found, and it is not what it should be.
    #[error("{object} cannot be used: {why}")]
    Unusable {
        /// The object.
        object: String,
        /// What is wrong with it.
        why: String,
    },
    /// This machine's disk, memory or threads failed.
    #[error("could not {what}")]
    System {
        /// What was being done.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// What was asked for would do harm.
    #[error("{0}")]
    Refused(String),
    /// The load was given up.
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

/// Why one reading failed, and so whether another may help.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It may go better in a moment.
    Passing(String),
    /// It will not.
    Lasting(StoreError),
}

impl Fault {
    /// What it is where nothing is tried again.
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
