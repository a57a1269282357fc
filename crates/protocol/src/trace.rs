//! Trace context of a request: the W3C `traceparent` header.
//!
//! Specification: <https://www.w3.org/TR/trace-context/>. The header travels unsealed beside a
//! frame, so anyone with access to the broker may have written it. It only decides where spans are
//! shown.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Identifier of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// Identifier of one span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// Reference to a span of another process: `00-<trace id>-<span id>-<flags>`.
///
/// ```
/// use nsbridge_protocol::TraceParent;
///
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let caller: TraceParent = header.parse()?;
/// let worker = caller.child([7; 8]);
/// assert_eq!(worker.trace, caller.trace);
/// assert!(worker.to_string().ends_with("-0707070707070707-01"));
/// # Ok::<(), nsbridge_protocol::InvalidTraceParent>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent {
    /// Trace that the span belongs to.
    pub trace: TraceId,
    /// Parent of the receiver's own spans.
    pub span: SpanId,
    /// Sampled flag: the process that began the trace records it.
    pub sampled: bool,
}

/// Error of a text that is no `traceparent`.
///
/// The specification tells the receiver to begin a new trace in this case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of the W3C's Trace Context")]
pub struct InvalidTraceParent;

/// Length of version 00 in bytes: `00-` 32 `-` 16 `-` 2.
const VERSION_00_BYTES: usize = 55;

/// Only flag that this version passes on. The specification requires zero for all others.
const SAMPLED: u8 = 1;

impl TraceParent {
    /// Creates the first span of a trace from random bytes; returns `None` if an id is all zeros.
    ///
    /// The specification declares such ids invalid.
    pub fn root(trace: [u8; 16], span: [u8; 8]) -> Option<Self> {
        let root = Self { trace: TraceId(trace), span: SpanId(span), sampled: true };
        (trace != [0; 16] && span != [0; 8]).then_some(root)
    }

    /// Returns the reference to another span of the same trace.
    pub fn child(self, span: [u8; 8]) -> Self {
        Self { span: SpanId(span), ..self }
    }
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    /// Parses version 00, and from later versions the prefix that they promise to keep.
    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        read(text.as_bytes()).ok_or(InvalidTraceParent)
    }
}

impl TryFrom<String> for TraceParent {
    type Error = InvalidTraceParent;

    fn try_from(text: String) -> Result<Self, InvalidTraceParent> {
        text.parse()
    }
}

impl From<TraceParent> for String {
    fn from(span: TraceParent) -> Self {
        span.to_string()
    }
}

fn read(text: &[u8]) -> Option<TraceParent> {
    let (known, rest) = text.split_at_checked(VERSION_00_BYTES)?;
    let [version] = hex(&known[..2])?;
    let later = version > 0 && matches!(rest, [] | [b'-', ..]);
    let dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
    if version == 0xff || !dashes || !(rest.is_empty() || later) {
        return None;
    }
    let [flags] = hex(&known[53..])?;
    let read = TraceParent::root(hex(&known[3..35])?, hex(&known[36..52])?)?;
    Some(TraceParent { sampled: flags & SAMPLED != 0, ..read })
}

/// Decodes lower-case hex digits; the specification allows no upper-case ones.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::TraceParent;

    /// Example from the specification.
    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[track_caller]
    fn check_refused(text: &str) {
        assert_eq!(text.parse::<TraceParent>(), Err(super::InvalidTraceParent), "{text}");
    }

    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let read: TraceParent = EXAMPLE.parse().unwrap();
        assert_eq!(read.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(read.span.0, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(read.sampled);
        assert_eq!(read.to_string(), EXAMPLE);
        let child = read.child([1; 8]);
        assert_eq!(child.to_string(), EXAMPLE.replace("00f067aa0ba902b7", "0101010101010101"));
    }

    #[test]
    fn only_the_sampled_flag_is_passed_on() {
        let with = |flags: &str| EXAMPLE.replace("-01", flags).parse::<TraceParent>().unwrap();
        assert!(!with("-00").sampled);
        assert_eq!(with("-ff").to_string(), EXAMPLE);
        assert!(with("-fe").to_string().ends_with("-00"));
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = EXAMPLE.replacen("00", "cc", 1);
        assert_eq!(later.parse::<TraceParent>().unwrap().to_string(), EXAMPLE);
        assert_eq!(format!("{later}-more").parse::<TraceParent>().unwrap().to_string(), EXAMPLE);
        check_refused(&format!("{later}.more"));
        check_refused(&EXAMPLE.replacen("00", "ff", 1));
    }

    #[test]
    fn what_the_specification_calls_invalid_is_refused() {
        for end in 0..EXAMPLE.len() {
            check_refused(&EXAMPLE[..end]);
        }
        check_refused(&format!("{EXAMPLE}-more"));
        check_refused(&format!("{EXAMPLE} "));
        check_refused(&EXAMPLE.to_uppercase());
        check_refused(&EXAMPLE.replace('-', "_"));
        check_refused(&EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)));
        check_refused(&EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16)));
        check_refused(&EXAMPLE.replacen('4', "g", 1));
        check_refused(&EXAMPLE.replacen("4b", "くb", 1));
    }

    #[test]
    fn no_id_is_all_zeros() {
        assert_eq!(TraceParent::root([0; 16], [1; 8]), None);
        assert_eq!(TraceParent::root([1; 16], [0; 8]), None);
        assert!(TraceParent::root([1; 16], [1; 8]).is_some_and(|root| root.sampled));
    }
}
