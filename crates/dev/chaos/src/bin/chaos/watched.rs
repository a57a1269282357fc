//! Broker wrapper of the client: records enqueued requests in the journal and applies the harness's
//! tricks.

use std::sync::Arc;

use async_trait::async_trait;
use nsbridge_protocol::topology::header::{ACQUIRED_COUNT, DELIVERY_COUNT};
use nsbridge_protocol::topology::reply_queue;
use nsbridge_protocol::{ModelName, Revision};
use nsbridge_queue::{
    Broker, Confirm, Connection, Consumer, Depth, Error, Header, Message, Publisher, Result,
};
use serde::{Deserialize, Serialize};

use crate::journal::{Journal, What, to_hex};

/// Magic bytes at the start of a sealed request.
const REQUEST: &[u8] = b"NSBQ";

/// Forged delivery count, above every limit of a worker (`POISON_RUNS`, `RENEW_DELIVERIES`).
const FORGED_COUNT: i64 = 40;

/// Returns the name of a reply queue that never existed.
pub(crate) fn nobodys_queue() -> String {
    reply_queue(0)
}

/// Manipulation of requests on their way to the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Trick {
    #[default]
    None,
    /// Publishes the same sealed bytes twice.
    Twice,
    /// Sets the headers that only a broker should set.
    ForgedCount,
    /// Publishes the same sealed bytes with a reply queue that does not exist, and then unchanged.
    ForgedReplyTo,
}

/// Broker whose publishers record each sealed request before they send it.
#[derive(Debug)]
pub(crate) struct Watched<B> {
    pub(crate) inner: B,
    pub(crate) journal: Arc<Journal>,
    pub(crate) trick: Trick,
}

#[async_trait]
impl<B: Broker> Broker for Watched<B> {
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>> {
        let inner = self.inner.connect(name).await?;
        Ok(Arc::new(Watched { inner, journal: self.journal.clone(), trick: self.trick }))
    }

    async fn listens(&self) -> bool {
        self.inner.listens().await
    }
}

#[async_trait]
impl Connection for Watched<Arc<dyn Connection>> {
    async fn declare_model(&self, model: &ModelName) -> Result<()> {
        self.inner.declare_model(model).await
    }

    async fn declare_reply_queue(&self, queue: &str) -> Result<()> {
        self.inner.declare_reply_queue(queue).await
    }

    async fn declare_control_queue(
        &self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
    ) -> Result<()> {
        self.inner.declare_control_queue(queue, model, revision).await
    }

    async fn lock(&self, name: &str) -> Result<bool> {
        self.inner.lock(name).await
    }

    async fn declare_run_record(&self, queue: &str) -> Result<u32> {
        self.inner.declare_run_record(queue).await
    }

    async fn strike_run_record(&self, queue: &str) -> Result<()> {
        self.inner.strike_run_record(queue).await
    }

    async fn delete_run_record(&self, queue: &str) -> Result<()> {
        self.inner.delete_run_record(queue).await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        let consumer = self.inner.consume(queue, prefetch).await?;
        let (connection, journal) = (self.inner.clone(), self.journal.clone());
        let note = move |hears| journal.note(What::Listening { pid: std::process::id(), hears });
        let _ = note(true);
        tokio::spawn(async move {
            connection.lost().await;
            let _ = note(false);
        });
        Ok(consumer)
    }

    async fn consume_paused(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        self.inner.consume_paused(queue, prefetch).await
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        let inner = self.inner.publisher().await?;
        Ok(Box::new(Watched { inner, journal: self.journal.clone(), trick: self.trick }))
    }

    async fn depth(&self, queue: &str) -> Result<Depth> {
        self.inner.depth(queue).await
    }

    fn is_blocked(&self) -> bool {
        self.inner.is_blocked()
    }

    async fn lost(&self) -> Error {
        self.inner.lost().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl Publisher for Watched<Box<dyn Publisher>> {
    async fn publish(&self, exchange: &str, key: &str, mut message: Message) -> Result<Confirm> {
        if !message.body.starts_with(REQUEST) {
            return self.inner.publish(exchange, key, message).await;
        }
        let request = message.properties.message_id.clone().unwrap_or_default();
        let frame = to_hex(&message.body);
        self.journal
            .note(What::Enqueue { request, frame })
            .map_err(|error| Error::Lost { reason: format!("no journal: {error}") })?;
        match self.trick {
            Trick::None => {}
            Trick::Twice => drop(self.inner.publish(exchange, key, message.clone()).await?.await?),
            Trick::ForgedReplyTo => {
                let mut forged = message.clone();
                forged.properties.reply_to = Some(nobodys_queue());
                let _ = self.inner.publish(exchange, key, forged).await?.await?;
            }
            Trick::ForgedCount => {
                for name in [DELIVERY_COUNT, ACQUIRED_COUNT] {
                    message.properties.headers.insert(name.into(), Header::Int(FORGED_COUNT));
                }
            }
        }
        self.inner.publish(exchange, key, message).await
    }

    fn is_stale(&self) -> bool {
        self.inner.is_stale()
    }
}
