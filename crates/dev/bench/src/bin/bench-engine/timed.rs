//! Concurrent requests to a worker's handler, with the arrival times of their pieces.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nsbridge_handler::erased::{AnyHandler, Call};
use nsbridge_handler::transcript::Reader;
use nsbridge_handler::{Finish, TextPiece, testing};
use nsbridge_llama::Llama;
use serde_json::Value;

/// Reply, with the arrival of its first and last piece in seconds.
pub(crate) struct Timed {
    pub(crate) first: f64,
    pub(crate) last: f64,
    pub(crate) pieces: Vec<TextPiece>,
    pub(crate) finish: Finish,
}

/// Runs all requests concurrently, each with its seed.
pub(crate) fn timed(llama: &Llama, requests: &[(Value, u64)]) -> Result<Vec<Timed>> {
    let calls = requests.iter().map(|(input, seed)| testing::call(input, *seed));
    let (calls, readers): (Vec<Call>, Vec<Reader>) = calls.unzip();
    let mut firsts = vec![None; readers.len()];
    let started = Instant::now();
    let now = || started.elapsed().as_secs_f64();
    thread::scope(|scope| {
        let make = |call| (futures_executor::block_on(AnyHandler::call(llama, call)), now());
        let made: Vec<_> = calls.into_iter().map(|call| scope.spawn(move || make(call))).collect();
        while !made.iter().all(thread::ScopedJoinHandle::is_finished) {
            let now = now();
            for (reader, first) in readers.iter().zip(&mut firsts) {
                if first.is_none() && !reader.is_empty() {
                    *first = Some(now);
                }
            }
            thread::sleep(Duration::from_micros(200));
        }
        let all = made.into_iter().zip(&readers).zip(firsts);
        all.map(|((made, reader), first)| {
            let (result, last) = made.join().map_err(|_| anyhow!("a call panicked"))?;
            let finish = result.map_err(|error| anyhow!("{error}"))?;
            let pieces = testing::pieces(reader).map_err(|error| anyhow!("{error}"))?;
            Ok(Timed { first: first.unwrap_or(last), last, pieces, finish })
        })
        .collect()
    })
}
