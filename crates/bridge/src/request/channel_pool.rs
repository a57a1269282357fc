//! Pool of publishing channels that are idle between replies.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_queue::{Connection, Publisher, ReconnectingConnection, Result};
use parking_lot::Mutex;

use crate::observability::metrics::{Metrics, Side};

/// Maximum number of idle channels. More are opened when needed, and closed afterwards.
const IDLE: usize = 64;

/// Publishing channels of one connection. Opening a channel takes two round trips to the broker;
/// the pool keeps them off the first token of a reply.
#[derive(Debug)]
pub(crate) struct ChannelPool {
    connection: ReconnectingConnection,
    metrics: Metrics,
    idle: Mutex<Idle>,
    closed: AtomicBool,
}

/// Idle channels of one connection.
#[derive(Debug, Default)]
struct Idle {
    connection: Option<Arc<dyn Connection>>,
    publishers: Vec<Box<dyn Publisher>>,
}

impl ChannelPool {
    pub(crate) fn new(connection: ReconnectingConnection, metrics: Metrics) -> Self {
        Self { connection, metrics, idle: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// Returns the publishing connection, or retries until one can be opened. Never returns once the
    /// pool is closed.
    pub(crate) async fn connection(&self) -> Arc<dyn Connection> {
        if self.closed.load(Ordering::Relaxed) {
            return pending().await;
        }
        self.connection.connection().await
    }

    /// Returns a channel for one reply. Like any channel it may turn out to be closed when it is
    /// used.
    pub(crate) async fn take(&self) -> Result<Box<dyn Publisher>> {
        let connection = self.connection().await;
        let idle = self.idle.lock().take(&connection, &self.metrics);
        match idle {
            Some(publisher) => Ok(publisher),
            None => connection.publisher().await,
        }
    }

    /// Takes back a channel on which nothing is in flight. A stale one is closed.
    pub(crate) fn give_back(&self, publisher: Box<dyn Publisher>) {
        if publisher.is_stale() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.publishers.len() < IDLE {
            idle.publishers.push(publisher);
        }
    }

    /// Returns true while the broker blocks the publishing connection.
    pub(crate) fn is_blocked(&self) -> bool {
        self.idle.lock().connection.as_ref().is_some_and(|connection| connection.is_blocked())
    }

    /// Closes the connection for good.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        *self.idle.lock() = Idle::default();
        self.connection.close().await;
    }
}

impl Idle {
    /// Returns a channel of this connection. Channels of an earlier connection are dropped.
    fn take(
        &mut self,
        connection: &Arc<dyn Connection>,
        metrics: &Metrics,
    ) -> Option<Box<dyn Publisher>> {
        if !self.connection.as_ref().is_some_and(|known| Arc::ptr_eq(known, connection)) {
            if self.connection.is_some() {
                metrics.reconnected(Side::Publish);
            }
            *self = Self { connection: Some(connection.clone()), publishers: Vec::new() };
        }
        self.publishers.pop()
    }
}
