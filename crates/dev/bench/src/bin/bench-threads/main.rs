//! Benchmark of the engine's compute threads beside rayon, on the decode step of a model.
//!
//! `cargo xtask bench threads` runs this program and prints the rows. `docs/benchmarks.md` defines
//! them. All pools are in one process and have two threads. They run in turns, never two at once,
//! and compute equal bits from the same weights.

#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

mod decode;
mod pools;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nsbridge_bench::report::{Report, Row, median, percentile};
use nsbridge_kernels::Format;

use decode::{Decode, Shape};
use pools::{Form, Pool};

/// Number of threads of each pool.
pub(crate) const THREADS: usize = 2;

/// Shape of the bundled target model, a step of which takes a fraction of a millisecond.
const TALE_7M: Shape = Shape {
    name: "tale_7m",
    hidden: 256,
    inner: 768,
    heads: 8,
    kv_heads: 4,
    layers: 8,
    vocabulary: 4096,
};

/// Shape of the random model of the suite `engine`: the memory bandwidth limits it.
const RANDOM: Shape = Shape {
    name: "1b",
    hidden: 2048,
    inner: 5632,
    heads: 32,
    kv_heads: 4,
    layers: 22,
    vocabulary: 32_000,
};

/// Least duration of the measured steps of a pool in a round, and their least number.
const BLOCK: (Duration, usize) = (Duration::from_millis(25), 3);

/// Number of rounds of a machine without other work, and with one busy thread beside the pools.
const ROUNDS: [usize; 2] = [30, 30];

/// Number of parts of an empty job, and of such jobs in a row.
const EMPTY: (usize, usize) = (8, 2000);

fn main() -> Result<()> {
    let mut report = Report::new("threads")?;
    let mut pools = pools::all()?;
    empty(&mut pools, &mut report);
    for (shape, format) in [
        (TALE_7M, Format::Q8_0),
        (TALE_7M, Format::Bf16),
        (RANDOM, Format::Q8_0),
        (RANDOM, Format::Bf16),
    ] {
        let name = format!("{}_{format}", shape.name).to_lowercase();
        let mut decode = Decode::new(shape, format)?;
        equal_bits(&mut decode, &mut pools)?;
        measure(&name, &mut decode, &mut pools, ROUNDS[0], &mut report);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            measure(&format!("{name}.busy"), &mut decode, &mut pools, ROUNDS[1], &mut report);
            stop.store(true, Ordering::Relaxed);
        });
    }
    report.write(Path::new("target/bench/threads.json"))
}

/// Checks that all pools compute the same logits.
fn equal_bits(decode: &mut Decode, pools: &mut [Pool]) -> Result<()> {
    let mut expected = None;
    for pool in pools {
        let form = pool.form;
        pool.enter(|pool| decode.step(pool));
        let bits: Vec<u32> = decode.logits().iter().map(|logit| logit.to_bits()).collect();
        let expected = expected.get_or_insert_with(|| bits.clone());
        ensure!(*expected == bits, "{form:?} computes other logits");
        ensure!(bits.iter().any(|bits| *bits != 0), "the logits are zeros");
    }
    Ok(())
}

/// Measures the time of a step in rounds, each pool once in a round.
fn measure(
    name: &str,
    decode: &mut Decode,
    pools: &mut [Pool],
    rounds: usize,
    report: &mut Report,
) {
    let times = in_turns(pools, rounds, |pool| {
        pool.enter(|pool| {
            // The first step wakes threads and finds the data of another pool in the caches.
            decode.step(pool);
            let (least, count) = BLOCK;
            let (begun, mut times) = (Instant::now(), Vec::new());
            while times.len() < count || begun.elapsed() < least {
                let begun = Instant::now();
                decode.step(pool);
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            median(&mut times)
        })
    });
    eprintln!("{name}: {} parallel sections a step", decode.sections());
    push(&format!("threads.step.{name}"), &times, pools, report);
}

/// Measures the time of a job without work, right after another.
fn empty(pools: &mut [Pool], report: &mut Report) {
    let (parts, jobs) = EMPTY;
    let times = in_turns(pools, ROUNDS[0], |pool| {
        pool.enter(|pool| {
            let mut run = |jobs| (0..jobs).for_each(|_| pool.run(parts, &|_| ()));
            run(jobs / 10);
            let begun = Instant::now();
            run(jobs);
            begun.elapsed().as_secs_f64() * 1e6 / jobs as f64
        })
    });
    push("threads.empty_section", &times, pools, report);
}

/// Returns the figures of each pool by round. The pool that is first changes with each round.
fn in_turns(
    pools: &mut [Pool],
    rounds: usize,
    mut figure: impl FnMut(&mut Pool) -> f64,
) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); pools.len()];
    for round in 0..rounds {
        for turn in 0..pools.len() {
            let at = (round + turn) % pools.len();
            times[at].push(figure(&mut pools[at]));
        }
    }
    times
}

/// Adds a row for each form of rayon, with the median of the rounds' ratios.
fn push(name: &str, times: &[Vec<f64>], pools: &[Pool], report: &mut Report) {
    let ours = &times[0];
    for (pool, theirs) in pools.iter().zip(times).skip(1) {
        let mut ratios: Vec<f64> = theirs.iter().zip(ours).map(|(a, b)| a / b).collect();
        let row = Row {
            name: format!("{name}.{}", pool.form.name()),
            value: median(&mut ours.clone()),
            unit: "us",
            better: "lower",
            peer: Some(pool.form.about().to_owned()),
            peer_value: Some(median(&mut theirs.clone())),
            ratio: Some(median(&mut ratios)),
        };
        let [low, high] = [0.25, 0.75].map(|share| percentile(&mut ratios, share));
        let ratio = median(&mut ratios);
        eprintln!("{}: ratio {ratio:.3}, half of the rounds {low:.3} to {high:.3}", row.name);
        report.push(row);
    }
    debug_assert!(matches!(pools[0].form, Form::Own), "ours is the first");
}
