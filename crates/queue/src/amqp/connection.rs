//! AMQP connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Event};
use nsbridge_protocol::topology::REPLY_QUEUE_PREFIX;
use nsbridge_protocol::{ModelName, Revision};
use tokio::sync::watch;
use tokio::time::timeout;

use super::lifetime::{Life, Settings};
use super::publisher::AmqpPublisher;
use super::{consumer, fault, topology};
use crate::delivery::Consumer;
use crate::error::{Error, Result};
use crate::{Connection, Depth, Publisher};

const GOODBYE: u16 = 200;

/// Connection whose sockets and heartbeats are served by the broker's I/O thread.
pub(super) struct AmqpConnection {
    inner: Arc<lapin::Connection>,
    settings: Settings,
    /// Reason for the end of the connection; `None` while it lives.
    ended: watch::Sender<Option<String>>,
    /// True once the broker has closed a channel, whose id is then lost.
    has_lost_ids: AtomicBool,
}

impl AmqpConnection {
    pub(super) fn new(inner: lapin::Connection, settings: Settings) -> Self {
        let inner = Arc::new(inner);
        let (ended, _) = watch::channel(None);
        let poll = settings.timing.connection_poll;
        settings.io.spawn(watch_over(Arc::clone(&inner), ended.clone(), poll));
        Self { inner, settings, ended, has_lost_ids: AtomicBool::new(false) }
    }

    /// Opens a channel.
    ///
    /// lapin (4.12) cannot open an id again whose channel the broker has closed: each later use of
    /// the id meets the error of then, and the id counts as used for good. So the next id is tried
    /// instead. A connection without another id is closed, and its users open a new one.
    async fn channel(&self) -> Result<Channel> {
        loop {
            let error = match self.inner.create_channel().await {
                Ok(channel) => return Ok(channel),
                Err(error) => error,
            };
            if fault::is_lost_id(&error) {
                self.has_lost_ids.store(true, Ordering::Relaxed);
                continue;
            }
            if fault::is_channel_limit(&error) && self.has_lost_ids.load(Ordering::Relaxed) {
                tracing::warn!("the broker has closed many channels: the connection is replaced");
                self.close().await;
            }
            return Err(fault::lost(&error));
        }
    }

    async fn subscribe(&self, queue: &str, prefetch: u16, flows: bool) -> Result<Consumer> {
        let life = self.life();
        let subscribing = async {
            let channel = self.channel().await?;
            consumer::subscribe(&self.settings, life.clone(), channel, queue, prefetch, flows).await
        };
        life.during(subscribing).await
    }

    /// Runs an operation on a queue that one node of a cluster has, which may be down. RabbitMQ 4.3
    /// repeats the operation for a minute before it fails.
    async fn at_home<T>(
        &self,
        queue: &str,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match timeout(self.settings.timing.home_node_limit, operation).await {
            Ok(answer) => answer,
            Err(_) if self.is_blocked() => {
                Err(Error::Lost { reason: "the broker reads nothing for now".to_owned() })
            }
            Err(_) => Err(Error::NodeDown { queue: queue.to_owned() }),
        }
    }

    fn life(&self) -> Life {
        Life::new(self.ended.subscribe())
    }
}

/// Waits for the end of the connection and records the reason.
///
/// A channel's error is also reported as an event, so the connection's own state decides.
async fn watch_over(
    connection: Arc<lapin::Connection>,
    ended: watch::Sender<Option<String>>,
    poll: Duration,
) {
    let mut events = Box::pin(connection.events_listener());
    let status = connection.status().clone();
    drop(connection);
    let mut reason = None;
    loop {
        let event = timeout(poll, events.next()).await;
        match &event {
            Ok(Some(Event::Error(error))) => reason = Some(error.to_string()),
            Ok(Some(Event::ConnectionBlocked(why))) => {
                tracing::warn!(%why, "the broker takes no messages for now");
            }
            Ok(Some(Event::ConnectionUnblocked)) => {
                tracing::info!("the broker takes messages again");
            }
            _ => {}
        }
        if !status.connected() || matches!(event, Ok(None)) {
            break;
        }
    }
    let reason = reason.unwrap_or_else(|| "it was closed".to_owned());
    ended.send_if_modified(|ended| ended.replace(reason).is_none());
}

#[async_trait]
impl Connection for AmqpConnection {
    async fn declare_model(&self, model: &ModelName) -> Result<()> {
        let declaring = async {
            topology::declare_model(&self.channel().await?, model, &self.settings.limits).await
        };
        self.life().during(declaring).await
    }

    async fn declare_reply_queue(&self, queue: &str) -> Result<()> {
        let declaring = async {
            topology::declare_reply_queue(&self.channel().await?, queue, &self.settings.limits)
                .await
        };
        self.life().during(self.at_home(queue, declaring)).await
    }

    async fn declare_control_queue(
        &self,
        queue: &str,
        model: &ModelName,
        revision: Option<&Revision>,
    ) -> Result<()> {
        let declaring = async {
            let channel = self.channel().await?;
            topology::declare_control_queue(&channel, queue, model, revision).await
        };
        self.life().during(declaring).await
    }

    async fn lock(&self, name: &str) -> Result<bool> {
        let locking = async { topology::lock(&self.channel().await?, name).await };
        self.life().during(locking).await
    }

    async fn declare_run_record(&self, queue: &str) -> Result<u32> {
        let declaring = async { topology::declare_run_record(&self.channel().await?, queue).await };
        self.life().during(self.at_home(queue, declaring)).await
    }

    async fn strike_run_record(&self, queue: &str) -> Result<()> {
        let striking = async { topology::strike_run_record(&self.channel().await?, queue).await };
        match self.life().during(self.at_home(queue, striking)).await {
            Err(Error::NoQueue { .. } | Error::NodeDown { .. }) => Ok(()),
            struck => struck,
        }
    }

    async fn delete_run_record(&self, queue: &str) -> Result<()> {
        let deleting = async {
            let (channel, name) = (self.channel().await?, fault::name(queue)?);
            let deleted = channel.queue_delete(name, QueueDeleteOptions::default()).await;
            deleted.map(drop).map_err(|error| fault::using(queue, &error))
        };
        match self.life().during(self.at_home(queue, deleting)).await {
            Err(Error::NoQueue { .. } | Error::NodeDown { .. }) => Ok(()),
            deleted => deleted,
        }
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        let subscribing = self.subscribe(queue, prefetch, true);
        if !queue.starts_with(REPLY_QUEUE_PREFIX) {
            return subscribing.await;
        }
        self.at_home(queue, subscribing).await
    }

    async fn consume_paused(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        self.subscribe(queue, prefetch, false).await
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        let life = self.life();
        let opening = async {
            let publisher =
                AmqpPublisher::start(&self.settings, life.clone(), self.channel().await?);
            Ok(Box::new(publisher.await?) as Box<dyn Publisher>)
        };
        life.during(opening).await
    }

    async fn depth(&self, queue: &str) -> Result<Depth> {
        let asking = async {
            let options = QueueDeclareOptions::default().passive();
            let name = fault::name(queue)?;
            let channel = self.channel().await?;
            let asked = channel.queue_declare(name, options, FieldTable::default()).await;
            let found = asked.map_err(|error| fault::using(queue, &error))?;
            Ok(Depth { messages: found.message_count(), consumers: found.consumer_count() })
        };
        if !queue.starts_with(REPLY_QUEUE_PREFIX) {
            return self.life().during(asking).await;
        }
        self.life().during(self.at_home(queue, asking)).await
    }

    fn is_blocked(&self) -> bool {
        self.inner.status().blocked()
    }

    async fn lost(&self) -> Error {
        self.life().ended().await
    }

    async fn close(&self) {
        let closing = self.inner.close(GOODBYE, "bye".into());
        match timeout(self.settings.timing.close_limit, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the connection was gone before its close"),
            Err(_) => tracing::debug!("the broker did not answer the close"),
        }
        self.ended.send_if_modified(|ended| match ended {
            Some(_) => false,
            None => ended.replace("we closed it".to_owned()).is_none(),
        });
    }
}

impl fmt::Debug for AmqpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpConnection")
            .field("ended", &self.ended.borrow())
            .finish_non_exhaustive()
    }
}
