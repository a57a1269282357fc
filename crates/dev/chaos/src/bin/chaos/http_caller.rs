//! Caller of `/v1/responses`: reads the events of a stream, comes back when the stream is cut, and
//! records the pieces in the journal.
//!
//! It checks what the journal does not hold: the numbers of the events, and that events which are
//! read again equal those that were read before.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nsbridge_chaos::http::{Response, send};
use nsbridge_protocol::Uuid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::gate::Gate;
use crate::journal::{Journal, What};
use crate::plan::{Ask, Reading};

/// Pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Addresses of the gateways that take requests now, as a balancer has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balanced(Arc<Mutex<Vec<SocketAddr>>>);

impl Balanced {
    pub(crate) fn set(&self, addresses: Vec<SocketAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Returns the gateway of a try.
    pub(crate) fn pick(&self, turn: usize) -> Option<SocketAddr> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(turn % addresses.len().max(1)).copied()
    }
}

/// Behavior of a caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    /// Sends the request again after a cut, as the official clients do, instead of reading the reply
    /// by its id.
    pub(crate) retries: bool,
    pub(crate) background: bool,
    /// Moments at which the caller leaves by itself, in their order.
    pub(crate) leaves: VecDeque<Leave>,
}

/// Moment at which a caller leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leave {
    /// Number of events that the caller has then.
    pub(crate) at: usize,
    /// Number of the last events that it reads again when it comes back.
    pub(crate) again: usize,
}

/// Caller of one request.
pub(crate) struct HttpCaller {
    pub(crate) journal: Arc<Journal>,
    pub(crate) balanced: Balanced,
    pub(crate) ask: Ask,
    pub(crate) manner: Manner,
    pub(crate) gate: Gate,
    pub(crate) known: Known,
}

/// Part of a reply that the caller has.
#[derive(Debug, Default)]
pub(crate) struct Known {
    id: Option<String>,
    events: Vec<Value>,
    /// Text that makes no whole piece yet.
    rest: String,
    text: String,
    pieces: usize,
    /// Number of events that are read again.
    again: usize,
    over: bool,
}

impl HttpCaller {
    /// Reads the whole reply. A violation is recorded as an error of the round.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.read_all().await {
            let why = format!("the caller of request {}: {error:#}", self.ask.order.n);
            let _ = self.journal.note(What::Broken { why });
            let (n, request) = (self.ask.order.n, self.request());
            let (code, message) = ("violation".to_owned(), String::new());
            let _ = self.journal.note(What::Failed { n, request, code, message });
        }
    }

    async fn read_all(&mut self) -> Result<()> {
        sleep(Duration::from_millis(self.ask.after_ms)).await;
        let until = Instant::now() + Duration::from_millis(self.ask.timeout_ms);
        for turn in 0.. {
            ensure!(Instant::now() < until, "the reply was not complete in time");
            // A cut, or a gateway that is away: the caller comes back.
            let Some(address) = self.balanced.pick(self.ask.order.n + turn) else {
                sleep(RETRY_PAUSE).await;
                continue;
            };
            let Ok((mut response, next)) = self.open(address, turn).await else {
                sleep(RETRY_PAUSE).await;
                continue;
            };
            if self.ask.reading == Reading::AfterGate {
                self.gate.opened().await;
            }
            match response.status {
                200 => self.follow(&mut response, next).await?,
                503 => {}
                status => bail!("status {status}: {}", response.whole().await.unwrap_or_default()),
            }
            if self.known.over {
                return Ok(());
            }
            sleep(RETRY_PAUSE).await;
        }
        Ok(())
    }

    /// Asks for the stream; returns the response and the number of its first event.
    async fn open(&self, address: SocketAddr, turn: usize) -> Result<(Response, usize)> {
        let known = self.known.events.len();
        match &self.known.id {
            Some(id) if !self.manner.retries && known > 0 => {
                let next = known - self.known.again.min(known - 1);
                let path = format!("/v1/responses/{id}?stream=true&starting_after={}", next - 1);
                Ok((send(address, "GET", &path, "", "").await?, next))
            }
            _ => {
                let body = json!({
                    "model": "chaos", "input": serde_json::to_string(&self.ask.order)?,
                    "stream": true, "background": self.manner.background
                });
                let retry = format!("x-stainless-retry-count: {}\r\n", turn.min(9));
                let body = body.to_string();
                Ok((send(address, "POST", "/v1/responses", &retry, &body).await?, 0))
            }
        }
    }

    /// Reads events until the stream is cut or ends, or until the caller leaves.
    async fn follow(&mut self, response: &mut Response, mut next: usize) -> Result<()> {
        loop {
            let event = match response.event().await {
                Ok(Some(event)) => event,
                Ok(None) => bail!("a stream ended in order without its last event"),
                Err(_) => return Ok(()),
            };
            let number = event["sequence_number"].as_u64().context("an event has no number")?;
            ensure!(number == next as u64, "event {number} came in place of {next}");
            next += 1;
            match self.known.events.get(number as usize) {
                Some(known) => ensure!(*known == event, "event {number} differs when read again"),
                None => self.take(event)?,
            }
            if self.known.over {
                ensure!(response.event().await?.is_none(), "an event follows the last one");
                return Ok(());
            }
            let leave = self.manner.leaves.front().copied();
            if let Some(leave) = leave.filter(|leave| self.known.events.len() >= leave.at) {
                self.manner.leaves.pop_front();
                self.known.again = leave.again;
                return Ok(());
            }
        }
    }

    /// Takes an event that is new.
    fn take(&mut self, event: Value) -> Result<()> {
        let n = self.ask.order.n;
        match event["type"].as_str().unwrap_or_default() {
            "response.created" => {
                let id = event["response"]["id"].as_str().context("the response has no id")?;
                self.known.id = Some(id.to_owned());
                self.journal.note(What::Asked { n, request: self.request() })?;
            }
            "response.output_text.delta" => {
                let delta = event["delta"].as_str().context("a delta has no text")?;
                self.known.text.push_str(delta);
                self.known.rest.push_str(delta);
                while let Some(end) = self.known.rest.find(' ') {
                    let text: String = self.known.rest.drain(..=end).collect();
                    let (index, request) = (self.known.pieces, self.request());
                    self.known.pieces += 1;
                    let (choice, finish_reason) = (0, None);
                    let piece = What::Piece { n, request, index, text, choice, finish_reason };
                    self.journal.note(piece)?;
                }
            }
            "response.completed" => {
                let output = &event["response"]["output"][0]["content"][0]["text"];
                ensure!(output == self.known.text.as_str(), "the response has another text");
                self.known.over = true;
                self.journal.note(What::Done { n, request: self.request() })?;
            }
            "response.failed" | "response.incomplete" => bail!("the reply failed: {event}"),
            _ => {}
        }
        self.known.events.push(event);
        Ok(())
    }

    /// Returns the id of the request; empty if it is not known.
    fn request(&self) -> String {
        let id = self.known.id.as_deref().and_then(|id| id.strip_prefix("resp_"));
        let id = id.and_then(|id| Uuid::parse_str(id).ok());
        id.map_or_else(String::new, |id| id.to_string())
    }
}
