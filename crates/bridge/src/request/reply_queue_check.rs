//! Check of a reply queue that refuses frames.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nsbridge_queue::{Depth, Error, Result};
use tokio::time::{Instant, sleep_until};

use crate::request::channel_pool::ChannelPool;

/// Check whether a reply queue that refuses all frames is only full, or on a node of the broker that is
/// down. A broker that keeps the name of such a queue refuses its frames, where another one returns them.
pub(crate) struct ReplyQueueCheck<'a> {
    /// Pool whose connection asks the broker.
    pool: &'a ChannelPool,
    /// Time of refusals after which the broker is asked, and until it is asked again.
    ask_after: Duration,
    /// Time at which the broker is asked; `None` while the queue takes frames.
    due: Option<Instant>,
    asked: Option<BoxFuture<'a, Result<Depth>>>,
}

impl std::fmt::Debug for ReplyQueueCheck<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyQueueCheck").field("due", &self.due).finish_non_exhaustive()
    }
}

impl<'a> ReplyQueueCheck<'a> {
    /// Creates a check that asks on the connection of this pool.
    pub(crate) fn new(pool: &'a ChannelPool, ask_after: Duration) -> Self {
        Self { pool, ask_after, due: None, asked: None }
    }

    /// Records that the queue refused a frame.
    pub(crate) fn refused(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + self.ask_after);
    }

    /// Records that the queue took a frame, or that there is no such queue.
    pub(crate) fn answered(&mut self) {
        (self.due, self.asked) = (None, None);
    }

    /// Waits until the broker has answered that the node of the queue is down.
    ///
    /// Cancel safe. Pending while the queue takes frames.
    pub(crate) async fn node_down(&mut self, queue: &str) {
        while let Some(due) = self.due {
            sleep_until(due).await;
            let asked = self.asked.get_or_insert_with(|| {
                let (pool, queue) = (self.pool, queue.to_owned());
                async move { pool.connection().await.depth(&queue).await }.boxed()
            });
            let answer = asked.await;
            self.asked = None;
            if matches!(answer, Err(Error::NodeDown { .. })) {
                return;
            }
            self.due = Some(Instant::now() + self.ask_after);
        }
        std::future::pending::<()>().await;
    }
}
