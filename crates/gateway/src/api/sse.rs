//! Server-sent events, as the official clients read them.
//!
//! No event has an `id:` line, and no frame stands without data: the official Python client fails on
//! both. The events of one frame of the broker are written at once.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use nsbridge_gateway_replies::{Failure, Part, Reader, ReplyEnd};
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, Result};

/// Pause after which a comment shows proxies that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Time that a stream waits for the first piece of its reply before its status is sent. A worker that
/// refuses the request does so at once, and clients act on the status of a refusal.
pub(crate) const FIRST_PART_TIMEOUT: Duration = Duration::from_secs(10);

/// Line ends of Unicode that JSON text may have as they are.
const LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Comment without a blank line: it ends no event, so that clients that count blank lines read on.
const COMMENT: &[u8] = b": waiting\n";

/// Events that have not been written yet.
#[derive(Debug, Default)]
pub(crate) struct Events {
    text: String,
    /// Number of events so far.
    count: u64,
    /// Number of events at the beginning that are not written, since the client has them.
    skip: u64,
    obfuscated: bool,
}

impl Events {
    /// Creates the events of a stream whose client has the first `skip`.
    pub(crate) fn after(skip: u64) -> Self {
        Self { skip, ..Self::default() }
    }

    /// Pads each event, so that its length says little about its text.
    #[must_use]
    pub(crate) fn obfuscated(self, obfuscated: bool) -> Self {
        Self { obfuscated, ..self }
    }

    pub(crate) fn is_obfuscated(&self) -> bool {
        self.obfuscated
    }

    /// Returns the number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.count
    }

    /// Adds an event without a name.
    pub(crate) fn data(&mut self, data: &impl Serialize) {
        self.push(None, data);
    }

    /// Adds an event with a name.
    pub(crate) fn named(&mut self, name: &str, data: &impl Serialize) {
        self.push(Some(name), data);
    }

    fn push(&mut self, name: Option<&str>, data: &impl Serialize) {
        self.count += 1;
        if self.count <= self.skip {
            return;
        }
        if let Some(name) = name {
            self.text.push_str("event: ");
            self.text.push_str(name);
            self.text.push('\n');
        }
        self.text.push_str("data: ");
        // JSON in one line: serde_json writes no line ends.
        push_escaped(&mut self.text, &serde_json::to_string(data).unwrap_or_default());
        self.text.push_str("\n\n");
    }

    /// Adds a comment, which shows proxies that the connection is alive.
    pub(crate) fn waiting(&mut self) {
        self.text.push_str(": waiting\n");
    }

    /// Adds the event that ends a stream of chunks.
    pub(crate) fn done(&mut self) {
        self.text.push_str("data: [DONE]\n\n");
    }

    /// Takes the events that have not been written.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        (!self.text.is_empty()).then(|| std::mem::take(&mut self.text).into())
    }
}

/// Appends JSON text without the characters that Unicode counts as line ends. Some clients split a
/// stream or a file at them.
pub(crate) fn push_escaped(text: &mut String, json: &str) {
    for part in json.split_inclusive(LINE_ENDS) {
        let end = part.chars().next_back().filter(|last| LINE_ENDS.contains(last));
        text.push_str(part.trim_end_matches(LINE_ENDS));
        if let Some(end) = end {
            // Writing to a text does not fail.
            let _ = write!(text, "\\u{:04x}", u32::from(end));
        }
    }
}

/// Events of one reply in the shape of an interface: a function of the pieces alone, so that a
/// stream that is read again has equal events.
pub(crate) trait View: Send + 'static {
    /// True if the stream ends with `data: [DONE]`.
    const ENDS_WITH_DONE: bool;

    /// Adds the events before the first piece.
    fn begin(&mut self, events: &mut Events);

    /// Adds the events of a piece.
    fn piece(&mut self, piece: &nsbridge_client::TextPiece, events: &mut Events);

    /// Adds the events of the end.
    fn end(&mut self, end: &ReplyEnd, events: &mut Events);
}

/// Returns true for a response that is a stream of events.
pub(crate) fn streams_events(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// State of a stream's body.
struct Streaming<V> {
    view: V,
    events: Events,
    reader: Reader,
    /// Part that came before the stream began.
    first: Option<Part>,
    begun: bool,
    over: bool,
    /// True once the client has seen that the reply waits, or a piece of it.
    told: bool,
    /// Canceled when the client must read the rest from another replica; `None` for a stream that
    /// runs to its end.
    hand_over: Option<CancellationToken>,
}

impl<V: View> Streaming<V> {
    /// Returns the next bytes. The error cuts the connection: the official Python client takes a
    /// stream whose body ends in order for a whole one.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let Some(hand_over) = self.hand_over.clone() else { return self.more().await.map(Ok) };
        tokio::select! {
            bytes = self.more() => bytes.map(Ok),
            () = hand_over.cancelled() => {
                self.hand_over = None;
                self.over = true;
                Some(Err(io::Error::other("the gateway shuts down")))
            }
        }
    }

    async fn more(&mut self) -> Option<Bytes> {
        if !self.begun && !self.over {
            self.begun = true;
            self.view.begin(&mut self.events);
            if let Some(bytes) = self.events.take() {
                return Some(bytes);
            }
        }
        while !self.over {
            let part = match self.first.take() {
                Some(first) => first,
                None => match self.next_part().await {
                    Some(part) => part,
                    None => return Some(Bytes::from_static(COMMENT)),
                },
            };
            self.read(&part);
            if let Some(bytes) = self.events.take() {
                return Some(bytes);
            }
        }
        None
    }

    /// Waits for the next part. Returns `None` when a comment is due: after a pause, and once when the
    /// model has no worker.
    async fn next_part(&mut self) -> Option<Part> {
        let starting = self.reader.starting();
        let part = tokio::select! {
            biased;
            part = timeout(KEEP_ALIVE, self.reader.next()) => part.ok(),
            () = starting, if !self.told => None,
        };
        self.told = true;
        part
    }

    fn read(&mut self, part: &Part) {
        // The text that the client has cannot be withdrawn, so its stream ends.
        let differs = part.restarted || part.foreign && self.events.skip > 0;
        let end =
            if differs { Some(ReplyEnd::Failed(restarted_failure())) } else { part.end.clone() };
        if !differs {
            part.pieces.iter().for_each(|piece| self.view.piece(&piece.piece, &mut self.events));
        }
        if let Some(end) = end {
            self.over = true;
            // A reply that fails may have fewer events than the client has read of it; its error is
            // sent nevertheless, since a stream without a last event looks whole.
            if matches!(end, ReplyEnd::Failed(_)) {
                self.events.skip = 0;
            }
            self.view.end(&end, &mut self.events);
            if V::ENDS_WITH_DONE && matches!(end, ReplyEnd::Done(_)) {
                self.events.done();
            }
        }
    }
}

/// Error of a stream whose pieces were withdrawn.
pub(crate) fn restarted() -> ApiError {
    restarted_failure().into()
}

fn restarted_failure() -> Failure {
    let message = "a worker of another version took over, and its text differs from the text that \
                   was streamed: send the request again";
    Failure::internal(message).coded("restarted")
}

/// Returns a response that streams a reply.
///
/// # Errors
///
/// Returns an error if the request fails before its first piece, within a few seconds, and before its
/// model is found without a worker.
pub(crate) async fn stream<V: View>(
    view: V,
    events: Events,
    mut reader: Reader,
) -> Result<Response> {
    let starting = reader.starting();
    let first = tokio::select! {
        first = timeout(FIRST_PART_TIMEOUT, reader.next()) => first.ok(),
        () = starting => None,
    };
    if let Some(Part { pieces, end: Some(ReplyEnd::Failed(failure)), .. }) = &first
        && pieces.is_empty()
    {
        return Err(failure.clone().into());
    }
    Ok(response(view, events, reader, first, None))
}

/// Returns a response that streams a reply, and is cut when `hand_over` is canceled.
pub(crate) fn stream_until<V: View>(
    view: V,
    events: Events,
    reader: Reader,
    hand_over: Option<CancellationToken>,
) -> Response {
    response(view, events, reader, None, hand_over)
}

fn response<V: View>(
    view: V,
    events: Events,
    reader: Reader,
    first: Option<Part>,
    hand_over: Option<CancellationToken>,
) -> Response {
    let (begun, over, told) = (false, false, false);
    let state = Streaming { view, events, reader, first, begun, over, told, hand_over };
    let body = stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((bytes, state))
    });
    event_stream(Body::from_stream(body))
}

/// Returns the response of a body of events.
pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    let no_cache = HeaderValue::from_static("no-cache, no-transform");
    headers.insert(header::CACHE_CONTROL, no_cache);
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns a text that makes the length of `event` a multiple of 64 bytes.
pub(crate) fn padding(event: &Value) -> String {
    const STEP: usize = 64;
    // With the quotes, the name and the comma of the field itself.
    let length = event.to_string().len() + "\"obfuscation\":\"\",".len();
    "0".repeat((STEP - length % STEP) % STEP)
}

#[cfg(test)]
mod tests {
    use super::Events;

    #[test]
    fn an_event_has_one_line_whatever_counts_as_a_line_end() {
        let text = "a\u{2028}b\u{85}\u{2029}\n\u{b}c\u{1c}\u{e9}";
        let mut events = Events::default();
        events.data(&text);
        let sent = String::from_utf8(events.take().unwrap().to_vec()).unwrap();
        let json = sent.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        assert_eq!(json, "\"a\\u2028b\\u0085\\u2029\\n\\u000bc\\u001c\u{e9}\"");
        assert_eq!(serde_json::from_str::<String>(json).unwrap(), text);
    }
}
