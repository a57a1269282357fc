//! The bridge's figures through RabbitMQ, beside plain lapin in the same run.
//!
//! `cargo xtask bench bridge` starts a node, runs this, and prints the rows.

#![expect(clippy::disallowed_methods, reason = "a chore is an edge")]
#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod flood;
mod ours;
mod raw;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result};

use report::{Report, Row, median};

/// Pairs of runs, ours and the peer's in turn.
const PAIRS: usize = 5;

/// Replies under way at once, and frames in each.
const STREAMS: usize = 16;
const FRAMES: usize = 2_000;

/// Requests for the time to the first token, one after another.
const REQUESTS: usize = 300;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("NSBRIDGE_TEST_AMQP_URL")
        .context("NSBRIDGE_TEST_AMQP_URL names no broker: run `cargo xtask bench bridge`")?;
    let out = PathBuf::from(std::env::args().nth(1).unwrap_or("target/bench/bridge.json".into()));
    let mut report = Report::new("bridge")?;
    throughput(&url, &mut report).await?;
    latency(&url, &mut report).await?;
    report.write(&out)
}

/// Frames a second from one worker connection to one client, every one sealed and confirmed.
async fn throughput(url: &str, report: &mut Report) -> Result<()> {
    let system = ours::System::start(url).await?;
    let (mut mine, mut theirs, mut ratios) = (vec![], vec![], vec![]);
    for pair in 0..PAIRS {
        let ours = system.frames_per_s(STREAMS, FRAMES).await?;
        let raw = raw::frames_per_s(url, STREAMS, FRAMES).await?;
        eprintln!("pair {}: {ours:.0} sealed, {raw:.0} plain frames/s", pair + 1);
        mine.push(ours);
        theirs.push(raw);
        ratios.push(ours / raw);
    }
    report.push(Row {
        name: "bridge.chunks_per_s",
        value: median(&mut mine),
        unit: "frames/s",
        better: "higher",
        peer: "lapin 4.12 alone: plain bodies of the same size, same windows and acks",
        peer_value: median(&mut theirs),
        ratio: median(&mut ratios),
    });
    system.stop().await
}

/// From the call of `submit` to the first piece, with a handler that answers at once.
async fn latency(url: &str, report: &mut Report) -> Result<()> {
    let system = ours::System::start(url).await?;
    let (mut ours, mut raw) = (vec![], vec![]);
    for _ in 0..PAIRS {
        ours.extend(system.first_piece_ms(REQUESTS / PAIRS).await?);
        raw.extend(raw::round_trip_ms(url, REQUESTS / PAIRS).await?);
    }
    let percentiles = [("bridge.ttft_added_p50", 0.50), ("bridge.ttft_added_p99", 0.99)];
    for (name, share) in percentiles {
        let (value, peer_value) = (percentile(&mut ours, share), percentile(&mut raw, share));
        report.push(Row {
            name,
            value,
            unit: "ms",
            better: "lower",
            peer: "lapin 4.12 alone: one plain request and reply over the same kinds of queues",
            peer_value,
            ratio: peer_value / value,
        });
    }
    system.stop().await
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}
