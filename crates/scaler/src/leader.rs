//! Leadership: one scaler at a time decides for a model.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use nsbridge_protocol::ModelName;
use nsbridge_queue::{AmqpBroker, Broker as _, Connection};
use tokio::time::timeout;

/// Time limit of the connection and of each question.
const WITHIN: Duration = Duration::from_secs(20);

/// First part of the names of locks. They are no queues of models, whose names begin with `nsbridge.`.
const LOCK_PREFIX: &str = "nsbridge-scaler.";

/// Locks in the broker, one for each model. They are released with the connection.
#[derive(Debug)]
pub(crate) struct Leader {
    broker: AmqpBroker,
    connection: Option<Arc<dyn Connection>>,
}

impl Leader {
    pub(crate) fn new(url: &str) -> Result<Self> {
        Ok(Self { broker: AmqpBroker::new(url)?, connection: None })
    }

    /// Takes the lock of a model, or confirms that this process has it. Returns false if another one has it.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker cannot be reached. The next call opens another connection.
    pub(crate) async fn leads(&mut self, model: &ModelName) -> Result<bool> {
        let connection = self.connection.take();
        let asked = timeout(WITHIN, async {
            let connection = match connection {
                Some(connection) => connection,
                None => self.broker.connect("nsbridge scaler").await?,
            };
            let leads = connection.lock(&format!("{LOCK_PREFIX}{model}")).await?;
            anyhow::Ok((connection, leads))
        });
        let (connection, leads) =
            asked.await.map_err(|_| anyhow!("no answer within {} s", WITHIN.as_secs()))??;
        self.connection = Some(connection);
        Ok(leads)
    }

    /// Declares the queues of a model, so that requests can wait before its first worker has run.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker refuses, or cannot be reached.
    pub(crate) async fn declare(&self, model: &ModelName) -> Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let declared = timeout(WITHIN, connection.declare_model(model)).await;
        Ok(declared.map_err(|_| anyhow!("no answer within {} s", WITHIN.as_secs()))??)
    }

    /// Releases all locks.
    pub(crate) async fn close(self) {
        if let Some(connection) = self.connection {
            // Another scaler need not wait until the broker notices the end of this process.
            let _ = timeout(WITHIN, connection.close()).await;
        }
    }
}
