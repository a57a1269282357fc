//! Text of an error with its causes.

use std::error::Error;

/// Formats an error and its causes in one line.
///
/// A cause that the line ends with already is left out: some libraries put their sources into their
/// own messages.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !line.ends_with(&words) {
            line = format!("{line}: {words}");
        }
        next = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Outer(&'static str, #[source] std::num::ParseIntError);

    #[track_caller]
    fn check(outer: &'static str, line: &str) {
        let cause = "x".parse::<u8>().unwrap_err();
        assert_eq!(chain(&Outer(outer, cause)), line);
    }

    #[test]
    fn a_cause_stands_in_the_line_once() {
        check("no port", "no port: invalid digit found in string");
        check("no port: invalid digit found in string", "no port: invalid digit found in string");
    }
}
