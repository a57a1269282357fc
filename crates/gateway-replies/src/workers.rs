//! Workers of models, as the broker counts them. A model that scales from zero may have none.

use std::collections::HashMap;
use std::future::pending;
use std::time::Duration;

use nsbridge_client::{Client, ModelName};
use nsbridge_protocol::RequestId;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::failure::{Failure, MAX_RETRY_AFTER};

/// Time that a request waits for a worker before the broker is asked for the workers of its model.
/// Workers with a free slot take a request within milliseconds.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Time for which an answer of the broker is used, for all requests of a model.
const ASK_EVERY: Duration = Duration::from_secs(3);

/// Time limit for an answer of the broker. The number of workers is then unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Model whose workers are counted.
#[derive(Clone, Debug)]
pub struct CountedModel {
    /// Name that clients use.
    pub name: String,
    /// Time that its first worker takes to start.
    pub start: Duration,
}

/// Workers of the models that a gateway serves.
#[derive(Debug)]
pub struct Workers {
    client: Client,
    models: HashMap<ModelName, (CountedModel, Mutex<Known>)>,
}

/// Last answer of the broker about a model.
#[derive(Debug, Default)]
struct Known {
    asked: Option<Instant>,
    /// Time of the first answer that the model has no worker; `None` if it has some, or if the broker
    /// does not tell.
    absent_since: Option<Instant>,
}

impl Workers {
    /// Creates the workers of these models, by the names of their queues.
    pub fn new(client: Client, models: HashMap<ModelName, CountedModel>) -> Self {
        let counted = models.into_iter().map(|(queue, model)| (queue, (model, Mutex::default())));
        Self { client, models: counted.collect() }
    }

    /// Waits until the caller of a request should be told that its model is starting: the time that
    /// `until` returns has passed, no worker has taken the request, and the model has no worker.
    /// Never returns otherwise. Calls `notice` each time that the model is found without a worker.
    pub async fn given_up(
        &self,
        request: RequestId,
        queue: &ModelName,
        until: impl Fn() -> Option<Instant>,
        notice: impl Fn(),
    ) -> Failure {
        let noticed = Instant::now() + NOTICE_AFTER;
        let mut from = until().map_or(noticed, |until| until.min(noticed));
        loop {
            let failure = self.missing_from(from, request, queue).await;
            notice();
            let now = Instant::now();
            from = match until() {
                Some(until) if until <= now => return failure,
                Some(until) => until,
                None => now + ASK_EVERY,
            };
        }
    }

    /// Waits until a request that no worker has taken is found to wait for a model without a worker.
    /// Never returns otherwise.
    pub async fn missing(&self, request: RequestId, queue: &ModelName) -> Failure {
        self.missing_from(Instant::now() + NOTICE_AFTER, request, queue).await
    }

    async fn missing_from(
        &self,
        mut from: Instant,
        request: RequestId,
        queue: &ModelName,
    ) -> Failure {
        loop {
            sleep_until(from).await;
            if self.client.is_held(request) {
                return pending().await;
            }
            let Some((model, known)) = self.models.get(queue) else { return pending().await };
            if let Some(absent) = self.absence(queue, model, known).await {
                return Failure::starting(&model.name, model.start.saturating_sub(absent));
            }
            from = Instant::now() + ASK_EVERY;
        }
    }

    /// Returns the time for which a model is known to have no worker; `None` if it has one, or if the
    /// broker does not tell. The requests of a model wait for one question.
    async fn absence(
        &self,
        queue: &ModelName,
        model: &CountedModel,
        known: &Mutex<Known>,
    ) -> Option<Duration> {
        let mut known = known.lock().await;
        let asked = known.asked.map(|asked| asked.elapsed());
        if asked.is_none_or(|asked| asked >= ASK_EVERY) {
            // Boxed, because each reply has this future in its own.
            let answer = Box::pin(timeout(ANSWER_TIMEOUT, self.client.workers(queue))).await;
            // Clients that were told to come back ask for the model no later than this.
            let remembered = model.start.max(MAX_RETRY_AFTER) + ASK_EVERY;
            let before = known.absent_since.filter(|_| asked.is_some_and(|it| it < remembered));
            known.asked = Some(Instant::now());
            known.absent_since = match answer {
                Ok(Ok(0)) => before.or(known.asked),
                Ok(Ok(_)) => None,
                Ok(Err(error)) => {
                    tracing::debug!(%queue, %error, "the workers of a model cannot be counted");
                    None
                }
                Err(_) => None,
            };
            if before.is_none() && known.absent_since.is_some() {
                tracing::info!(%queue, "a request waits for a model that has no worker");
            }
        }
        known.absent_since.map(|since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    //! Requests that find their model without a worker, and the time after which they try again.

    use std::sync::Arc;

    use nsbridge_client::{Broker, Key, Keyring, MemoryBroker, Priority};
    use nsbridge_protocol::Uuid;
    use nsbridge_protocol::topology::request_queue;
    use tokio::time::sleep;

    use super::*;
    use crate::failure::Retry;

    const ID: RequestId = RequestId(Uuid::nil());

    /// Returns the workers of a model whose first one takes this long, and their broker.
    async fn workers(start_s: u64) -> (Workers, ModelName, Arc<MemoryBroker>) {
        let broker = Arc::new(MemoryBroker::new());
        let queue: ModelName = "q".parse().unwrap();
        let connection = broker.connect("test").await.unwrap();
        connection.declare_model(&queue).await.unwrap();
        let keys = Keyring::of_key("test".parse().unwrap(), Key::from_bytes([1; 32]));
        let client = Client::builder().broker(broker.clone()).keys(Arc::new(keys));
        let start = Duration::from_secs(start_s);
        let models = [(queue.clone(), CountedModel { name: "m".to_owned(), start })];
        (Workers::new(client.connect().await.unwrap(), models.into()), queue, broker)
    }

    /// Returns the seconds after which a request tries again that arrives now.
    async fn told(workers: &Workers, queue: &ModelName) -> u64 {
        let failure = workers.missing(ID, queue).await;
        let Retry::After(after) = failure.retry() else { unreachable!("{failure:?}") };
        assert!(failure.message().ends_with(&format!("try again in {} s", after.as_secs())));
        after.as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_until_a_retry_counts_from_the_first_request_that_found_no_worker() {
        let (workers, queue, _broker) = workers(150).await;
        assert_eq!(told(&workers, &queue).await, 120);
        sleep(Duration::from_secs(99)).await;
        assert_eq!(told(&workers, &queue).await, 50);
        sleep(Duration::from_secs(119)).await;
        assert_eq!(told(&workers, &queue).await, 1);
        // A worker may have come and gone in the meantime.
        sleep(Duration::from_secs(200)).await;
        assert_eq!(told(&workers, &queue).await, 120);
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_with_a_worker_is_not_said_to_start_until_it_has_none() {
        let (workers, queue, broker) = workers(60).await;
        assert_eq!(told(&workers, &queue).await, 60);
        let worker = broker.connect("worker").await.unwrap();
        let name = request_queue(&queue, Priority::Interactive);
        let consumer = worker.consume(&name, 1).await.unwrap();
        // The broker is not asked again before.
        sleep(ASK_EVERY).await;
        let limit = Duration::from_secs(20);
        assert!(timeout(limit, told(&workers, &queue)).await.is_err());
        drop(consumer);
        worker.close().await;
        assert_eq!(told(&workers, &queue).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_does_not_answer_tells_of_no_model_without_a_worker() {
        let (workers, queue, broker) = workers(60).await;
        let limit = Duration::from_secs(30);
        broker.delay(ANSWER_TIMEOUT + Duration::from_secs(1));
        assert!(timeout(limit, told(&workers, &queue)).await.is_err());
        broker.delay(Duration::ZERO);
        assert_eq!(told(&workers, &queue).await, 60);
    }
}
