//! End-to-end tests with a client, a queue and a worker, on the memory broker and on RabbitMQ.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod blame;
mod bulk;
mod canary;
mod combine;
mod giving_up;
mod judged;
#[cfg(feature = "kms")]
mod keys;
mod orphans;
mod platform;
mod refusal;
mod revision;
mod rules;
mod script;
mod straight;
mod traces;
mod trouble;
mod watch;

use std::sync::Arc;

use nsbridge_queue::{AmqpBroker, Broker, MemoryBroker};

/// Generates one test per broker for each function.
macro_rules! stories {
    ($($story:ident),* $(,)?) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $story() {
                    super::$story($crate::memory()).await;
                }
            )*
        }
        mod rabbit {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $story() {
                    super::$story($crate::rabbit()).await;
                }
            )*
        }
    };
}
pub(crate) use stories;

fn memory() -> Arc<dyn Broker> {
    Arc::new(MemoryBroker::new())
}

fn rabbit() -> Arc<dyn Broker> {
    Arc::new(AmqpBroker::new(&nsbridge_testkit::amqp_url()).unwrap())
}
