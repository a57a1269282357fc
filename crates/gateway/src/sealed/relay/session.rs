//! Session of a proxy: its commands, and the deliveries of its reply queue.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nsbridge_client::Priority;
use nsbridge_gateway_access::{Caller, Meter};
use nsbridge_protocol::topology::{CONTROL_EXCHANGE, header, request_queue};
use nsbridge_queue::{Confirmation, Connection, Consumer, Delivery, Error, Message, Publisher};
use tokio::time::{Instant, interval};

use super::request::{self, check, check_control, queue};
use crate::sealed::wire::{Answer, Command, MOST_PREFETCH, Report, decode, encode};
use crate::state::{App, Sealed};

/// Interval of pings, and of checks of the API key.
const TICK: Duration = Duration::from_secs(5);

/// Time without a message or a pong after which the proxy is gone.
const SILENCE: Duration = Duration::from_secs(30);

/// Code of a close because of what the proxy sent (RFC 6455, 7.4.1).
const POLICY: u16 = 1008;

/// Code of a close because the gateway or its broker goes away.
const AWAY: u16 = 1001;

/// Answer to a publish, when the broker has confirmed it.
type Confirming = Pin<Box<dyn Future<Output = Confirmed> + Send>>;

/// Number of a command, its answer, and the bytes of its message.
type Confirmed = (u64, Answer, usize);

/// Bytes and number of messages that the broker has not confirmed, from which on a session reads no
/// more.
const MOST_UNCONFIRMED: (usize, usize) = (16 << 20, 512);

/// Maximum number of deliveries that a proxy returns to its queue between two ticks.
const MOST_REQUEUED: u32 = 2 * MOST_PREFETCH as u32;

/// Session of a proxy.
pub(super) struct Session {
    app: Arc<App>,
    caller: Arc<Caller>,
    sealed: Arc<Sealed>,
    connection: Arc<dyn Connection>,
    publisher: Option<Box<dyn Publisher>>,
    consumer: Option<Consumer>,
    unsettled: HashMap<u64, Delivery>,
    confirming: FuturesUnordered<Confirming>,
    next_tag: u64,
    meter: Meter,
    /// Reply queue that the session has declared.
    queue: Option<String>,
    /// Number of deliveries that the proxy has returned since the last tick.
    requeued: u32,
    /// Bytes of messages that the broker has not confirmed.
    unconfirmed: usize,
}

/// Event of a session.
enum Event {
    Received(Option<Result<Frame, axum::Error>>),
    Delivered(Option<Delivery>),
    Confirmed(Confirmed),
    Lost(Error),
    Tick,
    Draining,
}

impl Session {
    pub(super) fn new(
        app: Arc<App>,
        caller: Arc<Caller>,
        sealed: Arc<Sealed>,
        connection: Arc<dyn Connection>,
        meter: Meter,
    ) -> Self {
        Self {
            app,
            caller,
            sealed,
            connection,
            publisher: None,
            consumer: None,
            unsettled: HashMap::new(),
            confirming: FuturesUnordered::new(),
            next_tag: 0,
            meter,
            queue: None,
            requeued: 0,
            unconfirmed: 0,
        }
    }

    /// Serves a proxy until it leaves. Deliveries that it has not acknowledged return to its queue,
    /// which stays for a while.
    pub(super) async fn run(mut self, mut socket: WebSocket) {
        if let Some((code, why)) = self.serve(&mut socket).await {
            let close = CloseFrame { code, reason: why.into() };
            let _ = socket.send(Frame::Close(Some(close))).await;
        }
        self.connection.close().await;
    }

    /// Serves a proxy. Returns the code and the reason of the close, unless the proxy is gone.
    async fn serve(&mut self, socket: &mut WebSocket) -> Option<(u16, &'static str)> {
        let (mut tick, mut heard) = (interval(TICK), Instant::now());
        loop {
            let event = self.next(socket, &mut tick).await;
            if matches!(event, Event::Received(_)) {
                heard = Instant::now();
            }
            let sent = match event {
                Event::Received(Some(Ok(Frame::Binary(message)))) => {
                    let obeyed = self.obey(&message).await;
                    drop(message);
                    self.meter.used(0);
                    match obeyed {
                        Ok(report) => send(socket, report.as_ref(), &[]).await,
                        Err(why) => return Some((POLICY, why)),
                    }
                }
                Event::Received(Some(Ok(Frame::Ping(payload) | Frame::Pong(payload)))) => {
                    self.meter.control(payload.len());
                    true
                }
                Event::Received(Some(Ok(Frame::Text(_)))) => {
                    return Some((POLICY, "a message is text"));
                }
                Event::Received(_) => return None,
                Event::Delivered(delivery) => self.deliver(socket, delivery).await,
                Event::Confirmed((number, answer, bytes)) => {
                    self.unconfirmed -= bytes;
                    self.meter.dropped(bytes);
                    send(socket, Some(&Report::Answered { number, answer }), &[]).await
                }
                Event::Lost(error) => {
                    tracing::warn!(%error, "the relay of a proxy has lost the broker");
                    return Some((AWAY, "the connection to the broker is gone"));
                }
                Event::Tick if heard.elapsed() > SILENCE && self.reads() => return None,
                Event::Tick if self.reads() && self.meter.is_late() => {
                    return Some((POLICY, "a message does not arrive in time"));
                }
                Event::Tick => match self.app.access.holder(&self.caller.id.to_string()) {
                    Ok(holder) => {
                        (self.caller, self.requeued) = (holder, 0);
                        socket.send(Frame::Ping(Bytes::new())).await.is_ok()
                    }
                    Err(_) => return Some((POLICY, "the API key is not valid any more")),
                },
                Event::Draining => return Some((AWAY, "the gateway shuts down")),
            };
            if !sent {
                return None;
            }
        }
    }

    async fn next(&mut self, socket: &mut WebSocket, tick: &mut tokio::time::Interval) -> Event {
        let reads = self.reads();
        let Self { connection, consumer, confirming, app, .. } = self;
        let delivery = async {
            match consumer {
                Some(consumer) => consumer.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = socket.recv(), if reads => Event::Received(received),
            delivery = delivery => Event::Delivered(delivery),
            Some(confirmed) = confirming.next() => Event::Confirmed(confirmed),
            error = connection.lost() => Event::Lost(error),
            _ = tick.tick() => Event::Tick,
            () = app.draining.cancelled() => Event::Draining,
        }
    }

    /// Returns true if the broker has confirmed enough to read the next message.
    fn reads(&self) -> bool {
        self.unconfirmed < MOST_UNCONFIRMED.0 && self.confirming.len() < MOST_UNCONFIRMED.1
    }

    /// Waits for a confirm beside other work. The message stays in memory until then.
    fn confirm(
        &mut self,
        bytes: usize,
        confirmed: impl Future<Output = (u64, Answer)> + Send + 'static,
    ) {
        self.unconfirmed += bytes;
        self.meter.used(bytes);
        self.confirming.push(Box::pin(async move {
            let (number, answer) = confirmed.await;
            (number, answer, bytes)
        }));
    }

    /// Obeys a command, and returns its answer if there is one at once.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the session ends.
    async fn obey(&mut self, message: &[u8]) -> Result<Option<Report>, &'static str> {
        let (command, body) = decode::<Command>(message).ok_or("a message cannot be read")?;
        Ok(match command {
            Command::Declare { number, client } => {
                let queue = queue(&self.caller, &client).ok_or("the client has no valid number")?;
                if self.queue.get_or_insert_with(|| queue.clone()) != &queue {
                    return Err("a session declares one reply queue");
                }
                let answer = match self.connection.declare_reply_queue(&queue).await {
                    Ok(()) => Answer::Done,
                    Err(error) => answer_of(&error),
                };
                Some(Report::Answered { number, answer })
            }
            Command::Consume { number, client, prefetch } => {
                let queue = queue(&self.caller, &client).ok_or("the client has no valid number")?;
                self.unsettled.clear();
                let prefetch = prefetch.clamp(1, MOST_PREFETCH);
                let answer = match self.connection.consume(&queue, prefetch).await {
                    Ok(consumer) => {
                        self.consumer = Some(consumer);
                        Answer::Done
                    }
                    Err(error) => {
                        // The client chooses another queue.
                        self.queue.take_if(|_| matches!(error, Error::NodeDown { .. }));
                        answer_of(&error)
                    }
                };
                Some(Report::Answered { number, answer })
            }
            Command::Request { number, client, bulk, epoch, trace } => {
                let queue = queue(&self.caller, &client).ok_or("the client has no valid number")?;
                let answer = self.request(number, body, queue, bulk, epoch, trace).await;
                answer.err().map(|answer| Report::Answered { number, answer })
            }
            Command::Control { number, key, before } => {
                let answer = self.control(number, body, &key, before).await;
                answer.err().map(|answer| Report::Answered { number, answer })
            }
            Command::Ack { tag } => {
                if let Some(delivery) = self.unsettled.remove(&tag) {
                    // A delivery that the broker has taken back comes again.
                    let _ = delivery.ack().await;
                }
                None
            }
            Command::Requeue { tag } => {
                self.requeued += u32::from(self.unsettled.remove(&tag).is_some());
                if self.requeued > MOST_REQUEUED {
                    return Err("too many deliveries return to their queue");
                }
                None
            }
        })
    }

    /// Publishes a request. The answer comes with the broker's confirm.
    async fn request(
        &mut self,
        number: u64,
        frame: &[u8],
        reply_to: String,
        bulk: bool,
        epoch: u16,
        trace: crate::sealed::wire::Trace,
    ) -> Result<(), Answer> {
        let checked = check(frame, &self.caller, &self.app.models)?;
        let (head, caller) = (checked.head, self.caller.clone());
        let (app, sealed) = (self.app.clone(), self.sealed.clone());
        let opened = sealed.accounts.open(&caller, &head, frame, checked.reply, &app.metrics);
        let is_new = opened.map_err(|error| match error.status().as_u16() {
            429 => Answer::Refused,
            _ => Answer::Rejected { reason: error.message().to_owned() },
        })?;
        let priority = if bulk { Priority::Bulk } else { caller.priority };
        let queue = request_queue(&head.model, priority);
        let message = request::message(frame, &head, &reply_to, epoch, trace);
        let (id, name) = (head.id, blake3::hash(frame));
        let confirmed = self.publish("", &queue, message).await;
        self.confirm(frame.len(), async move {
            let answer = confirmed.await;
            if is_new && matches!(answer, Answer::Returned | Answer::Refused) {
                sealed.accounts.refuse(&caller, id, name);
            }
            (number, answer)
        });
        Ok(())
    }

    async fn control(
        &mut self,
        number: u64,
        bytes: &[u8],
        key: &str,
        before: Option<nsbridge_protocol::TraceParent>,
    ) -> Result<(), Answer> {
        let frame = check_control(bytes, key, &self.caller, &self.app.models)?;
        self.sealed.accounts.controlled(&self.caller, &frame);
        let message = request::control(&frame, bytes, before);
        let confirmed = self.publish(CONTROL_EXCHANGE, key, message).await;
        self.confirm(bytes.len(), async move { (number, confirmed.await) });
        Ok(())
    }

    /// Publishes a message. Returns the future of the broker's confirm.
    async fn publish(
        &mut self,
        exchange: &str,
        key: &str,
        message: Message,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let confirm = async {
            let publisher = match self.publisher.take() {
                Some(publisher) if !publisher.is_stale() => publisher,
                _ => self.connection.publisher().await?,
            };
            let confirm = publisher.publish(exchange, key, message).await?;
            self.publisher = Some(publisher);
            Ok::<_, Error>(confirm)
        };
        let confirm = confirm.await;
        async move {
            let confirmed = match confirm {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            match confirmed {
                Ok(Confirmation::Ack) => Answer::Taken,
                Ok(Confirmation::Returned) => Answer::Returned,
                Ok(Confirmation::Nack) => Answer::Refused,
                Err(error) => answer_of(&error),
            }
        }
    }

    /// Passes a delivery on; the end of the subscription if there is none. Returns false if the proxy
    /// is gone.
    async fn deliver(&mut self, socket: &mut WebSocket, delivery: Option<Delivery>) -> bool {
        let Some(mut delivery) = delivery else {
            self.consumer = None;
            self.unsettled.clear();
            return send(socket, Some(&Report::Ended), &[]).await;
        };
        let Message { body, properties } = &delivery.message;
        if !delivery.redelivered {
            self.sealed.accounts.replied(&self.caller, body, &self.app.metrics);
        }
        let span = properties.text(header::TRACE_PARENT).and_then(|span| span.parse().ok());
        let tag = self.next_tag;
        self.next_tag += 1;
        let (redelivered, reply_to) = (delivery.redelivered, properties.reply_to.clone());
        let report = Report::Delivered { tag, redelivered, reply_to, span };
        let sent = send(socket, Some(&report), body).await;
        // The broker has it until it is acknowledged.
        delivery.message.body = Vec::new();
        self.unsettled.insert(tag, delivery);
        sent
    }
}

/// Sends a report, if there is one. Returns false if the proxy is gone.
async fn send(socket: &mut WebSocket, report: Option<&Report>, body: &[u8]) -> bool {
    match report {
        None => true,
        Some(report) => socket.send(Frame::Binary(encode(report, body).into())).await.is_ok(),
    }
}

fn answer_of(error: &Error) -> Answer {
    match error {
        Error::NoQueue { .. } => Answer::NoQueue,
        Error::NodeDown { .. } => Answer::NodeDown,
        _ => Answer::Lost,
    }
}
