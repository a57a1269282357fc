//! Publishing channels that wait for their next reply.

use std::sync::{Arc, Mutex, PoisonError};

use nsbridge_queue::{Broker, Connection, Link, Publisher, Result};

/// Channels kept open between replies; more are opened when needed, and closed after.
const IDLE: usize = 64;

/// One connection's publishing channels. Opening a channel takes two round trips to the broker,
/// which the first token of a reply need not wait for.
#[derive(Debug)]
pub(crate) struct Pool {
    link: Link,
    idle: Mutex<Vec<Box<dyn Publisher>>>,
}

impl Pool {
    pub(crate) fn new(broker: Arc<dyn Broker>, name: String) -> Self {
        Self { link: Link::new(broker, name), idle: Mutex::default() }
    }

    /// A channel for one reply. It may turn out to be gone when it is used, as any channel may.
    pub(crate) async fn take(&self) -> Result<Box<dyn Publisher>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(publisher) => Ok(publisher),
            None => self.connection().await.publisher().await,
        }
    }

    /// Takes a channel back on which nothing is in flight.
    pub(crate) fn give_back(&self, publisher: Box<dyn Publisher>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(publisher);
        }
    }

    /// The connection, opened again if it is gone.
    pub(crate) async fn connection(&self) -> Arc<dyn Connection> {
        self.link.connection().await
    }

    pub(crate) async fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.link.close().await;
    }
}
