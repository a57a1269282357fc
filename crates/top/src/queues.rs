//! Queues of models, as the broker reports them over AMQP.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures_util::future::try_join_all;
use nsbridge_protocol::topology::{RETRY_TIERS, dead_queue, request_queue, retry_queue};
use nsbridge_protocol::{ModelName, Priority};
use nsbridge_queue::{AmqpBroker, Broker as _, Connection, Error};
use tokio::time::timeout;

/// Time limit for all questions of one reading.
const WITHIN: Duration = Duration::from_secs(5);

/// Time after which a queue that was not there is looked for again. The broker logs a line for each
/// such question.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Fill level of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) ready: u64,
    pub(super) consumers: u64,
    /// Messages that were delivered and are not settled; the management API alone knows them.
    pub(super) unacked: Option<u64>,
    /// Messages per second that come in, and that are settled.
    pub(super) published: Option<f64>,
    pub(super) settled: Option<f64>,
}

/// Use of a model's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Requests,
    Bulk,
    Retry,
    Dead,
}

/// Returns the model of a queue and its use; `None` for queues of clients, workers and runs.
pub(super) fn model_of(queue: &str) -> Option<(&str, Use)> {
    let name = queue.strip_prefix("nsbridge.")?;
    let (model, of) = if let Some(model) = name.strip_suffix(".dead") {
        (model, Use::Dead)
    } else if let Some((model, _)) = name.rsplit_once(".retry.") {
        (model.strip_suffix(".bulk").unwrap_or(model), Use::Retry)
    } else if let Some(model) = name.strip_suffix(".bulk") {
        (model, Use::Bulk)
    } else {
        (name, Use::Requests)
    };
    // The names of other queues are no names of models.
    model.parse::<ModelName>().ok().map(|_| (model, of))
}

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

#[cfg(test)]
mod tests {
    use nsbridge_protocol::topology::{control_queue, reply_queue, run_record};

    use super::{Use, model_of, names};

    #[test]
    fn each_queue_of_a_model_leads_back_to_it() {
        for model in ["tale-7m", "llama-3.1-70b"] {
            let name = model.parse().unwrap();
            let uses: Vec<_> = names(&name)
                .map(|queue| {
                    let (found, of) = model_of(&queue).unwrap();
                    assert_eq!(found, model, "{queue}");
                    of
                })
                .collect();
            let count = |of| uses.iter().filter(|known| **known == of).count();
            assert_eq!(uses.len(), 9);
            let counts = [Use::Requests, Use::Bulk, Use::Retry, Use::Dead].map(count);
            assert_eq!(counts, [1, 1, 6, 1]);
            assert_eq!(model_of(&run_record(&name, 7)), None);
        }
    }

    #[test]
    fn other_queues_have_no_model() {
        for queue in [reply_queue(7), control_queue(7), "amq.gen-7".into(), "nsbridge.".into()] {
            assert_eq!(model_of(&queue), None, "{queue}");
        }
    }
}
