//! Well-behaved tenant: requests with a prompt of about 300 tokens, as in a chat, at a steady rate,
//! and with every fourth one a short request with a known reply.

use std::time::Duration;

use anyhow::{Result, ensure};
use nsbridge_client::{Client, Event, Request};
use nsbridge_protocol::{ModelName, Tenant, TextPiece};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::stage::Stage;
use crate::verdict::Verdict;

/// Shortest interval of requests.
const EVERY: Duration = Duration::from_millis(250);

/// Interval of requests as a multiple of the time that one takes on an idle worker. It keeps the
/// tenant's own load at the same part of any machine: near saturation the time to first token grows
/// with the length of the queue, whatever the worker does about attackers.
const IDLE_PART: u32 = 3;

/// Number of requests, one after another, that measure the time of one.
const MEASURED: u32 = 8;

/// Deadline of each request, which must hold under attack too.
const PATIENCE: Duration = Duration::from_secs(30);

const TOKENS: u32 = 10;

/// Number of sentences in a prompt, about 15 tokens each.
const SENTENCES: usize = 20;

/// Interval of requests with a known reply, in requests.
const KNOWN_EVERY: u32 = 4;

pub(crate) struct Neighbor {
    client: Client,
    model: ModelName,
    tenant: Tenant,
    expected: String,
    every: Duration,
}

impl Neighbor {
    /// Connects, submits one request for the reference text that all later replies must equal, and
    /// derives the interval of requests from the median time of one.
    pub(crate) async fn connect(stage: &Stage, tenant: &str) -> Result<Self> {
        let tenant: Tenant = tenant.parse()?;
        let client = stage.client(&tenant).await?;
        let model = stage.model.clone();
        let mut neighbor = Self { client, model, tenant, expected: String::new(), every: EVERY };
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
        println!("the neighbor submits a request every {} ms", neighbor.every.as_millis());
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
                Ok((took, _)) => verdict.first_token(attacked, took),
                Err(error) => {
                    verdict.first_token(attacked, PATIENCE);
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
    fn question(&self, number: u32, phase: &str) -> (Client, Request<serde_json::Value>) {
        let sentence = "クマが海辺に行って、小さな貝をひとつ見つけました。";
        self.ask(&format!("{number}{phase}: {}", sentence.repeat(SENTENCES)))
    }

    fn known(&self) -> (Client, Request<serde_json::Value>) {
        self.ask("クマが海辺に行って")
    }

    fn ask(&self, prompt: &str) -> (Client, Request<serde_json::Value>) {
        let input = json!({
            "prompt": prompt, "max_tokens": TOKENS, "temperature": 0.8, "ignore_eos": true,
        });
        let mut ask = Request::new(self.model.clone(), self.tenant.clone()).input(input);
        ask.seed = Some(7);
        ask.timeout = PATIENCE;
        (self.client.clone(), ask)
    }
}

/// Submits a request; returns the time to first token and the text.
async fn ask((client, ask): (Client, Request<serde_json::Value>)) -> Result<(Duration, String)> {
    let began = Instant::now();
    let mut reply = client.submit::<TextPiece>(ask).await?;
    let (mut first, mut text) = (None, String::new());
    while let Some(event) = reply.next().await {
        match event? {
            Event::Piece(piece) => {
                first.get_or_insert_with(|| began.elapsed());
                text.push_str(&piece.text);
            }
            Event::Restarted { .. } => anyhow::bail!("its reply began anew"),
            _ => {}
        }
    }
    ensure!(!text.is_empty(), "its reply is empty");
    Ok((first.unwrap_or_default(), text))
}
