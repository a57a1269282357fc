//! Holder of API keys, and clients without one, that attack a gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use nsbridge_crypto::RequestHead;
use nsbridge_gateway::GatewayBroker;
use nsbridge_gateway::access::{ApiKey, Entry, Limits};
use nsbridge_protocol::topology::{CONTROL_EXCHANGE, model_queue, reply_queue};
use nsbridge_protocol::{RequestId, Tenant, Uuid};
use nsbridge_queue::{Broker, Confirmation, Message};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::process::Process;
use crate::random::Random;
use crate::stage::Stage;
use crate::verdict::Verdict;

/// Maximum number of attacks under way.
const MAX_CONCURRENT_ATTACKS: usize = 2;

/// Number of keys of the attacker, all of one tenant.
const KEYS: usize = 5;

/// Size of a large body, in bytes: as large as a gateway takes.
const LARGE_BODY_BYTES: usize = 8_300_000;

/// Time for which an attack holds its connections.
const HOLD: Duration = Duration::from_secs(5);

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of the attacker's addresses. The well-behaved tenant has another one.
const ADDRESSES: usize = 3;

/// Maximum number of copies of a request that a gateway passes on.
const COPIES: usize = 4;

/// Path of a request, and its fields before and after many values.
const VALUES: &[(&str, &str, &str)] = &[
    ("/v1/responses", r#""input":"a","stream":true,"metadata":{"a":["#, "]}"),
    ("/v1/responses", r#""input":["#, "]"),
    ("/v1/responses", r#""input":"a","tools":["#, "]"),
    ("/v1/responses", r#""input":"a","text":{"format":["#, "]}"),
    ("/v1/chat/completions", r#""messages":["#, "]"),
    ("/v1/chat/completions", r#""messages":[{"role":"user","content":["#, "]}]"),
    ("/v1/chat/completions", r#""messages":[],"logit_bias":{"a":["#, "]}"),
    ("/v1/completions", r#""prompt":["#, "]"),
    ("/v1/completions", r#""prompt":"a","unknown":["#, "]"),
    ("/v1/completions", r#""prompt":"a","stop":["#, "]"),
    ("/v1/messages", r#""max_tokens":1,"messages":["#, "]"),
    ("/v1/messages", r#""max_tokens":1,"system":["#, "]"),
    ("/v1/embeddings", r#""input":["#, "]"),
    ("/v1/moderations", r#""input":["#, "]"),
    ("/v1/batches", r#""metadata":["#, "]"),
    ("/tokenize", r#""messages":["#, "]"),
    ("/detokenize", r#""tokens":["#, "]"),
];

/// Gateway under attack, and the keys of its callers.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// Key of the well-behaved tenant.
    pub(crate) neighbor: String,
    keys: Vec<String>,
    /// Key with limits.
    limited: String,
    tenant: Tenant,
    /// Number of connections so far.
    connected: AtomicUsize,
}

impl Target {
    /// Starts a gateway with the keys of an attacker and of the well-behaved tenant.
    pub(crate) async fn start(stage: &Stage) -> Result<(Process, Self)> {
        let tenant: Tenant = "mallory".parse()?;
        let keys = (0..KEYS + 2).map(|_| ApiKey::generate()).collect::<Result<Vec<_>, _>>()?;
        let mut entries: Vec<Entry> =
            keys.iter().map(|key| Entry::new(key, tenant.clone())).collect();
        entries[0] = Entry::new(&keys[0], "well-behaved".parse()?);
        entries[1].limits = Limits {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(3000),
            concurrent: Some(2),
        };
        let (process, address) = stage.gateway(&entries).await?;
        let mut keys = keys.iter().map(|key| key.reveal().to_string());
        let mut next = || keys.next().context("there are too few keys");
        let (neighbor, limited) = (next()?, next()?);
        let (keys, connected) = (keys.collect(), AtomicUsize::new(0));
        Ok((process, Self { address, neighbor, keys, limited, tenant, connected }))
    }

    /// Returns the head of a request.
    fn head(&self, path: &str, key: &str, lines: &str) -> String {
        let host = self.address;
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\n{lines}\r\n"
        )
    }

    /// Sends a request and returns the status of the answer.
    async fn post(&self, path: &str, key: &str, body: &[u8]) -> Result<String> {
        let lines = format!("connection: close\r\ncontent-length: {}\r\n", body.len());
        let mut stream = self.connect().await?;
        stream.write_all(self.head(path, key, &lines).as_bytes()).await?;
        // A refusal may come before the whole body is there.
        let _ = stream.write_all(body).await;
        status(&mut stream).await
    }

    /// Opens a session of sealed frames.
    async fn session(&self, key: &str) -> Result<TcpStream> {
        let mut stream = self.connect().await?;
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let head = self.head("/v1/sealed", key, upgrade).replacen("POST", "GET", 1);
        stream.write_all(head.as_bytes()).await?;
        Ok(stream)
    }

    /// Opens a connection from one of the attacker's addresses.
    async fn connect(&self) -> Result<TcpStream> {
        let number = self.connected.fetch_add(1, Ordering::Relaxed) % ADDRESSES;
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 2 + number as u8], 0)))?;
        Ok(socket.connect(self.address).await?)
    }
}

/// Reads the status of an answer; `cut` if the connection ends before it.
async fn status(stream: &mut TcpStream) -> Result<String> {
    let mut line = [0; 12];
    match timeout(ANSWER_TIMEOUT, stream.read_exact(&mut line)).await {
        Ok(Ok(_)) => Ok(String::from_utf8_lossy(&line[9..]).into_owned()),
        Ok(Err(_)) => Ok("cut".to_owned()),
        Err(_) => Ok("no answer".to_owned()),
    }
}

/// Attack on a gateway.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Attack {
    /// Body with a field of millions of values.
    Values,
    /// Eight such bodies at the same time.
    ManyValues,
    /// Large bodies of which one byte arrives.
    BodiesThatDoNotArrive,
    /// WebSocket messages of 8 MB that do not end.
    MessagesWithoutEnd,
    /// Sessions of sealed frames, which do nothing.
    Sessions,
    /// Connections without a key and without a request.
    SilentConnections,
    /// Replies in the background, with large requests.
    StoredReplies,
    /// Copies of a sealed request under one id, and forged cancels.
    Copies,
    /// Streams whose client does not read.
    UnreadStreams,
}

/// Attacks a gateway until the time is over, in these ways or in all.
pub(crate) async fn attack(
    stage: Arc<Stage>,
    target: Arc<Target>,
    ways: Vec<Attack>,
    mut random: Random,
    until: Instant,
    verdict: Arc<Verdict>,
) -> Result<()> {
    let mut running = JoinSet::new();
    // Each attack comes once in order, then attacks are drawn at random.
    let ways = if ways.is_empty() { Attack::value_variants().to_vec() } else { ways };
    let mut order: Vec<Attack> = ways.iter().rev().copied().collect();
    while Instant::now() < until {
        while running.len() >= MAX_CONCURRENT_ATTACKS {
            running.join_next().await.transpose().context("an attack panicked")?;
        }
        let attack = order.pop().unwrap_or_else(|| random.of(&ways));
        let one = One {
            stage: stage.clone(),
            target: target.clone(),
            random: Random::new(random.next()),
            verdict: verdict.clone(),
        };
        running.spawn(one.run(attack));
    }
    while let Some(ended) = running.join_next().await {
        ended.context("an attack panicked")?;
    }
    Ok(())
}

/// One attack.
struct One {
    stage: Arc<Stage>,
    target: Arc<Target>,
    random: Random,
    verdict: Arc<Verdict>,
}

impl One {
    async fn run(mut self, attack: Attack) {
        let began = Instant::now();
        let name = format!("gateway: {attack:?}");
        let ends = match attack {
            Attack::Values => self.values(1).await,
            Attack::ManyValues => self.values(8).await,
            Attack::BodiesThatDoNotArrive => self.bodies_that_do_not_arrive().await,
            Attack::MessagesWithoutEnd => self.messages_without_end().await,
            Attack::Sessions => self.sessions().await,
            Attack::SilentConnections => self.silent_connections().await,
            Attack::StoredReplies => self.stored_replies().await,
            Attack::Copies => self.copies().await,
            Attack::UnreadStreams => self.unread_streams().await,
        };
        // A connection that is refused is an end like others: the well-behaved tenant tells whether the
        // gateway serves.
        for end in ends.unwrap_or_else(|error| vec![format!("{:#}", error.root_cause())]) {
            if matches!(&*end, "500" | "no answer") {
                self.verdict.fails(&format!("`{name}` ended as {end}"));
            }
            self.verdict.made(&name, &end, began.elapsed());
        }
    }

    fn key(&mut self) -> String {
        let index = self.random.below(KEYS);
        self.target.keys[index].clone()
    }

    /// Sends requests with a field of many values, at the same time.
    async fn values(&mut self, count: usize) -> Result<Vec<String>> {
        let mut asked = JoinSet::new();
        for _ in 0..count {
            let item =
                self.random.of(&[r#"{"":0},"#, "0,", "[],", r#""","#, "null,", r#"{"a":[]},"#]);
            let (path, begin, end) = self.random.of(VALUES);
            let begin = format!(r#"{{"model":"{}",{begin}"#, self.stage.model);
            let times = (LARGE_BODY_BYTES - begin.len()) / item.len();
            let body = format!("{begin}{}0{end}}}", item.repeat(times)).into_bytes();
            let (target, key) = (self.target.clone(), self.key());
            asked.spawn(async move { target.post(path, &key, &body).await });
        }
        ends(asked).await
    }

    async fn bodies_that_do_not_arrive(&mut self) -> Result<Vec<String>> {
        let mut held = Vec::new();
        for _ in 0..45 {
            let mut stream = self.target.connect().await?;
            let key = self.key();
            let head = self.target.head("/v1/completions", &key, "content-length: 8388608\r\n");
            stream.write_all(format!("{head}{{").as_bytes()).await?;
            held.push(stream);
        }
        sleep(HOLD).await;
        Ok(vec![format!("{} held", held.len())])
    }

    async fn messages_without_end(&mut self) -> Result<Vec<String>> {
        let mut held = JoinSet::new();
        for _ in 0..40 {
            let (target, key) = (self.target.clone(), self.key());
            held.spawn(async move {
                let mut stream = target.session(&key).await?;
                let status = status(&mut stream).await?;
                let mut begin = vec![0x02, 0x80 | 127];
                begin.extend(8_000_000_u64.to_be_bytes());
                begin.resize(begin.len() + 7_900_000, 0);
                let _ = stream.write_all(&begin).await;
                sleep(HOLD).await;
                Ok(status)
            });
        }
        ends(held).await
    }

    async fn sessions(&mut self) -> Result<Vec<String>> {
        let mut held = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..200 {
            let key = self.key();
            // The connections of the attacker's address are bounded, too.
            let Ok(mut stream) = self.target.session(&key).await else { continue };
            ends.push(status(&mut stream).await?);
            held.push(stream);
        }
        sleep(HOLD).await;
        Ok(ends)
    }

    async fn silent_connections(&self) -> Result<Vec<String>> {
        let mut held = Vec::new();
        for index in 0..300 {
            let mut stream = self.target.connect().await?;
            if index % 3 == 0 {
                let _ =
                    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
            }
            held.push(stream);
        }
        sleep(HOLD).await;
        Ok(vec![format!("{} opened", held.len())])
    }

    async fn stored_replies(&mut self) -> Result<Vec<String>> {
        let mut asked = JoinSet::new();
        for number in 0..4 {
            let (target, key, model) = (self.target.clone(), self.key(), self.stage.model.clone());
            asked.spawn(async move {
                let text = format!("{number} ").repeat(3_700_000);
                let body = format!(r#"{{"model":"{model}","background":true,"input":"{text}"}}"#);
                target.post("/v1/responses", &key, body.as_bytes()).await
            });
        }
        ends(asked).await
    }

    /// Publishes copies of a request with salts of their own, and cancels that no key sealed.
    async fn copies(&mut self) -> Result<Vec<String>> {
        let broker =
            GatewayBroker::new(&format!("http://{}", self.target.address), &self.target.limited)?;
        let connection = broker.connect("copies").await?;
        let replies = reply_queue(u128::from(self.random.next()));
        connection.declare_reply_queue(&replies).await?;
        let publisher = connection.publisher().await?;
        let (model, tenant) = (self.stage.model.clone(), self.target.tenant.clone());
        let key = self.stage.data_key(&tenant).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let head = RequestHead {
            id: RequestId(Uuid::now_v7()),
            created_at_ms: now,
            expires_at_ms: now + 30_000,
            model: model.clone(),
            tenant,
            key_id: key.id.clone(),
        };
        let content = br#"{"seed":1,"input":{"prompt":"a","max_tokens":100}}"#;
        let (mut taken, mut ends) = (0, Vec::new());
        for _ in 0..40 {
            let mut message = Message::new(key.seal(&head, content)?.frame);
            message.properties.reply_to = Some(replies.clone());
            let confirmed = publisher.publish("", &model_queue(&model), message).await?.await?;
            taken += usize::from(confirmed == Confirmation::Ack);
            ends.push(format!("{confirmed:?}"));
            let forged = [b"NSBC\x01\x01\0\0", &head.id.as_bytes()[..], &self.random.bytes(144)];
            let forged = Message::new(forged.concat());
            let _ = publisher.publish(CONTROL_EXCHANGE, model.as_str(), forged).await?.await;
        }
        if taken > COPIES {
            self.verdict.fails(&format!("{taken} copies of a request were taken"));
        }
        Ok(ends)
    }

    async fn unread_streams(&mut self) -> Result<Vec<String>> {
        let mut held = Vec::new();
        for _ in 0..16 {
            let mut stream = self.target.connect().await?;
            let (model, key) = (self.stage.model.clone(), self.key());
            let body = format!(
                r#"{{"model":"{model}","prompt":"a","n":2,"stream":true,"max_tokens":200,"ignore_eos":true,"logprobs":5}}"#
            );
            let lines = format!("content-length: {}\r\n", body.len());
            let head = self.target.head("/v1/completions", &key, &lines);
            stream.write_all(format!("{head}{body}").as_bytes()).await?;
            held.push(stream);
        }
        sleep(HOLD).await;
        Ok(vec![format!("{} held", held.len())])
    }
}

/// Returns how the requests of an attack ended.
async fn ends(mut asked: JoinSet<Result<String>>) -> Result<Vec<String>> {
    let mut ends = Vec::new();
    while let Some(end) = asked.join_next().await {
        ends.push(end.context("an attack panicked")?.unwrap_or_else(|_| "cut".to_owned()));
    }
    Ok(ends)
}
