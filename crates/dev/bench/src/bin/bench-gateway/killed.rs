//! Time from SIGKILL of a program to the next token of a stream that it served.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nsbridge_bench::report::{Report, Row, median};
use tokio::time::sleep;

use crate::http::{Call, Stream, find};
use crate::real::{MODEL, Program, Programs, serves};

/// Number of kills of each kind.
const TURNS: usize = 3;

/// Tokens of a stream.
const TOKENS: usize = 440;

/// Tokens that come before the kill.
const BEFORE: usize = 20;

/// Time between two tries of a client to read on.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
enum Victim {
    Gateway,
    Worker,
    Both,
}

/// Measures the three kills, and what becomes of a stream behind a router whose server is killed.
pub(crate) async fn measure(programs: &Programs, report: &mut Report) -> Result<()> {
    let peer = match routed(programs).await {
        Ok(said) => said,
        Err(error) => format!("smg and llama-server not measured: {error:#}"),
    };
    for victim in [Victim::Gateway, Victim::Worker, Victim::Both] {
        let mut times = Vec::new();
        for turn in 1..=TURNS {
            let took = killed(programs, victim).await?;
            eprintln!("turn {turn}, {victim:?} killed: next token after {took:.3} s");
            times.push(took);
        }
        report.push(Row {
            name: format!("gateway.killed_{}_next_token_s", format!("{victim:?}").to_lowercase()),
            value: median(&mut times),
            unit: "s",
            better: "lower",
            peer: Some(peer.clone()),
            peer_value: None,
            ratio: None,
        });
    }
    Ok(())
}

/// Returns the seconds from a kill to the next token that the client receives. There are a second
/// gateway and a second worker; the client reads on at the second gateway if its own is gone.
async fn killed(programs: &Programs, victim: Victim) -> Result<f64> {
    let mut first = programs.worker("first")?;
    let (mut gateway, address) = programs.gateway("one").await?;
    let (_other, second) = programs.gateway("two").await?;
    serves(address, &Call::chat(MODEL, "Hello", 1)).await.context("the first worker serves")?;
    let call = Call::response(MODEL, "Tell me a long story about a bear.", TOKENS);
    let mut stream = Stream::connect(address).await?;
    stream.send(&call).await?;
    let mut read = Read::default();
    while read.tokens < BEFORE {
        stream.read().await?;
        read.take(stream.received());
    }
    // The first worker has the reply now, so the second one is spare.
    let _spare = spare(programs, second).await?;
    let kill = |program: &mut Program| program.kill();
    let began = Instant::now();
    match victim {
        Victim::Gateway => kill(&mut gateway),
        Victim::Worker => kill(&mut first),
        Victim::Both => {
            kill(&mut gateway);
            kill(&mut first);
        }
    }
    // Tokens that were on their way do not count.
    while stream.read().await.is_ok() {
        let known = read.sequence;
        read.take(stream.received());
        if read.sequence > known && matches!(victim, Victim::Worker) {
            if began.elapsed() < Duration::from_millis(100) {
                continue;
            }
            return Ok(began.elapsed().as_secs_f64());
        }
    }
    ensure!(!matches!(victim, Victim::Worker), "the gateway ended the stream of a killed worker");
    let rest = Call::rest(&read.id, read.sequence);
    loop {
        if let Ok(mut stream) = Stream::connect(second).await {
            stream.send(&rest).await?;
            let mut more = Read { sequence: read.sequence, ..Read::default() };
            while stream.read().await.is_ok() {
                more.take(stream.received());
                if more.tokens > 0 {
                    return Ok(began.elapsed().as_secs_f64());
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Starts the second worker, and waits until it serves: until one of some concurrent chats is
/// answered by a worker beside the one that is busy.
async fn spare(programs: &Programs, address: SocketAddr) -> Result<Program> {
    let worker = programs.worker("second")?;
    sleep(Duration::from_secs(2)).await;
    serves(address, &Call::chat(MODEL, "Hello", 1)).await.context("a worker serves")?;
    Ok(worker)
}

/// Events of a response that were read.
#[derive(Debug, Default)]
struct Read {
    id: String,
    /// Number of the last event.
    sequence: u64,
    tokens: usize,
}

impl Read {
    /// Reads all events of a response so far.
    fn take(&mut self, received: &[u8]) {
        let text = String::from_utf8_lossy(received);
        let mut tokens = 0;
        for line in text.split_inclusive('\n') {
            // The last line may be incomplete.
            let Some(data) = line.strip_suffix('\n').and_then(|line| line.strip_prefix("data: "))
            else {
                continue;
            };
            let Ok(event) = serde_json::from_str::<serde_json::Value>(data) else { continue };
            if let Some(id) = event["response"]["id"].as_str() {
                self.id = id.to_owned();
            }
            if let Some(sequence) = event["sequence_number"].as_u64() {
                self.sequence = self.sequence.max(sequence);
            }
            tokens += usize::from(event["type"] == "response.output_text.delta");
        }
        self.tokens = tokens;
    }
}

/// Kills one of two llama-servers behind a router in the middle of a stream, and tells how the
/// stream ended.
async fn routed(programs: &Programs) -> Result<String> {
    let (mut one, first) = programs.llama_server("llama-one").await?;
    let (mut two, second) = programs.llama_server("llama-two").await?;
    let (_router, address) = programs.smg(&[first, second]).await?;
    let call = Call::chat(MODEL, "Tell me a long story about a bear.", TOKENS).whole();
    let mut stream = Stream::connect(address).await?;
    stream.send(&call).await?;
    let count =
        |received: &[u8]| String::from_utf8_lossy(received).matches("\"content\":\"").count();
    stream.until(|received| count(received) >= BEFORE).await?;
    // The one that serves the stream uses the processor.
    let busy = |program: &Program| program.ticks();
    let before = [busy(&one)?, busy(&two)?];
    sleep(Duration::from_millis(200)).await;
    let after = [busy(&one)?, busy(&two)?];
    if after[0] - before[0] > after[1] - before[1] {
        one.kill();
    } else {
        two.kill();
    }
    let ended = loop {
        if find(stream.received(), b"data: [DONE]").is_some() {
            break "its mark of a whole reply";
        }
        if let Err(error) = stream.read().await {
            break if format!("{error:#}").contains("closed") {
                "a closed connection"
            } else {
                "silence"
            };
        }
        if stream.received().ends_with(b"0\r\n\r\n") {
            break "the end of its body";
        }
    };
    let tokens = count(stream.received());
    Ok(format!(
        "smg over two llama-servers, one killed: the stream ended after {tokens} of {TOKENS} \
         tokens by {ended}"
    ))
}
