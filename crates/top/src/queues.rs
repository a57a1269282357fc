//! Queues of models, as the broker reports them over AMQP.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures_util::future::try_join_all;
use nsbridge_observe::Queue;
use nsbridge_protocol::topology::{RETRY_TIERS, dead_queue, request_queue, retry_queue};
use nsbridge_protocol::{ModelName, Priority};
use nsbridge_queue::{AmqpBroker, Broker as _, Connection, Error};
use tokio::time::timeout;

/// Time limit for all questions of one reading.
const WITHIN: Duration = Duration::from_secs(5);

/// Time after which a queue that was not there is looked for again. The broker logs a line for each
/// such question.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Returns the names of all queues of a model.
fn names(model: &ModelName) -> impl Iterator<Item = String> {
    let of_class = move |priority| {
        let retries = RETRY_TIERS.map(|tier| retry_queue(model, priority, tier));
        [request_queue(model, priority)].into_iter().chain(retries)
    };
    Priority::ALL.into_iter().flat_map(of_class).chain([dead_queue(model)])
}

/// Reader of models' queues by passive declarations.
#[derive(Debug)]
pub(super) struct Queues {
    broker: AmqpBroker,
    names: Vec<String>,
    connection: Option<Arc<dyn Connection>>,
    /// Queues that were not there, and the time of the question.
    missing: HashMap<String, Instant>,
}

impl Queues {
    pub(super) fn new(url: &str, models: &[ModelName]) -> Result<Self> {
        let broker = AmqpBroker::new(url)?;
        let names = models.iter().flat_map(names).collect();
        Ok(Self { broker, names, connection: None, missing: HashMap::new() })
    }

    /// Reads the queues that exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker cannot be reached or does not answer in time. The next reading
    /// opens another connection.
    pub(super) async fn read(&mut self) -> Result<Vec<Queue>> {
        let now = Instant::now();
        self.missing.retain(|_, asked| now.duration_since(*asked) < ASK_AGAIN);
        let connection = self.connection.take();
        let names = self.names.iter().filter(|name| !self.missing.contains_key(*name));
        let names: Vec<String> = names.cloned().collect();
        let asked = timeout(WITHIN, async {
            let connection = match connection {
                Some(connection) => connection,
                None => self.broker.connect("nsbridge top").await?,
            };
            let levels = try_join_all(names.iter().map(|name| level(&*connection, name))).await?;
            anyhow::Ok((connection, levels))
        });
        let asked = asked.await;
        let (connection, levels) =
            asked.map_err(|_| anyhow!("no answer within {} s", WITHIN.as_secs()))??;
        self.connection = Some(connection);
        let mut found = Vec::new();
        for (name, level) in names.into_iter().zip(levels) {
            match level {
                Some(queue) => found.push(queue),
                None => drop(self.missing.insert(name, now)),
            }
        }
        Ok(found)
    }
}

/// Returns the level of a queue, if it exists.
async fn level(connection: &dyn Connection, name: &str) -> Result<Option<Queue>> {
    match connection.depth(name).await {
        Ok(depth) => Ok(Some(Queue {
            name: name.to_owned(),
            ready: depth.messages.into(),
            consumers: depth.consumers.into(),
            ..Queue::default()
        })),
        Err(Error::NoQueue { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
