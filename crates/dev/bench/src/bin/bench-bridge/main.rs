//! Benchmark of the bridge through RabbitMQ, with peers in the same run.
//!
//! `cargo xtask bench bridge` starts a node, prepares the Python environment of the peers, runs
//! this program, and prints the rows. `docs/benchmarks.md` defines them.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stdout, reason = "a build that is asked prints its answers")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod before;
mod cancel;
mod flood;
mod ours;
mod peer;
mod python;
mod raw;
mod runpod;
mod script;
mod serve;
mod stamp;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use flood::Flood;
use nsbridge_bench::report::{Report, Row, median, percentile};
use ours::System;
use peer::Peer;

/// Number of rounds; in each, ours and then every peer. A ratio is the median of the rounds'
/// ratios.
const ROUNDS: usize = 5;

/// Number of concurrent replies, and frames in each.
const STREAMS: usize = 16;
const FRAMES: usize = 2_000;

/// Size of a piece in bytes; with frame header, padding and tag it is 384 bytes on the wire.
const PIECE: usize = 256;

/// Number of sequential requests in a round of the latency measurement.
const REQUESTS: usize = 100;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("NSBRIDGE_TEST_AMQP_URL")
        .context("NSBRIDGE_TEST_AMQP_URL names no broker: run `cargo xtask bench bridge`")?;
    let out = PathBuf::from(std::env::args().nth(1).unwrap_or("target/bench/bridge.json".into()));
    let mut report = Report::new("bridge")?;
    match std::env::args().nth(2).as_deref() {
        None => {
            queue_rows(&url, &mut report).await?;
            python::rows(&url, &mut report).await?;
        }
        Some("queue") => queue_rows(&url, &mut report).await?,
        Some("python") => python::rows(&url, &mut report).await?,
        Some("serve") => return serve::serve(&url).await,
        Some("before") => {
            let program = std::env::args_os().nth(3).context("before needs a program")?;
            before::rows(Path::new(&program), &mut report).await?;
        }
        Some(other) => bail!("there is no part `{other}`; there are: queue, python, serve, before"),
    }
    report.write(&out)
}

/// Measures the bridge with handlers in Rust.
async fn queue_rows(url: &str, report: &mut Report) -> Result<()> {
    let mut peers = Peer::all(url).await;
    throughput(url, &mut peers, report).await?;
    latency(url, &mut peers, report).await?;
    for peer in peers {
        peer.stop().await;
    }
    cancel::rows(url, report).await
}

/// Measures frames per second from one worker to one client, each sealed and confirmed.
async fn throughput(url: &str, peers: &mut [Peer], report: &mut Report) -> Result<()> {
    let system = System::start::<Flood>(url).await?;
    let mut ours = Vec::new();
    for round in 1..=ROUNDS {
        let rate = system.frames_per_s(STREAMS, FRAMES).await?;
        eprintln!("round {round}: ours {rate:.0} chunks/s");
        ours.push(rate);
        for peer in &mut *peers {
            peer.measure_chunks(rate).await;
        }
    }
    let value = median(&mut ours);
    for peer in peers {
        report.push(Row {
            name: format!("bridge.chunks_per_s{}", peer.suffix),
            value,
            unit: "frames/s",
            better: "higher",
            peer: Some(peer.about_chunks()),
            peer_value: peer.chunks.value(median),
            ratio: peer.chunks.ratio(),
        });
    }
    system.stop().await
}

/// Measures the time from `submit` to the first piece, with a handler that answers at once.
async fn latency(url: &str, peers: &mut [Peer], report: &mut Report) -> Result<()> {
    let system = System::start::<Flood>(url).await?;
    system.first_piece_ms(REQUESTS / 10).await?;
    let mut ours = Vec::new();
    for round in 1..=ROUNDS {
        let mut times = system.first_piece_ms(REQUESTS).await?;
        eprintln!("round {round}: ours {:.2} ms to the first", percentile(&mut times, 0.5));
        for peer in &mut *peers {
            peer.measure_first(&mut times).await;
        }
        ours.extend(times);
    }
    for (name, share) in [("p50", 0.50), ("p99", 0.99)] {
        let value = percentile(&mut ours, share);
        for peer in &mut *peers {
            let first = if share > 0.9 { &mut peer.slowest } else { &mut peer.first };
            let (peer_value, ratio) = (first.value(|all| percentile(all, share)), first.ratio());
            report.push(Row {
                name: format!("bridge.ttft_added_{name}{}", peer.suffix),
                value,
                unit: "ms",
                better: "lower",
                peer: Some(peer.about_first()),
                peer_value,
                ratio,
            });
        }
    }
    system.stop().await
}
