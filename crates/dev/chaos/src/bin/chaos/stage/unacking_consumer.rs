//! Consumer that never acks: requests that it holds are stranded, as after a broker fault.

use std::sync::Arc;

use anyhow::{Context, Result};
use nsbridge_protocol::ModelName;
use nsbridge_protocol::topology::model_queue;
use nsbridge_queue::{AmqpBroker, Broker, Connection, Consumer, Delivery};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::STEP_TIMEOUT;

/// Connection that holds requests until it is dropped.
#[derive(Debug)]
pub(crate) struct UnackingConsumer {
    runtime: Handle,
    _connection: Arc<dyn Connection>,
    requests: Consumer,
    held: Vec<Delivery>,
}

impl UnackingConsumer {
    /// Consumes up to `most` requests of the model without an ack. Returns after the subscription.
    pub(super) fn start(runtime: &Handle, url: &str, model: &ModelName, most: u16) -> Result<Self> {
        let (connection, requests) = runtime.block_on(async {
            let connection = AmqpBroker::new(url)?.connect("unacking").await?;
            let requests = connection.consume(&model_queue(model), most).await?;
            anyhow::Ok((connection, requests))
        })?;
        let held = Vec::new();
        Ok(Self { runtime: runtime.clone(), _connection: connection, requests, held })
    }

    /// Waits until this many requests are held.
    pub(super) fn until_it_holds(&mut self, count: usize) -> Result<()> {
        while self.held.len() < count {
            let next = async { timeout(STEP_TIMEOUT, self.requests.recv()).await };
            let next = self.runtime.block_on(next)?;
            self.held.push(next.context("the subscription ended")?);
        }
        Ok(())
    }
}
