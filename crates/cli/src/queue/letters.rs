//! Inspection of messages in a queue, without removing them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nsbridge_crypto::{KeyProvider, RequestFrame, RequestHead};
use nsbridge_protocol::topology::{bulk_queue, header};
use nsbridge_protocol::{ErrorCode, ModelName, Priority, Request, RequestId};
use nsbridge_queue::{Connection, Consumer, Delivery, Error};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

/// Maximum number of messages inspected in one run.
const MAX_MESSAGES: usize = 1000;

/// Prefetch limit, in messages of up to 8 MiB each.
const AHEAD: u16 = 8;

/// Number of bytes kept of a body that is not needed whole: 8 KiB, enough for the longest header.
const HEAD_BYTES: usize = 8 << 10;

/// Maximum total size of whole bodies that are kept: 256 MiB.
const MOST_BYTES: usize = 256 << 20;

/// Time without a message after which the queue is taken to be exhausted.
const IDLE: Duration = Duration::from_secs(2);

/// Filter for dead letters.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Which {
    /// Selects only the dead letter of this request.
    #[arg(long)]
    pub(super) id: Option<RequestId>,
    /// Selects only dead letters with this reason, such as `poison`.
    #[arg(long, value_parser = read_reason)]
    pub(super) reason: Option<ErrorCode>,
    /// Selects only dead letters that are at least this many days old.
    #[arg(long, value_name = "DAYS")]
    pub(super) older_than: Option<u64>,
}

fn read_reason(text: &str) -> Result<ErrorCode, String> {
    let known = ErrorCode::ALL.into_iter().find(|code| code.as_str() == text);
    known.ok_or_else(|| {
        let all = ErrorCode::ALL.map(ErrorCode::as_str).join(", ");
        format!("there is no such reason; there are: {all}")
    })
}

impl Which {
    /// Returns true if the filter selects some of the dead letters instead of all.
    pub(super) fn selects(&self) -> bool {
        self.id.is_some() || self.reason.is_some() || self.older_than.is_some()
    }

    pub(super) fn fits(&self, letter: &Letter) -> bool {
        let old = |days: u64| {
            let age = letter.dead_at().and_then(|at| SystemTime::now().duration_since(at).ok());
            age.is_some_and(|age| age.as_secs() / (24 * 3600) >= days)
        };
        self.id.is_none_or(|id| letter.id() == Some(id))
            && self.reason.is_none_or(|code| letter.reason() == code.as_str())
            && self.older_than.is_none_or(old)
    }
}

/// Messages of a queue. They are requeued in their order at the end.
pub(super) struct Letters {
    connection: Arc<dyn Connection>,
    letters: Vec<Letter>,
}

impl Letters {
    /// Reads the queue, up to the limit of messages. `show` receives each message whole; only the
    /// head of its body is kept.
    pub(super) async fn read(
        connection: Arc<dyn Connection>,
        queue: &str,
        mut show: impl AsyncFnMut(&Letter) -> Result<()>,
    ) -> Result<Self> {
        let mut look = Look::begin(connection, queue).await?;
        let mut letters = Vec::new();
        while let Some(mut letter) = look.next().await? {
            show(&letter).await?;
            letter.keep_head();
            letters.push(letter);
        }
        look.end(letters).await
    }

    /// Reads the queue and keeps the bodies of the messages that match, up to 256 MiB of them.
    pub(super) async fn read_whole(
        connection: Arc<dyn Connection>,
        queue: &str,
        which: &Which,
    ) -> Result<Self> {
        let mut look = Look::begin(connection, queue).await?;
        let (mut letters, mut bytes) = (Vec::new(), 0);
        while bytes < MOST_BYTES
            && let Some(mut letter) = look.next().await?
        {
            if which.fits(&letter) {
                bytes += letter.delivery.message.body.len();
            } else {
                letter.keep_head();
            }
            letters.push(letter);
        }
        look.end(letters).await
    }

    pub(super) fn fitting<'a>(&'a self, which: &'a Which) -> impl Iterator<Item = &'a Letter> {
        self.letters.iter().filter(|letter| which.fits(letter))
    }

    /// Requeues all messages, and waits until the queue has them again.
    pub(super) async fn leave(self, queue: &str) {
        let count = self.letters.len();
        // Closing the connection would requeue them by subscription, in no defined order.
        let _ = give_back(self.letters).await;
        // The broker answers no requeue. Without the wait, the next command could see a queue
        // without them.
        let _ = returned(&*self.connection, queue, count).await;
        self.connection.close().await;
    }

    /// Takes the messages that match and requeues the others.
    pub(super) async fn take(self, which: &Which) -> Result<Vec<Letter>> {
        let (taken, others): (Vec<_>, Vec<_>) =
            self.letters.into_iter().partition(|letter| which.fits(letter));
        give_back(others).await?;
        Ok(taken)
    }

    /// Removes the messages that match and returns their number.
    pub(super) async fn remove(self, which: &Which) -> Result<usize> {
        let connection = self.connection.clone();
        let mut removed = 0;
        for letter in self.take(which).await? {
            removed += usize::from(letter.delivery.ack().await?);
        }
        connection.close().await;
        Ok(removed)
    }
}

/// Requeues messages ahead of the waiting ones, in their order.
async fn give_back(letters: Vec<Letter>) -> Result<()> {
    for letter in letters {
        letter.delivery.requeue().await?;
    }
    Ok(())
}

/// Number of looks at a queue before its messages count as gone. The messages that a killed command
/// looked at return to the queue a moment after its end.
const RETURN_TRIES: u32 = 50;

/// Time between two looks at a queue whose messages have not returned.
const RETURN_WAIT: Duration = Duration::from_millis(20);

/// Stream of the messages of a queue.
struct Look {
    connection: Arc<dyn Connection>,
    depth: usize,
    /// Consumer of the queue; `None` if the queue is empty.
    consumer: Option<Consumer>,
    seen: usize,
}

impl Look {
    async fn begin(connection: Arc<dyn Connection>, queue: &str) -> Result<Self> {
        let depth = returned(&*connection, queue, 1).await?;
        let consumer = if depth > 0 { Some(connection.consume(queue, AHEAD).await?) } else { None };
        Ok(Self { connection, depth, consumer, seen: 0 })
    }

    async fn next(&mut self) -> Result<Option<Letter>> {
        let Some(consumer) =
            self.consumer.as_mut().filter(|_| self.seen < MAX_MESSAGES.min(self.depth))
        else {
            return Ok(None);
        };
        // All deliveries stay unacked until the end. A renewed subscription gets a fresh prefetch
        // window.
        if self.seen > 0 && self.seen.is_multiple_of(AHEAD.into()) {
            consumer.pause().await?;
            consumer.resume().await?;
        }
        let next = timeout(IDLE, consumer.recv()).await.ok().flatten();
        self.seen += usize::from(next.is_some());
        Ok(next.map(Letter::new))
    }

    async fn end(self, letters: Vec<Letter>) -> Result<Letters> {
        if let Some(consumer) = &self.consumer {
            // Otherwise the broker would deliver requeued messages again at once.
            consumer.pause().await?;
        }
        let (depth, seen) = (self.depth, letters.len());
        if depth > seen {
            crate::failure::note(&format!("only the oldest {seen} of {depth} were looked at"));
        }
        Ok(Letters { connection: self.connection, letters })
    }
}

/// Returns the number of messages in a queue once it has at least `count`, or after the last look.
async fn returned(connection: &dyn Connection, queue: &str, count: usize) -> Result<usize> {
    let mut tries = RETURN_TRIES;
    loop {
        let depth = depth(connection, queue).await?;
        tries -= 1;
        if depth >= count || tries == 0 {
            return Ok(depth);
        }
        sleep(RETURN_WAIT).await;
    }
}

/// Returns the number of messages in a queue.
pub(super) async fn depth(connection: &dyn Connection, queue: &str) -> Result<usize> {
    match connection.depth(queue).await {
        Ok(depth) => Ok(usize::try_from(depth.messages).unwrap_or(usize::MAX)),
        Err(Error::NoQueue { .. }) => {
            bail!(
                "the broker has no queue {queue} in this virtual host: check --model and --broker \
                 (NSBRIDGE_BROKER__URL); the model's first worker creates its queues"
            )
        }
        Err(error) => Err(error.into()),
    }
}

/// Message that is held unacked while it is inspected.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) delivery: Delivery,
    /// Size of the body, or its size before it became a dead letter.
    bytes: u64,
}

/// Opened request of a message.
pub(super) struct Asked {
    pub(super) head: RequestHead,
    pub(super) request: Request<Box<RawValue>>,
}

impl Letter {
    fn new(delivery: Delivery) -> Self {
        let had = delivery.message.properties.int(header::BYTES);
        let had = had.and_then(|bytes| u64::try_from(bytes).ok()).or(delivery.oversized);
        let bytes = had.unwrap_or(delivery.message.body.len() as u64);
        Self { delivery, bytes }
    }

    /// Truncates the body after the header.
    fn keep_head(&mut self) {
        let body = &mut self.delivery.message.body;
        body.truncate(HEAD_BYTES);
        body.shrink_to_fit();
    }

    fn head(&self) -> Option<RequestHead> {
        RequestFrame::parse(&self.delivery.message.body).ok().map(|frame| frame.head().clone())
    }

    pub(super) fn id(&self) -> Option<RequestId> {
        self.head().map(|head| head.id)
    }

    /// Returns the request's id, or a description of a message that is no request.
    pub(super) fn name(&self) -> String {
        self.id().map_or_else(|| "a message that is no request".to_owned(), |id| id.to_string())
    }

    /// Returns the reason of the dead letter: the worker's, or the broker's for messages that the
    /// broker moved itself.
    pub(super) fn reason(&self) -> &str {
        let properties = &self.delivery.message.properties;
        properties.text(header::REASON).or(self.delivery.death.as_deref()).unwrap_or("-")
    }

    /// Returns the class of the request by the queue that it came from. It is interactive if the
    /// broker moved the message, because the queue is not known then.
    pub(super) fn priority(&self, model: &ModelName) -> Priority {
        match self.delivery.message.properties.text(header::QUEUE) {
            Some(queue) if queue == bulk_queue(model) => Priority::Bulk,
            _ => Priority::Interactive,
        }
    }

    fn dead_at(&self) -> Option<SystemTime> {
        let told = self.delivery.message.properties.int(header::DEAD_AT);
        // A message that the broker moved has no time of death, so its expiry time stands in for
        // it.
        let moved = self.delivery.death.as_ref().and_then(|_| self.head());
        let over = || i64::try_from(moved?.expires_at_ms).ok();
        let ms = told.or_else(over)?;
        Some(UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).ok()?))
    }

    /// Opens the request with the keys.
    pub(super) async fn open(&self, keys: &dyn KeyProvider) -> Result<Asked> {
        let frame = RequestFrame::parse(&self.delivery.message.body)?;
        let key = keys.open_key(&frame).await?;
        let opened = frame.open(&key)?;
        let request = serde_json::from_slice(&opened.content);
        let request = request.context("what was sealed is no request")?;
        Ok(Asked { head: opened.head, request })
    }

    pub(super) fn json(&self, asked: Option<&Asked>) -> String {
        let head = self.head();
        let properties = &self.delivery.message.properties;
        let mut line = json!({
            "id": head.as_ref().map(|head| head.id),
            "reason": self.reason(),
            "queue": properties.text(header::QUEUE),
            "deliveries": properties.int(header::DELIVERIES),
            "replay_of": properties.text(header::REPLAY_OF),
            "dead_at_ms": properties.int(header::DEAD_AT),
            "key_id": head.as_ref().map(|head| &head.key_id),
            "tenant": head.as_ref().map(|head| &head.tenant),
            "bytes": self.bytes,
        });
        if let (Some(asked), Value::Object(line)) = (asked, &mut line) {
            line.insert("seed".into(), asked.request.seed.into());
            line.insert("input".into(), json!(asked.request.input));
        }
        line.to_string()
    }

    pub(super) fn line(&self, asked: Option<&Asked>) -> String {
        let age = self.dead_at().and_then(|at| SystemTime::now().duration_since(at).ok());
        let age = age.map_or_else(|| "-".to_owned(), |age| Age(age).to_string());
        let deliveries = self.delivery.message.properties.int(header::DELIVERIES);
        let deliveries = match deliveries {
            Some(1) => "1 earlier delivery".to_owned(),
            Some(count) => format!("{count} earlier deliveries"),
            None => "- earlier deliveries".to_owned(),
        };
        let bytes = self.bytes;
        // A forged reason could look like another line of the output.
        let reason = self.reason().replace(char::is_control, "?");
        let name = self.name();
        let line = format!("{age:>5} ago  {name:<36}  {reason}  {deliveries}  {bytes} B");
        match asked {
            Some(asked) => format!("{line}\n      {}", asked.request.input.get()),
            None => line,
        }
    }
}

/// Duration, formatted in its largest unit.
struct Age(Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ 0..120 => f.pad(&format!("{seconds}s")),
            seconds @ 120..7200 => f.pad(&format!("{}m", seconds / 60)),
            seconds @ 7200..172_800 => f.pad(&format!("{}h", seconds / 3600)),
            seconds => f.pad(&format!("{}d", seconds / 86_400)),
        }
    }
}
