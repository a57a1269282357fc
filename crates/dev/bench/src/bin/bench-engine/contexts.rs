//! Speed of prompts and of decoding after contexts of different lengths.

use std::path::Path;

use anyhow::Result;
use nsbridge_bench::report::Row;
use nsbridge_llama::{Arithmetic, Mix};

use crate::engine::{Engine, LENGTHS, Question};
use crate::kept::Kept;
use crate::{THREADS, compared, llama_cpp, random, shape};

/// Lengths of the contexts.
const CONTEXTS: [usize; LENGTHS] = [1024, 2048, 4096, 8192, 16_384, 32_768];

/// Number of rounds. Each takes two minutes or more for an engine.
const ROUNDS: usize = 2;

/// Measures our engine and llama.cpp, or another build of this benchmark, in turns.
pub(crate) fn measure(before: Option<&Path>) -> Result<Vec<Row>> {
    let folder = Path::new("target/bench/models");
    let kept = Kept::of(&random(folder, shape::LONG_SHAPE)?, Mix::Q8_0, folder)?;
    let mut ours = Engine::ours(&kept.dir, THREADS, 1, Arithmetic::Portable)?;
    let mut peer = match before {
        Some(binary) => Engine::before(binary, &kept.dir, THREADS)?,
        None => llama_cpp(&kept)?,
    };
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let question = Question::Contexts { lengths: CONTEXTS };
        for is_ours in if round % 2 == 0 { [true, false] } else { [false, true] } {
            let engine = if is_ours { &mut ours } else { &mut peer };
            let Some(times) = engine.ask(question)? else { continue };
            eprintln!("{}: {times:.4?}", engine.about);
            if is_ours { mine.push(times) } else { theirs.push(times) }
        }
    }
    let row = |at: usize, name: String, tokens: f64| {
        let of = |all: &[Vec<f64>]| all.iter().map(|times| tokens / times[at]).collect::<Vec<_>>();
        compared(name, ("tokens/s", true), &peer, of(&mine), of(&theirs))
    };
    let rows = CONTEXTS.iter().enumerate().flat_map(|(at, context)| {
        let context = context / 1024;
        [
            row(2 * at, format!("engine.prefill_at_{context}k.q8_0"), 256.0),
            row(2 * at + 1, format!("engine.decode_at_{context}k.q8_0"), 1.0),
        ]
    });
    Ok(rows.collect())
}
