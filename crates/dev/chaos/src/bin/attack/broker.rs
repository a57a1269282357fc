//! Broker that violates AMQP 0-9-1, as a worker meets it behind a wrong host name or after a
//! takeover of its broker.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::random::Random;
use crate::stage::{Stage, bundled};
use crate::verdict::Verdict;

/// Time limit of one violation.
const EACH: Duration = Duration::from_secs(3);

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xce;

/// Protocol violation of the broker.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Silence,
    Bytes,
    OtherVersion,
    DeepStart,
    WideStart,
    EndlessFrame,
    WrongTune,
    DeepHeaders,
    EndlessBody,
    ShortBody,
    ForeignMethods,
    Heartbeats,
    ChannelsClosed,
}

const LIES: &[(Lie, &str)] = &[
    (Lie::Silence, "broker: silence"),
    (Lie::Bytes, "broker: random bytes"),
    (Lie::OtherVersion, "broker: another version"),
    (Lie::DeepStart, "broker: connection.start of many depths"),
    (Lie::WideStart, "broker: a table with a false length"),
    (Lie::EndlessFrame, "broker: a frame of 4 GiB"),
    (Lie::WrongTune, "broker: limits of nothing"),
    (Lie::DeepHeaders, "broker: message headers of many depths"),
    (Lie::EndlessBody, "broker: a body of 2^62 bytes"),
    (Lie::ShortBody, "broker: bodies that do not fit their heads"),
    (Lie::ForeignMethods, "broker: methods out of turn"),
    (Lie::Heartbeats, "broker: heartbeats without end"),
    (Lie::ChannelsClosed, "broker: each channel is closed"),
];

/// Sends protocol violations to a worker of its own until the time is over.
pub(crate) async fn attack(
    stage: Arc<Stage>,
    mut random: Random,
    until: Instant,
    verdict: Arc<Verdict>,
) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("amqp://guest:guest@{}/%2f", listener.local_addr()?);
    let start = || stage.start("lied-to", &url, &bundled("tale-1m"), &stage.model, 19);
    let mut worker = start()?;
    let mut order: Vec<usize> = (0..LIES.len()).rev().collect();
    while Instant::now() < until {
        let Ok(Ok((stream, _))) = timeout(EACH, listener.accept()).await else {
            if let Some(ended) = worker.ended()? {
                // The worker may exit with an error because a queue differs from the protocol's.
                if ended != "exit code 1" {
                    verdict.fails(&format!("a worker that was lied to died: {ended}"));
                }
                verdict.log(&worker.words()?);
                worker = start()?;
            }
            continue;
        };
        let (lie, name) = LIES[order.pop().unwrap_or_else(|| random.below(LIES.len()))];
        let began = Instant::now();
        // The connection ends when the worker closes it, or when the violation is complete.
        let _ = timeout(EACH, Talk { stream, random: random.clone() }.lie(lie)).await;
        random.next();
        verdict.made(name, "said", began.elapsed());
        verdict.memory("worker of the lying broker", worker.peak_mib());
    }
    if let Some(ended) = worker.ended()?.filter(|ended| ended != "exit code 1") {
        verdict.fails(&format!("a worker that was lied to died: {ended}"));
    }
    verdict.log(&worker.words()?);
    Ok(())
}

/// Connection of the worker.
struct Talk {
    stream: TcpStream,
    random: Random,
}

impl Talk {
    async fn lie(mut self, lie: Lie) -> Result<()> {
        let mut protocol = [0; 8];
        self.stream.read_exact(&mut protocol).await?;
        match lie {
            Lie::Silence => sleep(EACH).await,
            Lie::Bytes => {
                let bytes = self.random.bytes(100_000);
                self.stream.write_all(&bytes).await?;
            }
            Lie::OtherVersion => self.stream.write_all(b"AMQP\x00\x00\x09\x02").await?,
            Lie::DeepStart => {
                let table = nested(100_000)?;
                self.start(&table).await?;
                sleep(EACH).await;
            }
            Lie::WideStart => {
                let mut arguments = vec![0, 9];
                arguments.extend(u32::MAX.to_be_bytes());
                arguments.extend([1, b'a', b'S']);
                arguments.extend(0x7fff_ffff_u32.to_be_bytes());
                self.method(0, 10, 10, &arguments).await?;
                sleep(EACH).await;
            }
            Lie::EndlessFrame => {
                let mut frame = vec![METHOD, 0, 0];
                frame.extend(u32::MAX.to_be_bytes());
                self.stream.write_all(&frame).await?;
                let zeros = vec![0; 1 << 20];
                for _ in 0..2048 {
                    self.stream.write_all(&zeros).await?;
                }
            }
            Lie::WrongTune => {
                self.start(&[]).await?;
                let (channels, frame, heartbeat) = (
                    self.random.of(&[0, 1, u16::MAX]),
                    self.random.of(&[0, 1, 8, u32::MAX]),
                    self.random.of(&[0, 1, u16::MAX]),
                );
                let mut arguments = channels.to_be_bytes().to_vec();
                arguments.extend(frame.to_be_bytes());
                arguments.extend(heartbeat.to_be_bytes());
                self.method(0, 10, 30, &arguments).await?;
                self.serve(Lie::WrongTune).await?;
            }
            later => {
                self.start(&[]).await?;
                let mut arguments = 2047_u16.to_be_bytes().to_vec();
                arguments.extend(131_072_u32.to_be_bytes());
                arguments.extend(60_u16.to_be_bytes());
                self.method(0, 10, 30, &arguments).await?;
                self.serve(later).await?;
            }
        }
        Ok(())
    }

    /// Sends `connection.start` with these server properties.
    async fn start(&mut self, properties: &[u8]) -> Result<()> {
        let mut arguments = vec![0, 9];
        arguments.extend(u32::try_from(properties.len())?.to_be_bytes());
        arguments.extend(properties);
        for text in [&b"PLAIN"[..], b"en_US"] {
            arguments.extend(u32::try_from(text.len())?.to_be_bytes());
            arguments.extend(text);
        }
        self.method(0, 10, 10, &arguments).await
    }

    /// Answers the worker's methods, and sends the violation after `basic.consume`.
    async fn serve(&mut self, lie: Lie) -> Result<()> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).await?;
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let mut payload = vec![0; size + 1];
            self.stream.read_exact(&mut payload).await?;
            if head[0] != METHOD || size < 4 {
                continue;
            }
            let channel = u16::from_be_bytes([head[1], head[2]]);
            let class = u16::from_be_bytes([payload[0], payload[1]]);
            let method = u16::from_be_bytes([payload[2], payload[3]]);
            if matches!(lie, Lie::ChannelsClosed) && class == 20 && method == 10 {
                self.method(channel, 20, 11, &[0; 4]).await?;
                let mut arguments = 406_u16.to_be_bytes().to_vec();
                arguments.extend([3, b'n', b'o', 0x80, 0, 0, 0, 0]);
                self.method(channel, 20, 40, &arguments).await?;
                continue;
            }
            let answer = match (class, method) {
                // start-ok, tune-ok, channel close-ok, basic.ack and basic.reject have no response.
                (10, 11 | 31) | (20, 41) | (60, 80 | 90) => continue,
                (10, 40) => vec![0],
                (20, 10) => vec![0; 4],
                // queue.declare-ok: name, zero messages, zero consumers.
                (50, 10) => {
                    let length = payload.get(6).copied().unwrap_or_default() as usize;
                    let mut answer = payload.get(6..7 + length).unwrap_or(&[0]).to_vec();
                    answer.extend([0; 8]);
                    answer
                }
                (50, 30 | 40) => vec![0; 4],
                // basic.consume-ok: a consumer tag.
                (60, 20) => {
                    self.method(channel, 60, 21, b"\x01t").await?;
                    self.deliver(channel, lie).await?;
                    continue;
                }
                _ => Vec::new(),
            };
            self.method(channel, class, method + 1, &answer).await?;
        }
    }

    /// Sends the violation to the consumer.
    async fn deliver(&mut self, channel: u16, lie: Lie) -> Result<()> {
        match lie {
            Lie::DeepHeaders => {
                let table = nested(60_000)?;
                let mut properties = 0x2000_u16.to_be_bytes().to_vec();
                properties.extend(u32::try_from(table.len())?.to_be_bytes());
                properties.extend(&table);
                self.message(channel, 3, &properties, b"abc").await
            }
            Lie::EndlessBody => {
                self.message(channel, 1 << 62, &[0, 0], &[7; 100_000]).await?;
                for _ in 0..2000 {
                    self.frame(BODY, channel, &[7; 131_064]).await?;
                }
                Ok(())
            }
            Lie::ShortBody => {
                for _ in 0..20 {
                    let size = self.random.next() % 1000;
                    let body = vec![b'N'; self.random.below(1000)];
                    self.message(channel, size, &[0, 0], &body).await?;
                }
                Ok(())
            }
            Lie::ForeignMethods => {
                for _ in 0..200 {
                    let class = self.random.of(&[10, 20, 40, 50, 60, 85, 90, 7000]);
                    let method = self.random.of(&[10, 11, 20, 21, 30, 40, 50, 60, 70, 80, 111]);
                    let size = self.random.below(200);
                    let arguments = self.random.bytes(size);
                    self.method(channel, class, method, &arguments).await?;
                }
                Ok(())
            }
            Lie::Heartbeats => {
                for _ in 0..100_000 {
                    self.frame(HEARTBEAT, 0, &[]).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn message(&mut self, channel: u16, size: u64, flags: &[u8], body: &[u8]) -> Result<()> {
        let mut deliver = b"\x01t".to_vec();
        deliver.extend(1_u64.to_be_bytes());
        deliver.extend([0, 0, 1, b'q']);
        self.method(channel, 60, 60, &deliver).await?;
        let mut header = vec![0, 60, 0, 0];
        header.extend(size.to_be_bytes());
        header.extend(flags);
        self.frame(HEADER, channel, &header).await?;
        self.frame(BODY, channel, body).await
    }

    async fn method(&mut self, channel: u16, class: u16, method: u16, rest: &[u8]) -> Result<()> {
        let mut payload = class.to_be_bytes().to_vec();
        payload.extend(method.to_be_bytes());
        payload.extend(rest);
        self.frame(METHOD, channel, &payload).await
    }

    async fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> Result<()> {
        let mut frame = vec![kind];
        frame.extend(channel.to_be_bytes());
        frame.extend(u32::try_from(payload.len())?.to_be_bytes());
        frame.extend(payload);
        frame.push(FRAME_END);
        Ok(self.stream.write_all(&frame).await?)
    }
}

/// Returns nested field tables of about `bytes` bytes.
fn nested(bytes: usize) -> Result<Vec<u8>> {
    let depth = bytes / 7;
    let mut table = Vec::with_capacity(7 * depth);
    for inside in (0..depth).rev() {
        table.extend([1, b'a', b'F']);
        table.extend(u32::try_from(7 * inside)?.to_be_bytes());
    }
    Ok(table)
}
