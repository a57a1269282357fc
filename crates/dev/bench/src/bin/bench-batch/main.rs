//! Benchmark of a large batch: `nsbridge batch run` over three workers, beside interactive requests,
//! while the batch and its workers are killed.
//!
//! `cargo xtask bench batch` starts a node, runs this program, and prints the rows.
//! `docs/benchmarks.md` defines them. The run fails if a reply is missing, is there twice, or differs
//! from that of the same request alone. `NSBRIDGE_BENCH_LINES` is the number of requests.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod fleet;
mod lines;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nsbridge_bench::report::{Report, Row, percentile};
use nsbridge_client::{Client, Event, Keyring, Request, TextPiece};
use nsbridge_queue::AmqpBroker;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use fleet::{Fleet, MODEL, WORKERS};

/// Number of requests, unless the environment names another one.
const LINES: usize = 100_000;

/// Number of different requests. Each is asked once alone, for the text that all its lines must have.
const DIFFERENT: usize = 1_000;

/// Interval of interactive requests.
const EVERY: Duration = Duration::from_millis(200);

/// Time for which interactive requests are measured without the batch, and beside it.
const MEASURED: Duration = Duration::from_secs(40);

/// Interval at which a worker is killed.
const KILL_WORKER: Duration = Duration::from_secs(10);

/// Times at which the batch is killed, from the first kill of a worker on.
const KILL_BATCH: [Duration; 3] =
    [Duration::from_secs(15), Duration::from_secs(35), Duration::from_secs(55)];

/// Interval at which memory is read.
const MEMORY_INTERVAL: Duration = Duration::from_millis(500);

/// Time limit for all lines.
const LINES_TIMEOUT: Duration = Duration::from_secs(3600);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("NSBRIDGE_TEST_AMQP_URL")
        .context("NSBRIDGE_TEST_AMQP_URL names no broker: run `cargo xtask bench batch`")?;
    let count = match std::env::var("NSBRIDGE_BENCH_LINES") {
        Ok(count) => count.parse().context("NSBRIDGE_BENCH_LINES is not a number")?,
        Err(_) => LINES,
    };
    let mut report = Report::new("batch")?;
    let mut fleet = Fleet::new(&url)?;
    let keys = Arc::new(Keyring::load(&fleet.keys())?);
    let broker = Arc::new(AmqpBroker::new(&url)?);
    let client = Client::builder().broker(broker).keys(keys).name("bench").connect().await?;
    for number in 0..WORKERS {
        fleet.start_worker(number).await?;
    }
    let replies = alone(&client).await?;
    let mut before = interactive(&client, MEASURED, "before").await?;
    lines::write(&fleet.input(), count, DIFFERENT)?;
    let began = Instant::now();
    let mut batch = fleet.start_batch("batch")?;
    let mut memory = Vec::new();
    let measured = interactive(&client, MEASURED, "beside");
    let beside = tokio::select! {
        times = measured => times?,
        ended = watched(&mut batch, &mut memory) => {
            ended?;
            bail!("the batch ended before the interactive requests: give more lines");
        }
    };
    // From here on a worker dies every few seconds, and the batch three times.
    let since = Instant::now();
    let (mut worker_kills, mut batch_kills) = (0, 0);
    let over = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(interactive_until(client.clone(), over.clone()));
    while !batch.has_ended()? {
        ensure!(began.elapsed() < LINES_TIMEOUT, "the batch did not end: {}", batch.last_line());
        sleep(MEMORY_INTERVAL).await;
        memory.extend(batch.resident().ok());
        if since.elapsed() >= KILL_WORKER * (worker_kills + 1) {
            let number = worker_kills as usize % WORKERS;
            fleet.restart_worker(number)?;
            worker_kills += 1;
        }
        if KILL_BATCH.get(batch_kills).is_some_and(|at| since.elapsed() >= *at) {
            eprintln!("killed the batch: {}; {}", batch.last_line(), mib(&memory));
            batch.kill();
            memory.clear();
            batch_kills += 1;
            batch = fleet.start_batch(&format!("batch{batch_kills}"))?;
        }
    }
    let took = began.elapsed();
    over.store(true, Ordering::Relaxed);
    let killed = asking.await??;
    ensure!(batch.succeeded()?, "the batch failed: {}", batch.last_line());
    ensure!(
        batch_kills == KILL_BATCH.len(),
        "the batch ended after {batch_kills} kills: give more lines"
    );
    eprintln!(
        "{count} lines in {took:.0?}, {worker_kills} kills of workers, {batch_kills} of the batch; {}",
        mib(&memory)
    );
    lines::check(&fleet.output(), count, &replies)?;
    let mut after = interactive(&client, MEASURED, "after").await?;
    before.append(&mut after);
    rows(&mut report, count, took, &mut [before, beside, killed], &memory);
    report.write(&PathBuf::from("target/bench/batch.json"))
}

/// Reads the memory of the batch until it ends.
async fn watched(batch: &mut fleet::Program, memory: &mut Vec<u64>) -> Result<()> {
    while !batch.has_ended()? {
        memory.extend(batch.resident().ok());
        sleep(MEMORY_INTERVAL).await;
    }
    Ok(())
}

/// Returns the most memory of each third of a process's life as text.
fn mib(memory: &[u64]) -> String {
    let [early, middle, late] = thirds(memory);
    format!("resident {early:.0}, {middle:.0}, {late:.0} MiB")
}

/// Returns the most memory of each third of a process's life in MiB, from samples in KiB.
fn thirds(memory: &[u64]) -> [f64; 3] {
    let third = memory.len() / 3;
    let most = |some: &[u64]| some.iter().max().copied().unwrap_or_default() as f64 / 1024.0;
    [most(&memory[..third]), most(&memory[third..2 * third]), most(&memory[2 * third..])]
}

/// Asks each of the different requests alone, and returns their texts.
async fn alone(client: &Client) -> Result<Vec<String>> {
    let mut replies = Vec::new();
    for number in 0..DIFFERENT {
        let (_, text) = ask(client.clone(), lines::input(number), lines::seed(number)).await?;
        replies.push(text);
    }
    Ok(replies)
}

/// Submits interactive requests for a time, and returns their times to the first token in ms.
async fn interactive(client: &Client, time: Duration, phase: &str) -> Result<Vec<f64>> {
    let (mut asked, mut tick) = (JoinSet::new(), interval(EVERY));
    let until = Instant::now() + time;
    for number in 0_u64.. {
        tick.tick().await;
        if Instant::now() >= until {
            break;
        }
        asked.spawn(ask(client.clone(), question(phase, number), number));
    }
    let mut times = Vec::new();
    while let Some(ended) = asked.join_next().await {
        times.push(ended??.0.as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Submits interactive requests until the end of the batch.
async fn interactive_until(client: Client, over: Arc<AtomicBool>) -> Result<Vec<f64>> {
    let (mut asked, mut tick) = (JoinSet::new(), interval(EVERY));
    let mut times = Vec::new();
    for number in 0_u64.. {
        tick.tick().await;
        if over.load(Ordering::Relaxed) {
            break;
        }
        asked.spawn(ask(client.clone(), question("killed", number), number));
        while let Some(ended) = asked.try_join_next() {
            times.push(ended??.0.as_secs_f64() * 1e3);
        }
    }
    while let Some(ended) = asked.join_next().await {
        times.push(ended??.0.as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Returns the input of an interactive request. No two share a prefix.
fn question(phase: &str, number: u64) -> Value {
    json!({
        "prompt": format!("{number} {phase}: once a bear and a seal"), "max_tokens": lines::TOKENS,
        "temperature": 0.8, "ignore_eos": true,
    })
}

/// Submits a request. Returns the time to the first token, and the text.
async fn ask(client: Client, input: Value, seed: u64) -> Result<(Duration, String)> {
    let request = Request::new(MODEL.parse()?, "bench".parse()?).input(input).seed(seed);
    let began = Instant::now();
    let mut reply = client.submit::<TextPiece>(request).await?;
    let (mut first, mut pieces) = (None, Vec::new());
    while let Some(event) = reply.next().await {
        match event? {
            Event::Piece(piece) => {
                first.get_or_insert_with(|| began.elapsed());
                pieces.push(piece.text);
            }
            Event::Restarted { kept } => pieces.truncate(kept),
            _ => {}
        }
    }
    let text: String = pieces.concat();
    ensure!(!text.is_empty(), "a reply is empty");
    Ok((first.unwrap_or_default(), text))
}

fn rows(
    report: &mut Report,
    count: usize,
    took: Duration,
    [alone, beside, killed]: &mut [Vec<f64>; 3],
    memory: &[u64],
) {
    let mut push =
        |name: &str, value: f64, unit: &'static str, better, peer: Option<(&str, f64)>| {
            report.push(Row {
                name: format!("batch.{name}"),
                value,
                unit,
                better,
                peer: peer.map(|(peer, _)| peer.to_owned()),
                peer_value: peer.map(|(_, value)| value),
                ratio: peer.map(|(_, peer)| peer / value),
            });
        };
    push("lines", count as f64, "requests", "higher", None);
    push("lines_per_s", count as f64 / took.as_secs_f64(), "requests/s", "higher", None);
    for share in [0.5, 0.95] {
        let name = format!("interactive_ttft_p{:.0}", share * 100.0);
        let lone = percentile(alone, share);
        push(&name, percentile(beside, share), "ms", "lower", Some(("without the batch", lone)));
        let lone = ("without the batch, and without kills", lone);
        push(&format!("{name}_killed"), percentile(killed, share), "ms", "lower", Some(lone));
    }
    // The last process works for longest.
    let [_, middle, late] = thirds(memory);
    push("resident", late, "MiB", "lower", Some(("the third before in the same process", middle)));
}
