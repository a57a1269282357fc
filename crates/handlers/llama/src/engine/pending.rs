//! Result of a request that the engine's thread will send.

use futures_channel::oneshot;
use nsbridge_handler::{Finish, Result};

use super::stopped;
use super::waker::{Left, Waker};

/// Request in the engine. Dropping it ends the request.
pub(crate) struct Pending {
    finished: oneshot::Receiver<Result<Finish>>,
    /// Dropped after the receiver, so the engine then sees that the caller is gone.
    left: Left,
}

impl Pending {
    /// Creates a request's result, and the sender for it.
    pub(super) fn new(waker: Waker) -> (oneshot::Sender<Result<Finish>>, Self) {
        let (done, finished) = oneshot::channel();
        (done, Self { finished, left: Left::new(waker) })
    }

    /// Waits for the end of the request.
    pub(crate) async fn finish(self) -> Result<Finish> {
        let Self { finished, left } = self;
        let finish = finished.await.unwrap_or_else(|_| Err(stopped()));
        left.answered();
        finish
    }
}
