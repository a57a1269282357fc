//! Connection that is reopened after a loss.

use std::error::Error as _;
use std::sync::Arc;

use nsbridge_base::Backoff;
use nsbridge_base::random::random;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

use crate::error::Result;
use crate::timing::Timing;
use crate::{Broker, Connection};

/// Holder of one connection to a broker.
///
/// It opens a new connection after a loss but resumes nothing on it: users of the lost connection
/// decide what to repeat.
///
/// ```
/// use std::sync::Arc;
///
/// use nsbridge_queue::{MemoryBroker, ReconnectingConnection};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let broker = Arc::new(MemoryBroker::new());
/// let holder = ReconnectingConnection::new(broker, "api-1 requests".to_owned());
/// let first = holder.connection().await;
/// assert!(Arc::ptr_eq(&first, &holder.connection().await));
/// holder.close().await;
/// assert!(!Arc::ptr_eq(&first, &holder.connection().await));
/// # }
/// ```
#[derive(Debug)]
pub struct ReconnectingConnection {
    broker: Arc<dyn Broker>,
    name: String,
    current: Mutex<Option<Arc<dyn Connection>>>,
    /// Lock held by the caller that retries. Other callers that wait for a connection queue for it.
    ///
    /// If each caller retried on its own, a worker with many jobs would flood a broker that comes
    /// back.
    turn: Mutex<()>,
    /// Notifies the retrying caller of a new caller, which makes the next try due at once.
    came: Notify,
    timing: Timing,
}

impl ReconnectingConnection {
    /// Creates a holder without connecting. The broker's management tools show its connection under
    /// `name`.
    pub fn new(broker: Arc<dyn Broker>, name: String) -> Self {
        let (current, turn, came) = (Mutex::new(None), Mutex::new(()), Notify::new());
        Self { broker, name, current, turn, came, timing: Timing::default() }
    }

    /// Sets the back-off between two connection attempts, and the interval of probes.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Returns the live connection, or opens one if there is none.
    ///
    /// # Errors
    ///
    /// Returns the broker's error if this single try fails.
    pub async fn try_connection(&self) -> Result<Arc<dyn Connection>> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref()
            && lives(&**connection).await
        {
            return Ok(connection.clone());
        }
        let connection = self.broker.connect(&self.name).await?;
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// Returns the live connection, or retries with an increasing back-off until one can be opened.
    pub async fn connection(&self) -> Arc<dyn Connection> {
        let _turn = if let Ok(turn) = self.turn.try_lock() {
            turn
        } else {
            self.came.notify_one();
            self.turn.lock().await
        };
        let mut pauses = self.timing.reconnect.pauses();
        loop {
            match self.try_connection().await {
                Ok(connection) => return connection,
                Err(error) => {
                    let cause = error.source().map(ToString::to_string).unwrap_or_default();
                    let connection = &*self.name;
                    tracing::warn!(connection, %error, cause, "no connection, trying again");
                    tokio::select! {
                        () = sleep(pauses.next(random())) => {}
                        () = self.came.notified() => {}
                        () = self.comes_back() => {}
                    }
                }
            }
        }
    }

    /// Waits until a broker that does not listen listens again, which cuts the back-off short.
    ///
    /// Never returns for a broker that listens but refuses, so that the full back-off applies.
    async fn comes_back(&self) {
        if self.broker.listens().await {
            std::future::pending::<()>().await;
        }
        let interval = self.timing.probe_interval;
        let mut pauses = Backoff::new(interval, interval).pauses();
        while !self.broker.listens().await {
            sleep(pauses.next(random())).await;
        }
    }

    /// Closes the connection in an orderly way. The next use opens another one.
    pub async fn close(&self) {
        if let Some(connection) = self.current.lock().await.take() {
            connection.close().await;
        }
    }
}

async fn lives(connection: &dyn Connection) -> bool {
    tokio::select! {
        biased;
        _ = connection.lost() => false,
        () = std::future::ready(()) => true,
    }
}
