//! Well-behaved tenant: requests with a prompt of about 300 tokens, as in a chat, at a steady rate,
//! and with every fourth one a short request with a known reply. It uses the broker or a gateway.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nsbridge_chaos::http::send;
use nsbridge_client::{Client, Event, Request};
use nsbridge_protocol::{ModelName, Tenant, TextPiece};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::stage::Stage;
use crate::verdict::Verdict;

/// Shortest interval of requests.
const EVERY: Duration = Duration::from_millis(250);

/// Interval of requests as a multiple of the time that one takes on an idle worker. It keeps the
/// tenant's own load, which comes through two doors, at the same part of any machine: near
/// saturation the time to first token grows with the length of the queue, whatever the worker does
/// about attackers.
const IDLE_PART: u32 = 6;

/// Number of requests, one after another, that measure the time of one.
const MEASURED: u32 = 8;

/// Deadline of each request, which must hold under attack too.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

const TOKENS: u32 = 10;

/// Number of sentences in a prompt, about 15 tokens each.
const SENTENCES: usize = 20;

/// Interval of requests with a known reply, in requests.
const KNOWN_EVERY: u32 = 4;

const SEED: u64 = 7;

/// Way of a request to the worker.
#[derive(Clone)]
pub(crate) enum Door {
    Broker { client: Client, tenant: Tenant },
    Gateway { address: SocketAddr, key: String },
}

impl Door {
    /// Returns the name under which the times are told.
    fn name(&self) -> &'static str {
        match self {
            Self::Broker { .. } => "broker",
            Self::Gateway { .. } => "gateway",
        }
    }
}

pub(crate) struct Neighbor {
    door: Door,
    model: ModelName,
    expected: String,
    every: Duration,
}

impl Neighbor {
    /// Submits one request for the reference text that all later replies must equal, and derives the
    /// interval of requests from the median time of one.
    pub(crate) async fn begin(stage: &Stage, door: Door) -> Result<Self> {
        let model = stage.model.clone();
        let mut neighbor = Self { door, model, expected: String::new(), every: EVERY };
        neighbor.expected = ask(neighbor.known()).await?.1;
        let mut took = Vec::new();
        for number in 0..MEASURED {
            let began = Instant::now();
            ask(neighbor.question(number, "measured")).await?;
            took.push(began.elapsed());
        }
        took.sort();
        let median = took.get(took.len() / 2).copied().unwrap_or_default();
        neighbor.every = EVERY.max(median * IDLE_PART);
        let (door, ms) = (neighbor.door.name(), neighbor.every.as_millis());
        println!("the neighbor at the {door} submits a request every {ms} ms");
        Ok(neighbor)
    }

    /// Submits requests for `time`, without attackers. Prompts of another `phase` share no prefix.
    pub(crate) async fn alone(&self, time: Duration, phase: &str, verdict: &Verdict) -> Result<()> {
        self.ask_until(Instant::now() + time, phase, false, verdict).await
    }

    /// Submits requests under attack.
    pub(crate) async fn beside(&self, until: Instant, verdict: &Verdict) -> Result<()> {
        self.ask_until(until, "attacked", true, verdict).await
    }

    async fn ask_until(
        &self,
        until: Instant,
        phase: &str,
        attacked: bool,
        verdict: &Verdict,
    ) -> Result<()> {
        let (mut asked, mut known) = (JoinSet::new(), JoinSet::new());
        let mut next = Instant::now();
        for number in 0.. {
            if next >= until {
                break;
            }
            sleep_until(next).await;
            next += self.every;
            asked.spawn(ask(self.question(number, phase)));
            if number % KNOWN_EVERY == 0 {
                known.spawn(ask(self.known()));
            }
        }
        while let Some(ended) = asked.join_next().await {
            match ended? {
                Ok((took, _)) => verdict.first_token(self.door.name(), attacked, took),
                Err(error) => {
                    verdict.first_token(self.door.name(), attacked, REQUEST_DEADLINE);
                    verdict.fails(&format!("the neighbor's request failed: {error:#}"));
                }
            }
        }
        while let Some(ended) = known.join_next().await {
            match ended? {
                Ok((_, text)) if text == self.expected => {}
                Ok(_) => verdict.fails("the neighbor's text is another than before the attack"),
                Err(error) => {
                    verdict.fails(&format!("the neighbor's request failed: {error:#}"));
                }
            }
        }
        // Lets the engine finish earlier requests first.
        sleep(self.every).await;
        Ok(())
    }

    /// Returns a request whose prompt shares no prefix with another, so the prefix cache has
    /// nothing of it.
    fn question(&self, number: u32, phase: &str) -> Question {
        let sentence = "クマが海辺に行って、小さな貝をひとつ見つけました。";
        let door = self.door.name();
        self.ask(&format!("{number}{phase}{door}: {}", sentence.repeat(SENTENCES)))
    }

    fn known(&self) -> Question {
        self.ask("クマが海辺に行って")
    }

    fn ask(&self, prompt: &str) -> Question {
        let input = json!({
            "prompt": prompt, "max_tokens": TOKENS, "temperature": 0.8, "ignore_eos": true,
        });
        Question { door: self.door.clone(), model: self.model.clone(), input }
    }
}

struct Question {
    door: Door,
    model: ModelName,
    input: Value,
}

/// Submits a request; returns the time to first token and the text.
async fn ask(question: Question) -> Result<(Duration, String)> {
    let Question { door, model, input } = question;
    let began = Instant::now();
    let (first, text) = match door {
        Door::Broker { client, tenant } => {
            let mut ask = Request::new(model, tenant).input(input);
            ask.seed = Some(SEED);
            ask.timeout = REQUEST_DEADLINE;
            at_broker(&client, ask).await?
        }
        Door::Gateway { address, key } => {
            let answer = at_gateway(address, &key, &model, input);
            timeout(REQUEST_DEADLINE, answer).await.context("its reply is late")??
        }
    };
    ensure!(!text.is_empty(), "its reply is empty");
    Ok((first.unwrap_or(began) - began, text))
}

async fn at_broker(client: &Client, ask: Request<Value>) -> Result<(Option<Instant>, String)> {
    let mut reply = client.submit::<TextPiece>(ask).await?;
    let (mut first, mut text) = (None, String::new());
    while let Some(event) = reply.next().await {
        match event? {
            Event::Piece(piece) => {
                first.get_or_insert_with(Instant::now);
                text.push_str(&piece.text);
            }
            Event::Restarted { .. } => anyhow::bail!("its reply began anew"),
            _ => {}
        }
    }
    Ok((first, text))
}

async fn at_gateway(
    address: SocketAddr,
    key: &str,
    model: &ModelName,
    mut input: Value,
) -> Result<(Option<Instant>, String)> {
    input["model"] = json!(model);
    input["seed"] = json!(SEED);
    input["stream"] = json!(true);
    let key = format!("authorization: Bearer {key}\r\n");
    let mut response = send(address, "POST", "/v1/completions", &key, &input.to_string()).await?;
    ensure!(response.status == 200, "status {}", response.status);
    let (mut first, mut text) = (None, String::new());
    while let Some(event) = response.event().await? {
        if let Some(piece) = event["choices"][0]["text"].as_str() {
            first.get_or_insert_with(Instant::now);
            text.push_str(piece);
        }
    }
    Ok((first, text))
}
