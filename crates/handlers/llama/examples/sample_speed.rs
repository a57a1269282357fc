//! Benchmark of sampling, for a vocabulary as large as Llama 3's.
//!
//! `cargo run --release -p nsbridge-llama --example sample_speed` prints the minimum and the median
//! of many calls in microseconds, on logits of two shapes: all nearly equal, which is the hardest
//! case, and as from a trained model, where a few stand out.
#![expect(clippy::print_stdout, reason = "what it is for")]

use std::hint::black_box;
use std::time::Instant;

use nsbridge_llama::{History, Noise, Sampling, Scratch, logprobs, sample};

const VOCABULARY: u32 = 128_256;
const CALLS: usize = 400;

fn main() {
    let tokens: Vec<u32> = (0..2048).map(|i| i * 61 % VOCABULARY).collect();
    let mut history = History::new(&tokens[..1024]);
    tokens[1024..].iter().for_each(|&token| history.push(token));
    let shapes =
        [("normal, sd 1", normal(1.0)), ("normal, sd 3", normal(3.0)), ("peaked", peaked())];
    for (shape, logits) in shapes {
        println!("{shape}\n{:24} {:>8} {:>8}", "", "min us", "med us");
        for (name, sampling) in samplings() {
            let mut scratch = Scratch::default();
            measure(name, |index| {
                let noise = Noise::new(1, &[]);
                sample(&logits, &history, &sampling, None, noise, index, &mut scratch);
            });
        }
        let mut scratch = Scratch::default();
        measure("logprobs, top 5", |index| {
            black_box(logprobs(&logits, index as u32, 5, &mut scratch));
        });
    }
}

fn samplings() -> [(&'static str, Sampling); 9] {
    let plain = Sampling::default;
    let penalties = Sampling {
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        ..plain()
    };
    [
        ("plain", plain()),
        ("temperature 0.7", Sampling { temperature: 0.7, ..plain() }),
        ("greedy", Sampling { temperature: 0.0, ..plain() }),
        ("top_k 50", Sampling { top_k: 50, ..plain() }),
        ("top_p 0.9", Sampling { top_p: 0.9, ..plain() }),
        ("top_p 0.9, T 0.7", Sampling { top_p: 0.9, temperature: 0.7, ..plain() }),
        ("top_k 50, top_p 0.9", Sampling { top_k: 50, top_p: 0.9, ..plain() }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..plain() }),
        ("penalties", penalties),
    ]
}

fn measure(name: &str, mut call: impl FnMut(usize)) {
    let mut times: Vec<f64> = (0..CALLS)
        .map(|index| {
            let start = Instant::now();
            call(black_box(index));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:24} {:8.1} {:8.1}", times[0], times[CALLS / 2]);
}

/// Returns approximately normally distributed logits.
fn normal(deviation: f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..VOCABULARY).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * deviation).collect()
}

/// Returns logits as from a trained model: a few dozen tokens hold nearly all of the probability.
fn peaked() -> Vec<f32> {
    let mut logits = normal(2.0);
    for (rank, token) in (0..40u32).map(|i| i * 3001 % VOCABULARY).enumerate() {
        logits[token as usize] = 18.0 - 0.4 * rank as f32;
    }
    logits
}
