//! Benchmark of the gateway: the time that it adds to the queue's own client, and memory.
//!
//! `cargo xtask bench gateway` starts a node, runs this program, and prints the rows.
//! `docs/benchmarks.md` defines them. Where no other program is named, gateway, worker and clients
//! share this process and its cores. Arguments select parts: `own`, `held`, `hops`, `killed`, `crowd`.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod crowd;
mod held;
mod hops;
mod http;
mod killed;
mod place;
mod real;
mod words;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nsbridge_bench::report::{Report, Row, median, percentile};
use tokio::task::JoinSet;

use http::{Call, Stream};
use place::Place;
use real::{Programs, resident};
use words::Pace;

/// Number of rounds; in each, the client alone and then through the gateway.
const ROUNDS: usize = 5;

/// Numbers of concurrent requests.
const CONCURRENCIES: [usize; 4] = [1, 4, 16, 64];

/// Number of requests of a round at each number of concurrent requests.
const REQUESTS: usize = 256;

/// Tokens of a reply whose time per token is measured.
const TOKENS: usize = 200;

/// Number of streams whose memory is measured.
const IDLE: usize = 2_000;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("NSBRIDGE_TEST_AMQP_URL")
        .context("NSBRIDGE_TEST_AMQP_URL names no broker: run `cargo xtask bench gateway`")?;
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let known = ["own", "held", "hops", "killed", "crowd"];
    if let Some(other) = parts.iter().find(|part| !known.contains(&&***part)) {
        bail!("there is no part `{other}`; there are {}", known.join(", "));
    }
    let runs = |part: &str| parts.is_empty() || parts.iter().any(|named| named == part);
    let mut report = Report::new("gateway")?;
    if runs("own") {
        let place = Place::start(&url, Pace { tasks: 64, every: Duration::ZERO }).await?;
        for at_once in CONCURRENCIES {
            first(&place, at_once, &mut report).await?;
        }
        tokens(&place, &mut report).await?;
        idle(&place, &mut report).await?;
        place.stop().await?;
    }
    if runs("held") {
        held::streams(&url, &mut report).await?;
    }
    let programs = Programs::new(&url)?;
    if runs("hops") {
        hops::measure(&programs, &mut report).await?;
    }
    if runs("killed") {
        killed::measure(&programs, &mut report).await?;
    }
    if runs("crowd") {
        crowd::measure(&programs, &mut report).await?;
    }
    report.write(&PathBuf::from("target/bench/gateway.json"))
}

/// Measures the time to the first token, by the client alone and through the gateway.
async fn first(place: &Place, at_once: usize, report: &mut Report) -> Result<()> {
    let (mut added, mut all, mut direct) = (Vec::new(), Vec::new(), Vec::new());
    let mut slowest = Vec::new();
    round(place, at_once, Way::Gateway).await?;
    for number in 1..=ROUNDS {
        let mut alone = round(place, at_once, Way::Client).await?;
        let mut through = round(place, at_once, Way::Gateway).await?;
        let (one, other) = (median(&mut alone), median(&mut through));
        eprintln!("round {number}, {at_once} at once: {one:.2} ms alone, {other:.2} ms through");
        added.push(other - one);
        slowest.push(percentile(&mut through, 0.99) - percentile(&mut alone, 0.99));
        all.extend(through);
        direct.extend(alone);
    }
    for (name, values, share) in [("p50", &mut added, 0.5), ("p99", &mut slowest, 0.99)] {
        let (through, alone) = (percentile(&mut all, share), percentile(&mut direct, share));
        report.push(Row {
            name: format!("gateway.ttft_added_{name}_{at_once}"),
            value: median(values),
            unit: "ms",
            better: "lower",
            peer: Some(format!("nsbridge-client alone; through the gateway {through:.2} ms")),
            peer_value: Some(alone),
            ratio: None,
        });
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Way {
    Client,
    Gateway,
}

/// Returns the times to the first token of a round's requests, in ms.
async fn round(place: &Place, at_once: usize, way: Way) -> Result<Vec<f64>> {
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let place = place.clone();
        tasks.spawn(async move {
            let mut times = Vec::new();
            let mut connection = Stream::connect(place.address).await?;
            for _ in 0..REQUESTS / at_once {
                let began = Instant::now();
                let took = match way {
                    Way::Client => place.first(1, began).await?,
                    Way::Gateway => {
                        connection.first(&Call::completion(&place.model, 1), began).await?
                    }
                };
                times.push(took.as_secs_f64() * 1000.0);
            }
            anyhow::Ok(times)
        });
    }
    gathered(tasks).await
}

/// Returns the values of all tasks.
async fn gathered<T: Send + 'static>(mut tasks: JoinSet<Result<Vec<T>>>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(values) = tasks.join_next().await {
        all.extend(values??);
    }
    Ok(all)
}

/// Measures the time of a reply for each token, with 16 replies at once.
async fn tokens(place: &Place, report: &mut Report) -> Result<()> {
    let (mut alone, mut through, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=ROUNDS {
        let one = whole(place, Way::Client).await?;
        let other = whole(place, Way::Gateway).await?;
        eprintln!("round {number}: {one:.1} us a token alone, {other:.1} us through");
        alone.push(one);
        through.push(other);
        added.push(other - one);
    }
    report.push(Row {
        name: "gateway.token_added_us_16".to_owned(),
        value: median(&mut added),
        unit: "us",
        better: "lower",
        peer: Some(format!("nsbridge-client alone; through {:.1} us", median(&mut through))),
        peer_value: Some(median(&mut alone)),
        ratio: None,
    });
    Ok(())
}

/// Returns the time of a token in microseconds, over 16 replies that come as fast as they can.
async fn whole(place: &Place, way: Way) -> Result<f64> {
    let (began, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..16 {
        let place = place.clone();
        tasks.spawn(async move {
            match way {
                Way::Client => place.whole(TOKENS).await,
                Way::Gateway => {
                    let call = Call::completion(&place.model, TOKENS);
                    Stream::connect(place.address).await?.whole(&call).await
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / (16 * TOKENS) as f64)
}

/// Measures the memory of streams that wait for their first token.
async fn idle(place: &Place, report: &mut Report) -> Result<()> {
    words::set(false);
    let before = resident(std::process::id())?;
    let mut streams = Vec::new();
    for _ in 0..IDLE {
        let mut stream = Stream::connect(place.address).await?;
        stream.wait(&Call::chat(&place.model, "Once", 1)).await?;
        streams.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = resident(std::process::id())?;
    ensure!(streams.len() == IDLE, "not all streams are open");
    drop(streams);
    words::set(true);
    report.push(Row {
        name: "gateway.idle_stream_kib".to_owned(),
        value: after.saturating_sub(before) as f64 / IDLE as f64,
        unit: "KiB",
        better: "lower",
        peer: Some(format!("both ends of {IDLE} connections and the state of the client")),
        peer_value: None,
        ratio: None,
    });
    Ok(())
}
