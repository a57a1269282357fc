//! Errors that end a call, and how the worker handles the request.

use std::error::Error as StdError;
use std::fmt;

use crate::Stop;

/// Result of the methods of a handler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a call ended without an answer. The variant decides how the worker handles the
/// request.
///
/// Like `anyhow::Error` this type does not implement [`std::error::Error`], so that `?` turns any
/// error into [`Error::Retry`]. Errors that are already boxed go through [`Error::retry`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot be answered. The client receives this sentence, and the request is not
    /// retried.
    BadInput(String),
    /// The request failed here and may succeed elsewhere. It is retried a bounded number of times.
    Retry(Cause),
    /// The handler itself is broken. The request goes back to the queue and the worker exits.
    Fatal(Cause),
    /// The call was stopped.
    Stopped(Stop),
}

/// Source error inside an [`Error`].
pub type Cause = Box<dyn StdError + Send + Sync>;

impl Error {
    /// Creates an error for an input that cannot be answered; the client receives `why`.
    pub fn bad_input(why: impl Into<String>) -> Self {
        Self::BadInput(why.into())
    }

    /// Creates an error for a request that failed here and may succeed elsewhere.
    pub fn retry(cause: impl Into<Cause>) -> Self {
        Self::Retry(cause.into())
    }

    /// Creates an error for a handler that is broken and must not take another request.
    pub fn fatal(cause: impl Into<Cause>) -> Self {
        Self::Fatal(cause.into())
    }
}

impl fmt::Display for Error {
    /// Writes one line with the chain of causes. Not for logs: a cause may quote what the user
    /// wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadInput(why) => f.write_str(why),
            Self::Retry(cause) | Self::Fatal(cause) => {
                write!(f, "{cause}")?;
                let mut next = cause.source();
                while let Some(cause) = next {
                    write!(f, ": {cause}")?;
                    next = cause.source();
                }
                Ok(())
            }
            Self::Stopped(stop) => write!(f, "{stop}"),
        }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(cause: E) -> Self {
        Self::Retry(Box::new(cause))
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, Stop};

    #[test]
    fn a_question_mark_turns_any_error_into_a_retry_and_a_stop_into_a_stop() {
        fn parse(text: &str) -> Result<u8, Error> {
            Ok(text.parse()?)
        }
        fn stop() -> Result<(), Error> {
            Err(Stop::Cancelled)?
        }
        assert!(matches!(parse("x"), Err(Error::Retry(_))));
        assert!(matches!(stop(), Err(Error::Stopped(Stop::Cancelled))));
        assert_eq!(parse("x").unwrap_err().to_string(), "invalid digit found in string");
    }
}
