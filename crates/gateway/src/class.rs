//! Class of a request in its queue.

use nsbridge_client::{Priority, Request};

/// Class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Request of a client that waits.
    Interactive,
    /// Line of a batch, the lowest class.
    Bulk,
}

impl Class {
    /// Returns the class of a request, which may be a line of a batch.
    pub(crate) fn of(of_batch: bool) -> Self {
        if of_batch { Self::Bulk } else { Self::Interactive }
    }

    /// Sets the class of a request. The class of every request of the gateway is set here.
    pub(crate) fn set<I>(self, request: Request<I>) -> Request<I> {
        request.priority(match self {
            Self::Interactive => Priority::Interactive,
            Self::Bulk => Priority::Bulk,
        })
    }
}
