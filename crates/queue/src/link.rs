//! A connection that is opened again when it is gone.

use std::sync::Arc;
use std::time::Duration;

use crate::{Broker, Connection, Result};
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Time between two looks at whether a broker that was away listens again.
const KNOCK_EVERY: Duration = Duration::from_millis(250);

/// Keeps one connection to a broker. It never resumes anything by itself: whoever used the lost
/// connection must decide what to do again.
#[derive(Debug)]
pub struct Link {
    broker: Arc<dyn Broker>,
    name: String,
    current: Mutex<Option<Arc<dyn Connection>>>,
    /// Whose turn it is to try until it works. All who wait for a connection are in this queue: each
    /// with tries of its own, a worker with many jobs would storm a broker that comes back.
    turn: Mutex<()>,
    /// Somebody came to wait: the next try is due.
    came: Notify,
}

impl Link {
    /// A link to this broker; `name` is what the broker's own tools show. Opens nothing yet.
    pub fn new(broker: Arc<dyn Broker>, name: String) -> Self {
        Self { broker, name, current: Mutex::new(None), turn: Mutex::new(()), came: Notify::new() }
    }

    /// The connection, opened now if there is none that lives.
    ///
    /// # Errors
    ///
    /// What the broker says to one try.
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

    /// The same, trying until it works, with growing pauses.
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

    /// Waits until a broker that does not listen listens again, which ends a back-off. One that
    /// listens and refuses has the whole back-off.
    async fn comes_back(&self) {
        if self.broker.listens().await {
            std::future::pending::<()>().await;
        }
        while !self.broker.listens().await {
            sleep(jitter(KNOCK_EVERY)).await;
        }
    }

    /// Ends the connection in good order. The next use opens another.
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

/// Between half of the pause and all of it, so that a fleet does not come back in step.
fn jitter(pause: Duration) -> Duration {
    pause / 2 + random_part(pause / 2)
}

/// Between nothing and all of a time, for those who must not act in step. All of it where there is
/// no randomness.
pub fn random_part(whole: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}
