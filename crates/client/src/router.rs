//! Dispatch of frames from the reply queue to the waiting requests.

use std::collections::HashMap;
use std::sync::Arc;

use nsbridge_base::random::{NoRandomness, bytes, random};
use nsbridge_crypto::{ErrorHint, ReplyHead};
use nsbridge_protocol::RequestId;
use nsbridge_protocol::topology::{self, CONTROL_EXCHANGE, header};
use nsbridge_queue::{
    Confirmation, Connection, Consumer, Delivery, Error, Header, Message, Publisher,
    ReconnectingConnection, Result,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, interval, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::envelope::Envelope;
use crate::merge::Merge;
use crate::pending::{ControlMessage, Original, PendingRequest};
use crate::timing::Timing;

/// Prefetch count of the reply queue, in frames.
const PREFETCH: u16 = 512;

/// Maximum number of frames that are acknowledged at once. An acknowledgement takes a turn of two
/// threads and of the broker, which costs more than opening a frame. The broker goes on sending
/// meanwhile, because the prefetch count is much larger.
const ACKED_AT_ONCE: usize = 64;

/// Maximum number of finished requests that are remembered, until their deadline, to answer late
/// workers.
const TOMBSTONES: usize = 10_000;

/// Publishing channel, opened again after a loss.
#[derive(Debug)]
pub(crate) struct Publish {
    link: ReconnectingConnection,
    current: tokio::sync::Mutex<Option<Arc<dyn Publisher>>>,
}

impl Publish {
    pub(crate) fn new(link: ReconnectingConnection) -> Self {
        Self { link, current: tokio::sync::Mutex::default() }
    }

    /// Publishes a message and waits for the broker's answer. A channel is not used again after an
    /// error, or once it is stale.
    pub(crate) async fn confirmed(
        &self,
        exchange: &str,
        key: &str,
        message: Message,
    ) -> Result<Confirmation> {
        loop {
            let (publisher, is_new) = self.publisher().await?;
            let answer = async { publisher.publish(exchange, key, message.clone()).await?.await };
            let answer = answer.await;
            if answer.is_ok() && !publisher.is_stale() {
                return answer;
            }
            self.current.lock().await.take_if(|known| Arc::ptr_eq(known, &publisher));
            if matches!(answer, Ok(Confirmation::Ack | Confirmation::Returned)) {
                return answer;
            }
            // A cached channel may have been lost or stale for long, so try a new one.
            if is_new {
                return answer;
            }
        }
    }

    /// Returns a channel, and true if it was newly opened.
    async fn publisher(&self) -> Result<(Arc<dyn Publisher>, bool)> {
        let mut current = self.current.lock().await;
        if let Some(publisher) = current.as_ref() {
            return Ok((publisher.clone(), false));
        }
        let publisher: Arc<dyn Publisher> =
            Arc::from(self.link.connection().await.publisher().await?);
        Ok((current.insert(publisher).clone(), true))
    }
}

/// Requests that wait for replies or ended recently.
#[derive(Debug)]
pub(crate) struct Router {
    publish: Arc<Publish>,
    /// Runtime for background tasks. A reply may be dropped on a thread without a runtime.
    runtime: Handle,
    /// Canceled when the client is dropped.
    closed: CancellationToken,
    pending: Mutex<HashMap<RequestId, Entry>>,
    reply_queue: Mutex<String>,
    timing: Timing,
}

/// Request, shared by the router and its reply. A request that is reattached to has a new entry under
/// the same id, and the reply of the earlier one keeps its own.
pub(crate) type Entry = Arc<Mutex<PendingRequest>>;

impl Router {
    pub(crate) fn new(
        publish: Arc<Publish>,
        closed: CancellationToken,
        reply_queue: String,
        timing: Timing,
    ) -> Self {
        let (runtime, pending) = (Handle::current(), Mutex::default());
        Self { publish, runtime, closed, pending, reply_queue: Mutex::new(reply_queue), timing }
    }

    /// Returns the current name of the reply queue.
    pub(crate) fn reply_queue(&self) -> String {
        self.reply_queue.lock().clone()
    }

    /// Registers a request that is about to be published. Cancels an earlier registration of its id.
    pub(crate) fn register(
        self: &Arc<Self>,
        original: Original,
        merge: Merge,
        deadline: Instant,
        sealed: u64,
    ) -> Entry {
        let id = original.head.id;
        let entry = PendingRequest::new(original, merge, deadline, sealed);
        let entry: Entry = Arc::new(Mutex::new(entry));
        let earlier = self.pending.lock().insert(id, entry.clone());
        if let Some(earlier) = earlier {
            self.cancel(&earlier);
        }
        entry
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns the connection that requests are published on.
    pub(crate) async fn connection(&self) -> Arc<dyn Connection> {
        self.publish.link.connection().await
    }

    /// Returns true if a worker has opened the request and has not handed it back.
    pub(crate) fn is_held(&self, id: RequestId) -> bool {
        let entry = self.pending.lock().get(&id).cloned();
        entry.is_some_and(|entry| entry.lock().is_held())
    }

    /// Ends a request that its caller no longer needs, and cancels its workers. Has no effect if it
    /// is over.
    pub(crate) fn cancel(self: &Arc<Self>, entry: &Entry) {
        let messages = entry.lock().cancel();
        self.send(messages);
    }

    /// Consumes the reply queue, and declares it. Sets `lost` if the queue did not exist. Changes `queue`
    /// to another name, and sets `lost`, if it is on a node of the broker that is down.
    pub(crate) async fn subscribe(
        link: &ReconnectingConnection,
        queue: &mut String,
        lost: &mut bool,
    ) -> Result<Consumer> {
        let connection = link.try_connection().await?;
        // Consume first, because a queue with a consumer does not expire. A queue that is only
        // inspected could expire with its content before it is declared, and the loss would go
        // unnoticed.
        match connection.consume(queue, PREFETCH).await {
            Ok(consumer) => {
                // An earlier attempt may have created the queue and failed before binding it.
                connection.declare_reply_queue(queue).await?;
                return Ok(consumer);
            }
            // Set before the queue is created again. If a later step fails, the next attempt finds
            // the queue.
            Err(Error::NoQueue { .. }) => *lost = true,
            // The node may never come back, and the broker keeps the name for it.
            Err(error @ Error::NodeDown { .. }) => {
                *lost = true;
                *queue = name_reply_queue().map_err(|_| error)?;
            }
            Err(error) => return Err(error),
        }
        connection.declare_reply_queue(queue).await?;
        connection.consume(queue, PREFETCH).await
    }

    /// Reads the reply queue across reconnects until the client is closed.
    pub(crate) async fn run(self: Arc<Self>, link: ReconnectingConnection, mut consumer: Consumer) {
        let closed = self.closed.clone();
        let mut queue = self.reply_queue();
        loop {
            tokio::select! {
                () = closed.cancelled() => break,
                () = self.read(&mut consumer) => {}
                () = self.look_after(&queue) => {}
            }
            // Unacked deliveries of the old subscription must return to the queue, in order.
            drop(consumer);
            let mut lost = false;
            consumer = tokio::select! {
                () = closed.cancelled() => break,
                subscribed = self.subscribe_again(&link, &mut queue, &mut lost) => subscribed,
            };
            // Before the requests are told, so that each one knows of the loss or has the new name.
            self.reply_queue.lock().clone_from(&queue);
            if lost {
                tracing::warn!(
                    "the reply queue was lost: requests whose replies it held may be enqueued again"
                );
                self.pending.lock().values().for_each(|entry| entry.lock().disturb());
            }
        }
        link.close().await;
        self.publish.link.close().await;
    }

    async fn subscribe_again(
        &self,
        link: &ReconnectingConnection,
        queue: &mut String,
        lost: &mut bool,
    ) -> Consumer {
        let mut pauses = self.timing.backoff.pauses();
        loop {
            link.connection().await;
            match Self::subscribe(link, queue, lost).await {
                Ok(subscribed) => return subscribed,
                Err(error) => {
                    tracing::warn!(%error, "cannot read replies, trying again");
                    sleep(pauses.next(random())).await;
                }
            }
        }
    }

    /// Enqueues requests again whose replies were lost (rule C6).
    async fn look_after(self: &Arc<Self>, reply_queue: &str) {
        let mut look = interval(self.timing.check_every);
        let (mut listening, mut looked) = (Instant::now(), Instant::now());
        loop {
            look.tick().await;
            if looked.elapsed() >= self.timing.suspended {
                listening = Instant::now();
            }
            looked = Instant::now();
            forget(&mut self.pending.lock());
            let again: Vec<_> = self
                .pending
                .lock()
                .values()
                .filter_map(|entry| {
                    let mut entry = entry.lock();
                    let (frame, number) = entry.enqueue_again(&self.timing, listening)?;
                    let envelope = entry.envelope()?;
                    let message = envelope.message(frame, reply_queue, number);
                    Some((envelope, message, entry.deadline))
                })
                .collect();
            for (envelope, message, deadline) in again {
                let head = &envelope.head;
                tracing::warn!(request = %head.id, "no worker has sent a frame lately: enqueuing the request again");
                let router = self.clone();
                self.runtime.spawn(async move {
                    // A full queue is no reason to give up: the request was already accepted once.
                    let taken = |answer| {
                        let taken = matches!(answer, Ok(Confirmation::Ack)).then_some(());
                        if taken.is_none() {
                            let id = envelope.head.id;
                            tracing::warn!(request = %id, ?answer, "the broker did not accept a copy");
                        }
                        taken
                    };
                    let enqueued = timeout_at(deadline, router.enqueue(&envelope, message, taken));
                    tokio::select! {
                        () = router.closed.cancelled() => {}
                        in_time = enqueued => if in_time.is_err() {
                            let id = envelope.head.id;
                            tracing::warn!(request = %id, "a copy did not arrive in time");
                        }
                    }
                });
            }
        }
    }

    /// Publishes a sealed request until `decide` returns a result for the broker's answer. Returns
    /// `None` if the request is over. The bytes are always the same, so that a worker recognizes a
    /// second copy as a duplicate.
    pub(crate) async fn enqueue<T>(
        &self,
        envelope: &Envelope,
        message: Message,
        mut decide: impl FnMut(Result<Confirmation>) -> Option<T>,
    ) -> Option<T> {
        let (queue, mut pauses) = (envelope.queue(), self.timing.backoff.pauses());
        while self
            .pending
            .lock()
            .get(&envelope.head.id)
            .is_some_and(|entry| !entry.lock().is_over())
        {
            let answer = self.publish.confirmed("", &queue, message.clone()).await;
            if let Some(decided) = decide(answer) {
                return Some(decided);
            }
            sleep(pauses.next(random())).await;
        }
        None
    }

    async fn read(self: &Arc<Self>, consumer: &mut Consumer) {
        while let Some(first) = consumer.recv().await {
            let mut batch = vec![first];
            while batch.len() < ACKED_AT_ONCE
                && let Some(next) = consumer.try_recv()
            {
                batch.push(next);
            }
            let messages =
                batch.iter().flat_map(|delivery| self.accept(&delivery.message)).collect();
            self.send(messages);
            // The frames are in the memory of this process, and no reader of them outlives the
            // process.
            if Delivery::ack_all(batch).await.is_err() {
                return;
            }
        }
    }

    /// Processes one frame and returns the control frames that answer it.
    fn accept(&self, message: &Message) -> Vec<ControlMessage> {
        let (frame, properties) = (&*message.body, &message.properties);
        let entry = |id: &RequestId| self.pending.lock().get(id).cloned();
        if let Some(hint) = ErrorHint::parse(frame) {
            if let Some(entry) = entry(&hint.request) {
                entry.lock().hint(hint.code);
            }
            return Vec::new();
        }
        let Ok(head) = ReplyHead::parse(frame) else { return Vec::new() };
        let Some(entry) = entry(&head.request) else { return Vec::new() };
        let span = properties.text(header::TRACE_PARENT).and_then(|span| span.parse().ok());
        entry.lock().accept(frame, properties.reply_to.as_deref(), span)
    }

    /// Publishes control frames in a background task, without a retry: a worker that misses one
    /// reads the next.
    fn send(self: &Arc<Self>, messages: Vec<ControlMessage>) {
        if messages.is_empty() {
            return;
        }
        let router = self.clone();
        self.runtime.spawn(async move {
            for ControlMessage { request, key, frame, before } in messages {
                let mut message = Message::new(frame);
                message.properties.correlation_id = Some(request.to_string());
                if let Some(before) = before {
                    let header = Header::Text(before.to_string());
                    message.properties.headers.insert(header::TRACE_BEFORE.into(), header);
                }
                if let Err(error) = router.publish.confirmed(CONTROL_EXCHANGE, &key, message).await
                {
                    tracing::debug!(%error, "a control frame may not have arrived");
                }
            }
        });
    }
}

/// Draws the name of a reply queue.
pub(crate) fn name_reply_queue() -> Result<String, NoRandomness> {
    Ok(topology::reply_queue(u128::from_ne_bytes(bytes()?)))
}

/// Forgets ended requests: those past their deadline, and those with the earliest deadlines if
/// there are too many. A reply that is still read keeps its own.
fn forget(pending: &mut HashMap<RequestId, Entry>) {
    let (now, mut ended) = (Instant::now(), Vec::new());
    pending.retain(|id, entry| {
        let entry = entry.lock();
        let stays = !entry.is_over() || entry.deadline > now;
        if stays && entry.is_over() {
            ended.push((entry.deadline, *id));
        }
        stays
    });
    let Some(too_many) = ended.len().checked_sub(TOMBSTONES + 1) else { return };
    ended.select_nth_unstable(too_many);
    for (_, id) in &ended[..=too_many] {
        pending.remove(id);
    }
}

#[cfg(test)]
mod tests;
