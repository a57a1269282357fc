//! A consumer's connection, as queues see it.

use std::fmt::Debug;
use std::sync::Arc;

use crate::delivery::{Delivery, Settle};

/// The connection of a consumer.
pub(super) trait Peer: Debug + Send + Sync {
    /// Returns the connection's number.
    fn id(&self) -> u64;

    /// Makes the handle that settles a delivery of this tag.
    fn settle(self: Arc<Self>, queue: &str, tag: u64) -> Box<dyn Settle>;

    /// Drops a delivery once the broker's lock is free.
    fn drop_later(&self, delivery: Delivery);
}
