//! Lines of traces in text.

use serde::Deserialize;
use serde_json::Value;

use super::calendar;

pub(super) const NANOSECONDS_PER_S: f64 = 1e9;

/// Largest time of a line in seconds, so that nanoseconds fit into 64 bits.
const MAX_TIME_S: f64 = 1e9;

pub(super) const AZURE_HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

pub(super) const SECONDS_HEADER: &str = "at_s,input_tokens,output_tokens";

/// Message about a first line of another form.
pub(super) const ANY_FORM: &str = "one of the headers `TIMESTAMP,ContextTokens,GeneratedTokens` and \
     `at_s,input_tokens,output_tokens`, or a JSON object with `timestamp`, `input_length` and `output_length` or with \
     `at_s`, `input_tokens` and `output_tokens`";

/// Request as a line has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) at_ns: i64,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
}

/// Form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Azure,
    SecondsCsv,
    Mooncake,
    SecondsJson,
}

/// Line of Mooncake's traces. Their other fields are not read.
#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
}

impl Form {
    pub(super) fn of_first_line(text: &str) -> Result<Self, String> {
        let columns: Vec<&str> = text.split(',').map(str::trim).collect();
        match columns.join(",").as_str() {
            AZURE_HEADER => return Ok(Self::Azure),
            SECONDS_HEADER => return Ok(Self::SecondsCsv),
            _ => {}
        }
        if !text.starts_with('{') {
            return Err("it is no header and no JSON object".to_owned());
        }
        let object: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let has = |field: &str| object.get(field).is_some();
        match (has("timestamp"), has("at_s")) {
            (true, false) => Ok(Self::Mooncake),
            (false, true) => Ok(Self::SecondsJson),
            (true, true) => Err("it has both `timestamp` and `at_s`".to_owned()),
            (false, false) => Err("it has neither `timestamp` nor `at_s`".to_owned()),
        }
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Azure => "three columns, such as `2023-11-16 18:17:03.9799600,4808,10`",
            Self::SecondsCsv => "three columns: seconds, tokens, tokens, such as `12.5,4808,10`",
            Self::Mooncake => {
                "an object such as {\"timestamp\": 12500, \"input_length\": 4808, \"output_length\": 10}"
            }
            Self::SecondsJson => {
                "an object such as {\"at_s\": 12.5, \"input_tokens\": 4808, \"output_tokens\": 10}"
            }
        }
    }

    pub(super) fn has_header(self) -> bool {
        matches!(self, Self::Azure | Self::SecondsCsv)
    }

    /// Returns true if times are of a calendar, so that the first one is the start.
    pub(super) fn is_calendar(self) -> bool {
        matches!(self, Self::Azure)
    }

    pub(super) fn row(self, text: &str) -> Result<Row, String> {
        let (at_ns, input_tokens, output_tokens) = match self {
            Self::Azure => {
                let [time, input, output] = columns(text)?;
                let at_ns = calendar::nanoseconds(time);
                (
                    at_ns.ok_or_else(|| format!("{time:?} is no time"))?,
                    tokens(input)?,
                    tokens(output)?,
                )
            }
            Self::SecondsCsv => {
                let [time, input, output] = columns(text)?;
                let at_s = time.parse().map_err(|_| format!("{time:?} is no number"))?;
                (from_seconds(at_s)?, tokens(input)?, tokens(output)?)
            }
            Self::Mooncake => {
                let line: MooncakeLine = json(text)?;
                (from_seconds(line.timestamp / 1000.0)?, line.input_length, line.output_length)
            }
            Self::SecondsJson => {
                let line: super::Request = json(text)?;
                (from_seconds(line.at_s)?, line.input_tokens, line.output_tokens)
            }
        };
        Ok(Row { at_ns, input_tokens, output_tokens })
    }
}

fn json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn columns(text: &str) -> Result<[&str; 3], String> {
    let columns: Vec<&str> = text.split(',').map(str::trim).collect();
    let count = columns.len();
    columns.try_into().map_err(|_| format!("it has {count} columns"))
}

fn tokens(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is no number of tokens"))
}

fn from_seconds(at_s: f64) -> Result<i64, String> {
    if (0.0..=MAX_TIME_S).contains(&at_s) {
        return Ok((at_s * NANOSECONDS_PER_S).round() as i64);
    }
    Err(format!("{at_s} s is no time from 0 to {MAX_TIME_S} s"))
}
