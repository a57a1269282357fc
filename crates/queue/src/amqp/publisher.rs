//! Publishing with publisher confirms.
//!
//! One task per publisher owns its channel. The task keeps the publishing order: lapin assigns a
//! message its number and sends it in two steps, which two publishing tasks could interleave. It
//! also collects the confirms, so that a caller may drop its [`Confirm`] without a leak.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::Channel;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use tokio::sync::{mpsc, oneshot};

use super::lifetime::{Life, Settings};
use super::returns::{Ledger, Mark};
use super::{convert, fault};
use crate::error::{Error, Result};
use crate::message::Message;
use crate::{Confirm, Confirmation, Publisher};

/// Maximum number of messages that callers hand over before the task takes them.
const AHEAD: usize = 64;

/// Maximum number of unconfirmed messages. The task takes new ones as the broker confirms old ones.
const UNCONFIRMED: usize = 2048;

const MANDATORY: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

/// Channel in confirm mode.
pub(super) struct AmqpPublisher {
    jobs: mpsc::Sender<Job>,
    channel: Channel,
    /// End of the time in which a refusal of what is published is believed.
    believed_until: Instant,
    is_stale: Arc<AtomicBool>,
}

impl AmqpPublisher {
    pub(super) async fn start(settings: &Settings, life: Life, channel: Channel) -> Result<Self> {
        let confirming = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirming.map_err(|error| fault::lost(&error))?;
        let believed_until = Instant::now() + settings.timing.fresh_channel;
        let (jobs, queue) = mpsc::channel(AHEAD);
        let pump = Pump { channel: channel.clone(), ledger: Ledger::default() };
        settings.io.spawn(async move {
            tokio::select! {
                () = pump.run(queue) => {}
                // Callers that wait for a confirm see the end, because their sender is dropped.
                _ = life.ended() => {}
            }
        });
        Ok(Self { jobs, channel, believed_until, is_stale: Arc::default() })
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, exchange: &str, key: &str, message: Message) -> Result<Confirm> {
        let names = (ShortString::try_new(exchange), ShortString::try_new(key));
        let (Ok(exchange), Ok(key)) = names else {
            // No queue can be bound under a name that AMQP cannot carry.
            return Ok(Box::pin(std::future::ready(Ok(Confirmation::Returned))));
        };
        if !self.channel.status().connected() {
            return Err(gone());
        }
        // The time of publishing counts, so that a slow refusal on a new channel is believed too.
        let is_believed = Instant::now() < self.believed_until;
        let (answer, confirmed) = oneshot::channel();
        let job = Job { exchange, key, message, answer };
        self.jobs.send(job).await.map_err(|_| gone())?;
        let is_stale = self.is_stale.clone();
        Ok(Box::pin(async move {
            let answer = confirmed.await.unwrap_or_else(|_| Err(gone()));
            if matches!(answer, Ok(Confirmation::Nack)) && !is_believed {
                is_stale.store(true, Ordering::Relaxed);
            }
            answer
        }))
    }

    fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher").field("channel", &self.channel.id()).finish_non_exhaustive()
    }
}

struct Job {
    exchange: ShortString,
    key: ShortString,
    message: Message,
    answer: oneshot::Sender<Result<Confirmation>>,
}

/// Task behind a publisher.
struct Pump {
    channel: Channel,
    ledger: Ledger,
}

impl Pump {
    async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut sent = FuturesUnordered::new();
        let mut jobs = Vec::with_capacity(AHEAD);
        let mut open = true;
        while open || !sent.is_empty() {
            let room = UNCONFIRMED.saturating_sub(sent.len()).min(AHEAD);
            tokio::select! {
                biased;
                Some(first) = sent.next(), if !sent.is_empty() => {
                    self.ledger.note(first);
                    self.settle(&mut sent);
                    if !self.channel.status().connected() {
                        queue.close();
                    }
                }
                count = queue.recv_many(&mut jobs, room), if open && room > 0 => open = count > 0,
            }
            for job in jobs.drain(..) {
                let mark = Mark::new(job.exchange.as_str(), job.key.as_str(), &job.message.body);
                let number = self.ledger.enter(mark, job.answer);
                let (channel, message) = (self.channel.clone(), job.message);
                sent.push(publish(channel, number, job.exchange, job.key, message));
            }
        }
    }

    /// Records all confirms received so far, and answers the messages whose outcome is certain.
    ///
    /// It stops after two empty polls in a row, because the first one may end early to yield to
    /// other tasks.
    fn settle<F>(&mut self, sent: &mut FuturesUnordered<F>)
    where
        F: Future<Output = (u64, lapin::Result<lapin::Confirmation>)>,
    {
        let mut empty_looks = 0;
        while empty_looks < 2 {
            match sent.next().now_or_never() {
                Some(Some(confirmed)) => {
                    self.ledger.note(confirmed);
                    empty_looks = 0;
                }
                Some(None) => break,
                None => empty_looks += 1,
            }
        }
        self.ledger.answer(sent.is_empty());
    }
}

/// Sends one message and waits for its confirm.
async fn publish(
    channel: Channel,
    number: u64,
    exchange: ShortString,
    key: ShortString,
    message: Message,
) -> (u64, lapin::Result<lapin::Confirmation>) {
    let properties = convert::outgoing(&message.properties);
    let sending = channel.basic_publish(exchange, key, MANDATORY, &message.body, properties);
    match sending.await {
        Ok(confirm) => (number, confirm.await),
        Err(error) => (number, Err(error)),
    }
}

fn gone() -> Error {
    Error::Lost { reason: "its channel is closed".to_owned() }
}
