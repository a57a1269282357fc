//! Failures of options, traces and logs.

use std::io;

/// Failure of an option, or of a line of a trace or log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Option whose value cannot be used.
    #[error("{option} is {value}: {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Given value.
        value: String,
        /// Sentence that says which values can be used.
        expected: String,
    },
    /// Line that cannot be used.
    #[error("line {line}: {problem}; expected {expected}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Description of the fault.
        problem: String,
        /// Form of a correct line.
        expected: &'static str,
    },
    /// Line that cannot be read, or that is not UTF-8.
    #[error("cannot read line {line} as text")]
    Read {
        /// Number of the line, from 1.
        line: usize,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// Largest number that an option accepts. Products of a few of them stay finite.
const MAX_NUMBER: f64 = 1e12;

/// Refuses an option.
pub(crate) fn refuse<T>(
    option: &'static str,
    value: &impl ToString,
    expected: impl Into<String>,
) -> Result<T, Error> {
    Err(Error::Option { option, value: value.to_string(), expected: expected.into() })
}

/// Checks that an option is a number above zero.
pub(crate) fn positive(option: &'static str, value: f64, unit: &str) -> Result<(), Error> {
    if value > 0.0 && value <= MAX_NUMBER {
        return Ok(());
    }
    refuse(option, &value, format!("set it to a number of {unit} above 0, at most {MAX_NUMBER:e}"))
}

/// Checks that an option is zero or a number above zero.
pub(crate) fn not_negative(option: &'static str, value: f64, unit: &str) -> Result<(), Error> {
    if (0.0..=MAX_NUMBER).contains(&value) {
        return Ok(());
    }
    refuse(option, &value, format!("set it to a number of {unit} from 0 to {MAX_NUMBER:e}"))
}
