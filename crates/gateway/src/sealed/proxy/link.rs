//! Connection of a proxy to its gateway, with the semantics of one to a broker.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use futures_util::{SinkExt, StreamExt};
use nsbridge_protocol::topology::{CONTROL_EXCHANGE, REPLY_QUEUE_PREFIX, header};
use nsbridge_protocol::{ModelName, Revision};
use nsbridge_queue::{
    Confirm, Confirmation, Connection, Consumer, Delivery, Depth, Error, Header, Message,
    Properties, Publisher, Result, Settle, Subscription,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message as Frame;

use super::Socket;
use crate::sealed::wire::{Answer, Command, MOST_PREFETCH, Report, Trace, decode, encode};

/// Number of messages that wait to be sent.
const OUTGOING: usize = 64;

/// Time without a message or a ping after which the gateway is gone.
const SILENCE: Duration = Duration::from_secs(30);

/// End of the names of the queues of bulk requests. No model has a name with it.
const BULK: &str = ".bulk";

/// Connection that ends with its last handle.
pub(super) struct Link {
    address: String,
    outgoing: mpsc::Sender<Vec<u8>>,
    answers: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    next: AtomicU64,
    /// Receiver of deliveries.
    deliveries: Mutex<Option<mpsc::Sender<Delivery>>>,
    /// Reason for the end of the connection; `None` while it lives.
    ended: watch::Sender<Option<String>>,
}

impl Link {
    /// Begins to read and to write a socket.
    pub(super) fn start(address: String, socket: Socket) -> Arc<dyn Connection> {
        let (outgoing, waiting) = mpsc::channel(OUTGOING);
        let link = Arc::new(Self {
            address,
            outgoing,
            answers: Mutex::default(),
            next: AtomicU64::new(0),
            deliveries: Mutex::default(),
            ended: watch::Sender::new(None),
        });
        tokio::spawn(serve(Arc::downgrade(&link), link.ended.subscribe(), socket, waiting));
        Arc::new(Handle(link))
    }

    fn end(&self, reason: &str) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| reason.to_owned());
            first
        });
        self.answers.lock().clear();
        self.deliveries.lock().take();
    }

    fn lost(&self) -> Error {
        let reason = self.ended.borrow().clone();
        Error::Lost { reason: reason.unwrap_or_else(|| "it did not answer".to_owned()) }
    }

    /// Sends a command. Returns the receiver of its answer.
    async fn ask(
        &self,
        command: impl FnOnce(u64) -> Command,
        body: &[u8],
    ) -> Result<oneshot::Receiver<Answer>> {
        let (sender, answer) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.answers.lock().insert(number, sender);
        let sent = self.outgoing.send(encode(&command(number), body)).await;
        if sent.is_err() || self.ended.borrow().is_some() {
            self.answers.lock().remove(&number);
            return Err(self.lost());
        }
        Ok(answer)
    }

    fn unserved(&self, what: &str) -> Error {
        let reason = format!("a proxy does not {what}");
        Error::Gateway { address: self.address.clone(), reason }
    }

    /// Reads a message of the gateway. Returns false if it is none.
    fn read(self: &Arc<Self>, message: &[u8]) -> bool {
        let Some((report, body)) = decode::<Report>(message) else { return false };
        match report {
            Report::Answered { number, answer } => {
                if let Some(sender) = self.answers.lock().remove(&number) {
                    let _ = sender.send(answer);
                }
            }
            Report::Ended => drop(self.deliveries.lock().take()),
            Report::Delivered { tag, redelivered, reply_to, span } => {
                let mut properties = Properties { reply_to, ..Properties::default() };
                if let Some(span) = span {
                    let span = Header::Text(span.to_string());
                    properties.headers.insert(header::TRACE_PARENT.to_owned(), span);
                }
                let message = Message { properties, ..Message::new(body.to_vec()) };
                let tag = Tag { link: Arc::downgrade(self), tag };
                let delivery = Delivery::new(message, redelivered, 1, Box::new(tag));
                let sender = self.deliveries.lock().clone();
                // A channel has room for as many deliveries as the gateway sends without an ack.
                if let Some(sender) = sender {
                    let _ = sender.try_send(delivery);
                }
            }
        }
        true
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Reads and writes a socket until the connection ends, or until no handle of it is left.
async fn serve(
    link: Weak<Link>,
    mut ended: watch::Receiver<Option<String>>,
    socket: Socket,
    mut waiting: mpsc::Receiver<Vec<u8>>,
) {
    let (mut write, mut read) = socket.split();
    let writer = tokio::spawn(async move {
        while let Some(message) = waiting.recv().await {
            if write.send(Frame::Binary(Bytes::from(message))).await.is_err() {
                break;
            }
        }
        let _ = write.close().await;
    });
    let reason = loop {
        let message = tokio::select! {
            message = timeout(SILENCE, read.next()) => message,
            // An error means that no handle is left.
            _ = ended.wait_for(Option::is_some) => break "it was closed".to_owned(),
        };
        let Some(link) = link.upgrade() else { break "it was dropped".to_owned() };
        match message {
            Ok(Some(Ok(Frame::Binary(message)))) => {
                if !link.read(&message) {
                    break "the gateway is of another version".to_owned();
                }
            }
            Ok(Some(Ok(Frame::Close(Some(close))))) => break close.reason.to_string(),
            Ok(Some(Ok(Frame::Close(None))) | None) => break "the gateway closed it".to_owned(),
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => break error.to_string(),
            Err(_) => break "the gateway is silent".to_owned(),
        }
    };
    if let Some(link) = link.upgrade() {
        link.end(&reason);
    }
    writer.abort();
}

/// Handle of a connection for its users.
#[derive(Debug)]
struct Handle(Arc<Link>);

impl Handle {
    /// Sends a command about the reply queue of a client, and waits for its answer.
    async fn about(&self, queue: &str, command: impl FnOnce(u64, String) -> Command) -> Result<()> {
        let client = queue.strip_prefix(REPLY_QUEUE_PREFIX);
        let client = client.ok_or_else(|| self.0.unserved("read other queues"))?.to_owned();
        let answer = self.0.ask(|number| command(number, client), &[]).await?;
        match answer.await {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::NoQueue) => Err(Error::NoQueue { queue: queue.to_owned() }),
            Ok(Answer::NodeDown) => Err(Error::NodeDown { queue: queue.to_owned() }),
            Ok(Answer::Rejected { reason }) => {
                Err(Error::Gateway { address: self.0.address.clone(), reason })
            }
            Ok(_) | Err(_) => Err(self.0.lost()),
        }
    }
}

#[async_trait]
impl Connection for Handle {
    async fn declare_model(&self, _model: &ModelName) -> Result<()> {
        Err(self.0.unserved("declare models"))
    }

    async fn declare_reply_queue(&self, queue: &str) -> Result<()> {
        self.about(queue, |number, client| Command::Declare { number, client }).await
    }

    async fn declare_control_queue(
        &self,
        _queue: &str,
        _model: &ModelName,
        _revision: Option<&Revision>,
    ) -> Result<()> {
        Err(self.0.unserved("serve models"))
    }

    async fn lock(&self, _name: &str) -> Result<bool> {
        Err(self.0.unserved("take locks"))
    }

    async fn declare_run_record(&self, _queue: &str) -> Result<u32> {
        Err(self.0.unserved("serve models"))
    }

    async fn strike_run_record(&self, _queue: &str) -> Result<()> {
        Err(self.0.unserved("serve models"))
    }

    async fn delete_run_record(&self, _queue: &str) -> Result<()> {
        Err(self.0.unserved("serve models"))
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer> {
        let prefetch = prefetch.clamp(1, MOST_PREFETCH);
        let (sender, deliveries) = mpsc::channel(usize::from(prefetch));
        // Deliveries may come before the answer does.
        *self.0.deliveries.lock() = Some(sender);
        self.about(queue, |number, client| Command::Consume { number, client, prefetch }).await?;
        Ok(Consumer::new(deliveries, Subscribed(self.0.clone())))
    }

    async fn consume_paused(&self, _queue: &str, _prefetch: u16) -> Result<Consumer> {
        Err(self.0.unserved("serve models"))
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        if self.0.ended.borrow().is_some() {
            return Err(self.0.lost());
        }
        Ok(Box::new(GatewayPublisher(self.0.clone())))
    }

    async fn depth(&self, _queue: &str) -> Result<Depth> {
        Err(self.0.unserved("see queues"))
    }

    fn is_blocked(&self) -> bool {
        false
    }

    async fn lost(&self) -> Error {
        // The sender lives as long as this handle.
        let _ = self.0.ended.subscribe().wait_for(Option::is_some).await;
        self.0.lost()
    }

    async fn close(&self) {
        self.0.end("it was closed");
    }
}

/// Publisher of requests and control frames.
#[derive(Debug)]
struct GatewayPublisher(Arc<Link>);

#[async_trait]
impl Publisher for GatewayPublisher {
    async fn publish(&self, exchange: &str, key: &str, message: Message) -> Result<Confirm> {
        let link = self.0.clone();
        let Message { body, properties } = message;
        let span = |name| properties.text(name).and_then(|span| span.parse().ok());
        let before = span(header::TRACE_BEFORE);
        let answer = if exchange == CONTROL_EXCHANGE {
            let key = key.to_owned();
            link.ask(|number| Command::Control { number, key, before }, &body).await?
        } else {
            let to =
                properties.reply_to.as_deref().and_then(|to| to.strip_prefix(REPLY_QUEUE_PREFIX));
            let client = to.filter(|_| exchange.is_empty());
            let client = client.ok_or_else(|| link.unserved("publish replies"))?.to_owned();
            let bulk = key.ends_with(BULK);
            let epoch = properties.int(header::EPOCH).unwrap_or_default();
            let epoch = u16::try_from(epoch).unwrap_or_default();
            let trace = Trace { parent: span(header::TRACE_PARENT), before };
            link.ask(|number| Command::Request { number, client, bulk, epoch, trace }, &body)
                .await?
        };
        Ok(Box::pin(async move {
            match answer.await {
                Ok(Answer::Taken) => Ok(Confirmation::Ack),
                Ok(Answer::Returned) => Ok(Confirmation::Returned),
                Ok(Answer::Refused) => Ok(Confirmation::Nack),
                Ok(Answer::Rejected { reason }) => {
                    Err(Error::Gateway { address: link.address.clone(), reason })
                }
                Ok(Answer::Done | Answer::NoQueue | Answer::NodeDown | Answer::Lost) | Err(_) => {
                    Err(link.lost())
                }
            }
        }))
    }
}

/// Settlement of one delivery.
struct Tag {
    link: Weak<Link>,
    tag: u64,
}

#[async_trait]
impl Settle for Tag {
    async fn ack(self: Box<Self>) -> Result<bool> {
        let gone = || Error::Lost { reason: "it was dropped".to_owned() };
        let link = self.link.upgrade().ok_or_else(gone)?;
        let sent = link.outgoing.send(encode(&Command::Ack { tag: self.tag }, &[])).await;
        sent.map(|()| true).map_err(|_| link.lost())
    }

    async fn requeue(self: Box<Self>) -> Result<bool> {
        let gone = || Error::Lost { reason: "it was dropped".to_owned() };
        let link = self.link.upgrade().ok_or_else(gone)?;
        let sent = link.outgoing.send(encode(&Command::Requeue { tag: self.tag }, &[])).await;
        sent.map(|()| true).map_err(|_| link.lost())
    }

    fn requeue_later(self: Box<Self>) {
        // A full channel leaves the delivery with the gateway, until this connection ends.
        if let Some(link) = self.link.upgrade() {
            let _ = link.outgoing.try_send(encode(&Command::Requeue { tag: self.tag }, &[]));
        }
    }
}

/// Subscription to the reply queue.
#[derive(Debug)]
struct Subscribed(Arc<Link>);

#[async_trait]
impl Subscription for Subscribed {
    async fn pause(&self) -> Result<()> {
        Err(self.0.unserved("pause"))
    }

    async fn resume(&self, _prefetch: u16) -> Result<()> {
        Err(self.0.unserved("resume"))
    }
}
