//! Values of labels: connections and queues.

/// Connection of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Consumes requests and acks them.
    Consume,
    /// Publishes replies.
    Publish,
}

impl Side {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Publish => "publish",
        }
    }
}

/// Queue of the model with a depth gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Interactive requests that wait for a worker.
    Requests,
    /// Bulk requests that wait for a worker.
    Bulk,
    /// Dead letters.
    Dead,
}

impl Waiting {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bulk => "bulk",
            Self::Dead => "dead",
        }
    }
}
