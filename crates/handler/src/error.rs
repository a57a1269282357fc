//! Errors that end a call, and how the worker handles the request.

use std::error::Error as StdError;
use std::fmt;

use crate::transcript::Stop;

/// Result of the methods of a handler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a call ended without an answer. The variant decides how the worker handles the
/// request.
///
/// Like `anyhow::Error` this type does not implement [`std::error::Error`], so that `?` turns any
/// error into [`Error::Failed`], those of `anyhow` and boxed ones included. [`Retryable::retryable`] makes
/// it [`Error::Retry`] instead.
///
/// ```
/// use nsbridge_handler::{Error, Result, Retryable};
///
/// fn seed(text: &str) -> Result<u64> {
///     Ok(text.parse()?) // fails at once: another try would fail alike
/// }
///
/// fn vocabulary() -> Result<String> {
///     std::fs::read_to_string("vocabulary.txt").retryable() // another worker may have the file
/// }
///
/// assert!(matches!(seed("x"), Err(Error::Failed(_))));
/// assert!(matches!(vocabulary(), Err(Error::Retry(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot be answered. The client receives this sentence, and the request is not
    /// retried.
    BadInput(String),
    /// The call failed on this request and would fail again. The client receives `model-failed` without
    /// the cause, and the request is not retried.
    Failed(Cause),
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

    /// Creates an error for a request that fails wherever it runs.
    pub fn failed(cause: impl Into<Cause>) -> Self {
        Self::Failed(cause.into())
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
            Self::Failed(cause) | Self::Retry(cause) | Self::Fatal(cause) => {
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

impl<E: Into<Cause>> From<E> for Error {
    /// Makes the cause an [`Error::Failed`]: an error of any type, one of `anyhow`, or a text.
    fn from(cause: E) -> Self {
        Self::failed(cause)
    }
}

/// Conversion of a result whose error another worker, or a later try, may not meet.
pub trait Retryable<T> {
    /// Makes the error an [`Error::Retry`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::Retry`] with the error as its cause.
    fn retryable(self) -> Result<T>;
}

impl<T, E: Into<Cause>> Retryable<T> for Result<T, E> {
    fn retryable(self) -> Result<T> {
        self.map_err(Error::retry)
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, Retryable as _, Stop};

    #[test]
    fn a_question_mark_fails_the_request_at_once_and_a_stop_stays_a_stop() {
        fn parse(text: &str) -> Result<u8, Error> {
            Ok(text.parse()?)
        }
        fn stop() -> Result<(), Error> {
            Err(Stop::Cancelled)?
        }
        assert!(matches!(parse("x"), Err(Error::Failed(_))));
        assert!(matches!("x".parse::<u8>().retryable(), Err(Error::Retry(_))));
        assert!(matches!(stop(), Err(Error::Stopped(Stop::Cancelled))));
        assert_eq!(parse("x").unwrap_err().to_string(), "invalid digit found in string");
    }

    #[test]
    fn errors_of_anyhow_boxed_errors_and_texts_are_causes() {
        fn by_anyhow() -> Result<(), Error> {
            Err(anyhow::anyhow!("inner").context("outer"))?;
            Ok(())
        }
        fn boxed() -> Result<(), Error> {
            Err::<(), super::Cause>("boxed".into())?;
            Ok(())
        }
        let text = Error::from("a text");
        for (error, says) in [
            (by_anyhow().unwrap_err(), "outer: inner"),
            (boxed().unwrap_err(), "boxed"),
            (text, "a text"),
        ] {
            assert!(matches!(error, Error::Failed(_)), "{error:?}");
            assert_eq!(error.to_string(), says);
        }
    }
}
