//! Rows of the Python handler, beside the Rust handler and other servers of a generator in Python.

mod http;
mod peer;
mod served;

use std::iter::once;

use anyhow::Result;
use nsbridge_bench::report::{Report, Row, median, percentile};
use nsbridge_python::{Options, Python};

use crate::ours::{Frames, System};
use crate::script;
use crate::{REQUESTS, ROUNDS};
use peer::Peer;

/// Number of pieces of a reply whose rate is measured.
const PIECES: usize = 20_000;

/// Number of pieces of a reply whose pieces are timed.
const TIMED: usize = 200;

/// Interval between the pieces of such a reply, in milliseconds.
const EVERY_MS: u64 = 5;

pub(crate) async fn rows(url: &str, report: &mut Report) -> Result<()> {
    let mut peers = Peer::all().await;
    rate(url, &mut peers, report).await?;
    times(url, &mut peers, report).await?;
    for peer in peers {
        peer.stop().await;
    }
    Ok(())
}

/// Starts a worker with the model in Python.
async fn python(url: &str, frames: Frames) -> Result<System> {
    let mut options =
        Options::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/bench-bridge/model/model.py"));
    if let Ok(python) = script::interpreter() {
        options.python = python.into();
    }
    System::start_with::<Python>(url, options, frames).await
}

/// Measures pieces per second from one generator to one client, with a worker's default frames.
async fn rate(url: &str, peers: &mut [Peer], report: &mut Report) -> Result<()> {
    let ours = python(url, Frames::Default).await?;
    let mut rust = Peer::rust(url, Frames::Default).await?;
    ours.pieces_per_s(PIECES / 10).await?;
    let mut rates = Vec::new();
    for round in 1..=ROUNDS {
        let rate = ours.pieces_per_s(PIECES).await?;
        eprintln!("round {round}: Python {rate:.0} chunks/s");
        rates.push(rate);
        for peer in once(&mut rust).chain(&mut *peers) {
            peer.measure_rate(rate).await;
        }
    }
    let value = median(&mut rates);
    for peer in once(&mut rust).chain(&mut *peers) {
        report.push(Row {
            name: format!("bridge.python.chunks_per_s{}", peer.suffix),
            value,
            unit: "pieces/s",
            better: "higher",
            peer: Some(peer.about(0)),
            peer_value: peer.rate.value(median),
            ratio: peer.rate.ratio(),
        });
    }
    rust.stop().await;
    ours.stop().await
}

/// Measures the time to the first piece, and that from each `yield` of a slow generator to the
/// client, with a frame for each piece.
async fn times(url: &str, peers: &mut [Peer], report: &mut Report) -> Result<()> {
    let ours = python(url, Frames::OneEach).await?;
    let mut rust = Peer::rust(url, Frames::OneEach).await?;
    ours.first_piece_ms(REQUESTS / 10).await?;
    let (mut first, mut pieces, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let mut firsts = ours.first_piece_ms(REQUESTS).await?;
        let mut times = ours.piece_ms(TIMED, EVERY_MS).await?;
        let (at_first, of_piece) = (median(&mut firsts), median(&mut times));
        eprintln!("round {round}: Python {at_first:.2} ms to the first, {of_piece:.2} ms a piece");
        for peer in once(&mut rust).chain(&mut *peers) {
            let typical = peer.measure_times(&mut firsts, &mut times).await;
            if peer.suffix.is_empty() {
                added.extend(typical.map(|theirs| of_piece - theirs));
            }
        }
        first.extend(firsts);
        pieces.extend(times);
    }
    for (what, about, all) in [("ttft_added", 1, &mut first), ("piece_ms", 2, &mut pieces)] {
        for (name, share) in [("p50", 0.50), ("p99", 0.99)] {
            let value = percentile(all, share);
            for peer in once(&mut rust).chain(&mut *peers) {
                let about = peer.about(about);
                let name = format!("bridge.python.{what}_{name}{}", peer.suffix);
                let figures = peer.times(what, share);
                report.push(Row {
                    name,
                    value,
                    unit: "ms",
                    better: "lower",
                    peer: Some(about),
                    peer_value: figures.value(|all| percentile(all, share)),
                    ratio: figures.ratio(),
                });
            }
        }
    }
    if !added.is_empty() {
        report.push(Row {
            name: "bridge.python.piece_added_p50".to_owned(),
            value: median(&mut added),
            unit: "ms",
            better: "lower",
            peer: None,
            peer_value: None,
            ratio: None,
        });
    }
    rust.stop().await;
    ours.stop().await
}
