//! Broker that counts the questions about queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use nsbridge_client::{ModelName, Revision};
use nsbridge_queue::{Broker, Connection, Consumer, Depth, Error, Publisher, Result};

/// Broker, or a connection to it, that counts the questions about queues.
#[derive(Debug)]
pub(super) struct Counted<T: ?Sized> {
    inner: Arc<T>,
    pub(super) questions: Arc<AtomicU64>,
}

impl Counted<dyn Broker> {
    pub(super) fn new(inner: Arc<dyn Broker>) -> Self {
        Self { inner, questions: Arc::default() }
    }
}

#[async_trait]
impl Broker for Counted<dyn Broker> {
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>> {
        let inner = self.inner.connect(name).await?;
        Ok(Arc::new(Counted { inner, questions: self.questions.clone() }))
    }

    async fn listens(&self) -> bool {
        self.inner.listens().await
    }
}

#[async_trait]
impl Connection for Counted<dyn Connection> {
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

    async fn lock(&self, name: &str) -> Result<bool, nsbridge_queue::Error> {
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
        self.inner.consume(queue, prefetch).await
    }

    async fn consume_paused(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        self.inner.consume_paused(queue, prefetch).await
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        self.inner.publisher().await
    }

    async fn depth(&self, queue: &str) -> Result<Depth> {
        self.questions.fetch_add(1, Ordering::Relaxed);
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
