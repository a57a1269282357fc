//! From the one reply queue to the requests that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nsbridge_crypto::{ErrorHint, ReplyHead, seal_control};
use nsbridge_protocol::topology::CONTROL_EXCHANGE;
use nsbridge_protocol::{ControlKind, ErrorCode, Failure, ModelName, RequestId, Summary};
use nsbridge_queue::{Confirmed, Consumer, Link, Message, Publisher, Result};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::merge::{Merge, Step};

/// Reply frames that may be read ahead.
const PREFETCH: u16 = 512;

/// Pieces that may wait for a caller before its request is given up.
pub(crate) const INBOX: usize = 16 << 10;

/// Finished requests whose late workers are still answered.
const TOMBSTONES: usize = 10_000;

/// Workers of one request that are told of its end.
const MAX_WORKERS: usize = 4;

/// What a caller gets.
#[derive(Debug)]
pub(crate) enum Note {
    Piece(Vec<u8>),
    Restarted {
        kept: usize,
    },
    Done(Summary),
    Failed(Failure),
    /// An unsealed word: never acted upon.
    Hint(ErrorCode),
}

/// One publishing channel, opened again when it is gone.
#[derive(Debug)]
pub(crate) struct Publish {
    link: Link,
    current: tokio::sync::Mutex<Option<Arc<dyn Publisher>>>,
}

impl Publish {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, current: tokio::sync::Mutex::default() }
    }

    /// Publishes and waits for the broker's answer. After an error the channel is not used again.
    pub(crate) async fn confirmed(
        &self,
        exchange: &str,
        key: &str,
        message: Message,
    ) -> Result<Confirmed> {
        let publisher = self.publisher().await?;
        let answer = async { publisher.publish(exchange, key, message).await?.await };
        let answer = answer.await;
        if answer.is_err() {
            let mut current = self.current.lock().await;
            current.take_if(|known| Arc::ptr_eq(known, &publisher));
        }
        answer
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        let mut current = self.current.lock().await;
        if let Some(publisher) = current.as_ref() {
            return Ok(publisher.clone());
        }
        let publisher: Arc<dyn Publisher> =
            Arc::from(self.link.connection().await.publisher().await?);
        Ok(current.insert(publisher).clone())
    }
}

/// The requests that wait for replies, and those that ended lately.
#[derive(Debug)]
pub(crate) struct Router {
    publish: Arc<Publish>,
    /// A reply may be dropped where there is no runtime.
    runtime: Handle,
    entries: Mutex<HashMap<RequestId, Entry>>,
}

#[derive(Debug)]
struct Entry {
    model: ModelName,
    merge: Merge,
    /// `None` once the request is over.
    inbox: Option<mpsc::Sender<Note>>,
    /// Control queues of the workers that opened a reply.
    workers: Vec<String>,
    deadline: Instant,
    heard: Instant,
    sealed: u64,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) pieces: usize,
    pub(crate) gap: bool,
    /// The last sign of life.
    pub(crate) heard: Instant,
    /// Sealed bytes, both ways.
    pub(crate) sealed: u64,
}

/// A control frame on its way.
type Letter = (String, Vec<u8>);

impl Router {
    pub(crate) fn new(publish: Arc<Publish>) -> Self {
        Self { publish, runtime: Handle::current(), entries: Mutex::default() }
    }

    pub(crate) fn register(
        &self,
        id: RequestId,
        model: ModelName,
        merge: Merge,
        deadline: Instant,
        sealed: u64,
    ) -> mpsc::Receiver<Note> {
        let (sender, notes) = mpsc::channel(INBOX);
        let mut entries = self.entries();
        if entries.len() >= TOMBSTONES {
            let now = Instant::now();
            entries.retain(|_, entry| entry.inbox.is_some() || entry.deadline > now);
        }
        let (workers, heard) = (Vec::new(), Instant::now());
        let inbox = Some(sender);
        let entry = Entry { model, merge, inbox, workers, deadline, heard, sealed };
        entries.insert(id, entry);
        notes
    }

    /// How far a request has come; `None` if it is long over.
    pub(crate) fn progress(&self, id: RequestId) -> Option<Progress> {
        let entries = self.entries();
        let Entry { merge, heard, sealed, .. } = entries.get(&id)?;
        Some(Progress { pieces: merge.len(), gap: merge.has_gap(), heard: *heard, sealed: *sealed })
    }

    /// Ends a request that its caller does not want any more, and tells its workers.
    pub(crate) fn cancel(self: &Arc<Self>, id: RequestId) {
        let letters = {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(&id) else { return };
            if entry.inbox.take().is_none() {
                return;
            }
            let letters = entry.cancels(id);
            entry.merge.end();
            letters
        };
        self.send(letters);
    }

    /// Declares the reply queue and subscribes to it.
    pub(crate) async fn subscribe(link: &Link, queue: &str) -> Result<Consumer> {
        let connection = link.try_connection().await?;
        connection.declare_reply_queue(queue).await?;
        connection.consume(queue, PREFETCH).await
    }

    /// Reads the reply queue until the client is closed, through any number of connections.
    pub(crate) async fn run(
        self: Arc<Self>,
        link: Link,
        queue: String,
        mut consumer: Consumer,
        closed: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = closed.cancelled() => break,
                () = self.read(&mut consumer) => {}
            }
            // What the old subscription still holds must be back in the queue, in order.
            drop(consumer);
            consumer = tokio::select! {
                () = closed.cancelled() => break,
                consumer = Self::subscribe_again(&link, &queue) => consumer,
            };
        }
        link.close().await;
        self.publish.link.close().await;
    }

    async fn subscribe_again(link: &Link, queue: &str) -> Consumer {
        loop {
            link.connection().await;
            match Self::subscribe(link, queue).await {
                Ok(consumer) => return consumer,
                Err(error) => {
                    tracing::warn!(%error, "cannot read replies, trying again");
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    async fn read(self: &Arc<Self>, consumer: &mut Consumer) {
        while let Some(delivery) = consumer.recv().await {
            let reply_to = delivery.message.properties.reply_to.as_deref();
            let letters = self.accept(&delivery.message.body, reply_to);
            self.send(letters);
            // The frame is in this process's memory now, and nothing outlives that.
            if delivery.ack().await.is_err() {
                return;
            }
        }
    }

    /// Takes one frame; gives the control frames that answer it.
    fn accept(&self, frame: &[u8], reply_to: Option<&str>) -> Vec<Letter> {
        let mut entries = self.entries();
        if let Some(hint) = ErrorHint::parse(frame) {
            if let Some(inbox) = entries.get(&hint.request).and_then(|e| e.inbox.as_ref()) {
                let _ = inbox.try_send(Note::Hint(hint.code));
            }
            return Vec::new();
        }
        let Ok(head) = ReplyHead::parse(frame) else { return Vec::new() };
        let Some(entry) = entries.get_mut(&head.request) else { return Vec::new() };
        entry.accept(head.request, frame, reply_to)
    }

    /// Control frames go on their own way: a worker that does not read one reads the next.
    fn send(self: &Arc<Self>, letters: Vec<Letter>) {
        if letters.is_empty() {
            return;
        }
        let router = self.clone();
        self.runtime.spawn(async move {
            for (key, frame) in letters {
                let message = Message::new(frame);
                if let Err(error) = router.publish.confirmed(CONTROL_EXCHANGE, &key, message).await
                {
                    tracing::debug!(%error, "a control frame may not have arrived");
                }
            }
        });
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn accept(&mut self, id: RequestId, frame: &[u8], reply_to: Option<&str>) -> Vec<Letter> {
        let heard = self.merge.heard();
        let steps = self.merge.accept(frame);
        if self.merge.heard() != heard {
            self.sealed += frame.len() as u64;
            self.heard = Instant::now();
            if let Some(worker) = reply_to
                && self.workers.len() < MAX_WORKERS
                && !self.workers.iter().any(|known| known == worker)
            {
                self.workers.push(worker.to_owned());
            }
        }
        let mut letters = Vec::new();
        for step in steps {
            match step {
                Step::Tell(kind, body) => {
                    let key = reply_to.unwrap_or(self.model.as_str()).to_owned();
                    letters.extend(seal(&self.merge, id, kind, &body).map(|frame| (key, frame)));
                }
                step => letters.extend(self.pass(id, step)),
            }
        }
        letters
    }

    /// Hands a step to the caller; ends the request if it was the last, or nobody reads it.
    fn pass(&mut self, id: RequestId, step: Step) -> Vec<Letter> {
        let (note, last) = match step {
            Step::Piece(piece) => (Note::Piece(piece), false),
            Step::Restarted { kept } => (Note::Restarted { kept }, false),
            Step::Done(summary) => (Note::Done(summary), true),
            Step::Failed(failure) => (Note::Failed(failure), true),
            Step::Tell(..) => return Vec::new(),
        };
        let Some(inbox) = &self.inbox else { return Vec::new() };
        let unread = inbox.try_send(note).is_err();
        if !last && !unread {
            return Vec::new();
        }
        // A lone worker knows that it is done; rivals must be told.
        let letters = if unread || self.merge.has_rivals() { self.cancels(id) } else { Vec::new() };
        self.inbox = None;
        self.merge.end();
        letters
    }

    /// A cancel for each worker that opened a reply, or for whoever will.
    fn cancels(&self, id: RequestId) -> Vec<Letter> {
        let keys = match self.workers.as_slice() {
            [] => vec![self.model.to_string()],
            workers => workers.to_vec(),
        };
        let seal = |key| Some((key, seal(&self.merge, id, ControlKind::Cancel, b"")?));
        keys.into_iter().filter_map(seal).collect()
    }
}

fn seal(merge: &Merge, id: RequestId, kind: ControlKind, body: &[u8]) -> Option<Vec<u8>> {
    seal_control(merge.root(), id, kind, body)
        .inspect_err(|error| tracing::warn!(%error, "a control frame could not be sealed"))
        .ok()
}
