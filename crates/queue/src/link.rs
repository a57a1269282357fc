//! Connection that is reopened after a loss.

use std::sync::Arc;
use std::time::Duration;

use crate::{Broker, Connection, Result};
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Interval between two probes of a broker that does not listen.
const KNOCK_EVERY: Duration = Duration::from_millis(250);

/// Holder of one connection to a broker.
///
/// It opens a new connection after a loss but resumes nothing on it: users of the lost connection
/// decide what to repeat.
#[derive(Debug)]
pub struct Link {
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
}

impl Link {
    /// Creates a link without connecting; the broker's management tools show it under `name`.
    pub fn new(broker: Arc<dyn Broker>, name: String) -> Self {
        Self { broker, name, current: Mutex::new(None), turn: Mutex::new(()), came: Notify::new() }
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
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_connection().await {
                Ok(connection) => return connection,
                Err(error) => {
                    tracing::warn!(connection = %self.name, %error, "no connection, trying again");
                    tokio::select! {
                        () = sleep(jitter(pause)) => {}
                        () = self.came.notified() => {}
                        () = self.comes_back() => {}
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
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
        while !self.broker.listens().await {
            sleep(jitter(KNOCK_EVERY)).await;
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

/// Returns a random duration between half of the pause and all of it, so that a fleet of workers
/// does not reconnect in step.
fn jitter(pause: Duration) -> Duration {
    pause / 2 + random_part(pause / 2)
}

/// Returns a random duration between zero and `whole`, for callers that must not act in step.
///
/// Returns `whole` if no randomness is available.
pub fn random_part(whole: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}
