//! Traces: the arrival times and lengths of requests.
//!
//! [`Trace::read`] knows four forms of text, and tells them apart by the first line:
//!
//! | form | first line |
//! |---|---|
//! | CSV of the Azure LLM inference traces, times of a calendar | `TIMESTAMP,ContextTokens,GeneratedTokens` |
//! | CSV with seconds | `at_s,input_tokens,output_tokens` |
//! | JSON lines of Mooncake's traces, milliseconds | `{"timestamp": 0, "input_length": 6758, "output_length": 500}` |
//! | JSON lines with seconds | `{"at_s": 0.5, "input_tokens": 374, "output_tokens": 44}` |
//!
//! Requests need not be in order. Calendar times count from the first request. [`Day`] generates a trace.

mod calendar;
mod generate;
mod line;
#[cfg(test)]
mod tests;

use std::io::BufRead;

use serde::{Deserialize, Serialize};

pub use self::generate::{Day, Lengths};
use self::line::{Form, NANOSECONDS_PER_S};
use crate::error::{Error, refuse};

/// Longest trace: a leap year.
const MAX_DURATION_S: f64 = 366.0 * 86_400.0;

/// Request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Time of its arrival in seconds since the start of the trace.
    pub at_s: f64,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens of its reply.
    pub output_tokens: u32,
}

/// Requests in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    requests: Vec<Request>,
    duration_s: f64,
}

impl Trace {
    /// Makes a trace of requests, and orders them. It lasts `duration_s`, or until the last arrival if that is later.
    ///
    /// # Errors
    ///
    /// Returns an error if a time is negative, not a number, or over 366 days.
    pub fn new(mut requests: Vec<Request>, duration_s: f64) -> Result<Self, Error> {
        let is_usable = |time_s: &f64| (0.0..=MAX_DURATION_S).contains(time_s);
        let mut times = requests.iter().map(|request| request.at_s);
        if let Some(wrong) = times.find(|time_s| !is_usable(time_s)) {
            let expected = "set it to a number of seconds from 0 to 366 days";
            return refuse("at_s of a request", &wrong, expected);
        }
        if !is_usable(&duration_s) {
            let expected = "set it to a number of seconds from 0 to 366 days";
            return refuse("duration_s", &duration_s, expected);
        }
        requests.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        let last_s = requests.last().map_or(0.0, |request| request.at_s);
        Ok(Self { requests, duration_s: duration_s.max(last_s) })
    }

    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// Returns an error with the number of the first line that has another form than the first one.
    pub fn read(reader: impl BufRead) -> Result<Self, Error> {
        let mut form: Option<Form> = None;
        let mut rows = Vec::new();
        for (number, text) in (1..).zip(reader.lines()) {
            let text = text.map_err(|source| Error::Read { line: number, source })?;
            // Spreadsheets begin a file with a byte order mark.
            let text = text.trim_start_matches('\u{feff}').trim();
            if text.is_empty() {
                continue;
            }
            let wrong = |problem, expected| Error::Line { line: number, problem, expected };
            let is_first = form.is_none();
            let known = form.map_or_else(|| Form::of_first_line(text), Ok);
            let known = known.map_err(|problem| wrong(problem, line::ANY_FORM))?;
            form = Some(known);
            if !is_first || !known.has_header() {
                rows.push(known.row(text).map_err(|problem| wrong(problem, known.expected()))?);
            }
        }
        let Some(form) = form else {
            let problem = "there is no line with text".to_owned();
            return Err(Error::Line { line: 1, problem, expected: line::ANY_FORM });
        };
        let first_ns = rows.iter().map(|row| row.at_ns).min().unwrap_or_default();
        let start_ns = if form.is_calendar() { first_ns } else { 0 };
        let request = |row: line::Row| Request {
            at_s: (row.at_ns - start_ns) as f64 / NANOSECONDS_PER_S,
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
        };
        Self::new(rows.into_iter().map(request).collect(), 0.0)
    }

    /// Requests in the order of their arrival.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Time from the start to the end, in seconds.
    pub fn duration_s(&self) -> f64 {
        self.duration_s
    }

    /// Tokens of a prompt and of a reply on average, or zeros if there is no request.
    pub fn mean_tokens(&self) -> (f64, f64) {
        let count = self.requests.len().max(1) as f64;
        let input: f64 = self.requests.iter().map(|it| f64::from(it.input_tokens)).sum();
        let output: f64 = self.requests.iter().map(|it| f64::from(it.output_tokens)).sum();
        (input / count, output / count)
    }

    /// Writes the trace as CSV with seconds, which [`Self::read`] reads.
    pub fn to_csv(&self) -> String {
        let mut text = format!("{}\n", line::SECONDS_HEADER);
        for Request { at_s, input_tokens, output_tokens } in &self.requests {
            text.push_str(&format!("{at_s},{input_tokens},{output_tokens}\n"));
        }
        text
    }
}
