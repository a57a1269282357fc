//! Publishing channels that wait for their next reply.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nsbridge_queue::{Broker, Connection, Link, Publisher, Result};

/// Channels kept open between replies; more are opened when needed, and closed after.
const IDLE: usize = 64;

/// One connection's publishing channels. Opening a channel takes two round trips to the broker,
/// which the first token of a reply need not wait for.
#[derive(Debug)]
pub(crate) struct Pool {
    link: Link,
    idle: Mutex<Idle>,
}

/// Channels of one connection.
#[derive(Debug, Default)]
struct Idle {
    connection: Option<Arc<dyn Connection>>,
    publishers: Vec<Box<dyn Publisher>>,
}

impl Pool {
    pub(crate) fn new(broker: Arc<dyn Broker>, name: String) -> Self {
        Self { link: Link::new(broker, name), idle: Mutex::default() }
    }

    /// A channel for one reply. It may turn out to be gone when it is used, as any channel may.
    pub(crate) async fn take(&self) -> Result<Box<dyn Publisher>> {
        let connection = self.link.connection().await;
        let idle = self.idle().take(&connection);
        match idle {
            Some(publisher) => Ok(publisher),
            None => connection.publisher().await,
        }
    }

    /// Takes a channel back on which nothing is in flight.
    pub(crate) fn give_back(&self, publisher: Box<dyn Publisher>) {
        let mut idle = self.idle();
        if idle.publishers.len() < IDLE {
            idle.publishers.push(publisher);
        }
    }

    /// Whether the broker takes nothing from us now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.idle().connection.as_ref().is_some_and(|connection| connection.is_blocked())
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn close(&self) {
        *self.idle() = Idle::default();
        self.link.close().await;
    }
}

impl Idle {
    /// A channel of this connection; those of an earlier one went with it.
    fn take(&mut self, connection: &Arc<dyn Connection>) -> Option<Box<dyn Publisher>> {
        if !self.connection.as_ref().is_some_and(|known| Arc::ptr_eq(known, connection)) {
            *self = Self { connection: Some(connection.clone()), publishers: Vec::new() };
        }
        self.publishers.pop()
    }
}
