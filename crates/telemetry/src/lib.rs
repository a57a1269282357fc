//! Spans of requests, exported by OTLP, the plain HTTP client that carries them, metrics by their names, and
//! the log on stderr.
//!
//! A [`Span`] is made of a few typed attributes and never of log lines, so user text cannot get into
//! it. [`Spans`] sends those that have ended to a collector. The worker and the gateway use both, and register
//! their metrics with a [`Registrar`](metrics::Registrar).
//! Parents travel in the W3C's `traceparent` ([`TraceParent`]).
//!
//! ```
//! use std::time::SystemTime;
//!
//! use nsbridge_telemetry::{Span, SpanKind, Spans, root};
//!
//! let spans = Spans::default();   // without a collector
//! let own = root();
//! let span = Span::new(own, SpanKind::Server, "POST /v1/responses", SystemTime::now());
//! spans.end(span.with([("http.response.status_code", 200.into())]));
//! ```

mod export;
pub mod http;
mod log;
pub mod metrics;
mod span;

pub use export::{InvalidCollector, Spans, check};
pub use log::{LogWriter, stderr_log};
pub use nsbridge_protocol::TraceParent;
pub use opentelemetry::Value;
pub use opentelemetry::trace::SpanKind;
pub use span::{Span, child, root};

/// Returns the name of this machine for `service.instance.id`, or `process-<pid>` if it has none.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { format!("process-{}", std::process::id()) } else { name.to_owned() }
}
