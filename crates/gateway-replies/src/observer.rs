//! Observers of replies, such as metrics.

use std::fmt;

use nsbridge_client::{ModelName, Usage};

/// Outcome of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Complete reply, with the tokens that its worker counted.
    Done(Usage),
    /// Reply that failed.
    Failed,
    /// Reply that no connection reads any more, or that its client has canceled.
    Cancelled,
}

/// Observer of the replies of a gateway.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A reply begins. `endpoint` received its request, and the model is that of its queue.
    fn begin(&self, endpoint: &str, model: &ModelName) -> Box<dyn Meter>;
    /// A retry joined a reply.
    fn joined(&self);
    /// A reply is continued by another client of the queue.
    fn reattached(&self);
    /// A worker withdrew pieces that were sent.
    fn restarted(&self);
    /// Tokens were reserved of a caller's limits.
    fn reserved(&self, tokens: u64);
    /// Tokens were charged to a caller's limits.
    fn settled(&self, tokens: u64);
    /// A reply failed with this code.
    fn failed(&self, code: &str);
}

/// Meter of one reply. One that is dropped before [`Meter::end`] counts as canceled.
pub trait Meter: fmt::Debug + Send + Sync {
    /// Records a piece.
    fn piece(&self);
    /// Records the end.
    fn end(self: Box<Self>, outcome: Outcome);
}
