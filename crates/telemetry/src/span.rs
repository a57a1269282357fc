//! Spans, and the random ids of new ones.

use std::borrow::Cow;
use std::time::SystemTime;

use nsbridge_base::random::bytes;
use nsbridge_protocol::TraceParent;
use opentelemetry::trace::{Event, SpanKind, Status};
use opentelemetry::{KeyValue, Value};

/// Span that has ended.
#[derive(Clone, Debug)]
pub struct Span {
    pub(crate) own: TraceParent,
    pub(crate) parent: Option<TraceParent>,
    pub(crate) link: Option<TraceParent>,
    pub(crate) kind: SpanKind,
    pub(crate) name: Cow<'static, str>,
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
    pub(crate) attributes: Vec<KeyValue>,
    pub(crate) events: Vec<Event>,
    pub(crate) status: Status,
}

impl Span {
    /// Creates a span that ends now. `own` is its trace and its id.
    pub fn new(
        own: TraceParent,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        began: SystemTime,
    ) -> Self {
        Self {
            own,
            parent: None,
            link: None,
            kind,
            name: name.into(),
            began,
            ended: SystemTime::now(),
            attributes: Vec::new(),
            events: Vec::new(),
            status: Status::Unset,
        }
    }

    /// Sets the parent.
    #[must_use]
    pub fn parent(self, parent: Option<TraceParent>) -> Self {
        Self { parent, ..self }
    }

    /// Links the span to one that is no ancestor of it.
    #[must_use]
    pub fn link(self, link: Option<TraceParent>) -> Self {
        Self { link, ..self }
    }

    /// Adds attributes. Their values must not be text of a user.
    #[must_use]
    pub fn with<const N: usize>(mut self, attributes: [(&'static str, Value); N]) -> Self {
        self.attributes.extend(attributes.map(|(key, value)| KeyValue::new(key, value)));
        self
    }

    /// Adds an event.
    #[must_use]
    pub fn event(mut self, name: &'static str, at: SystemTime) -> Self {
        self.events.push(Event::new(name, at, Vec::new(), 0));
        self
    }

    /// Marks the span as failed with this code.
    #[must_use]
    pub fn failed(self, code: &str) -> Self {
        Self { status: Status::error(code.to_owned()), ..self }
            .with([("error.type", Value::from(code.to_owned()))])
    }
}

/// Returns the first span of a new trace.
pub fn root() -> TraceParent {
    loop {
        // All zeros are not an id, and do not come twice.
        if let Some(root) = TraceParent::root(random(), random()) {
            return root;
        }
    }
}

/// Returns a new span of the trace of `parent`.
pub fn child(parent: TraceParent) -> TraceParent {
    parent.child(random())
}

/// Returns random bytes that need not be secret. Without randomness of the system they are
/// constant, and all spans appear in one trace.
fn random<const N: usize>() -> [u8; N] {
    bytes().unwrap_or([1; N])
}
