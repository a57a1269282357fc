//! Process of our engine, which answers the benchmark's questions.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use nsbridge_llama::{Arithmetic, BlockTable, Chunk, Config, Model, Setup, Weights};

use crate::engine::{LENGTHS, Question};
use crate::served::Served;

/// Tokens of a step of a long prompt.
const PROMPT: usize = 256;

/// Answers each line of standard input with a line.
pub(crate) fn serve(
    dir: &Path,
    threads: usize,
    ranks: usize,
    arithmetic: Arithmetic,
) -> Result<()> {
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files)?;
    let weights = Weights::for_ranks(&files, ranks)?;
    // KV cache blocks for sixteen sequences of a few hundred tokens.
    let threads_of_all = Some(threads);
    let setup =
        Setup { ranks, threads: threads_of_all, arithmetic, blocks: 256, ..Setup::default() };
    let mut model = Model::new(&config, config.context.min(2048), &weights, &setup)?;
    drop(weights);
    let mut served = None;
    println!("ready");
    for line in std::io::stdin().lines() {
        let question = serde_json::from_str(&line?).context("a question that is none")?;
        let answer = match question {
            Question::Steps { sequences, tokens, rounds } => {
                steps(&mut model, sequences, tokens, rounds)?
            }
            Question::Contexts { lengths } => {
                let longest = lengths[LENGTHS - 1] + PROMPT;
                let setup = Setup { blocks: longest / 32 + 8, ..setup.clone() };
                let weights = Weights::for_ranks(&files, ranks)?;
                contexts(&mut Model::new(&config, longest, &weights, &setup)?, lengths)?
            }
            Question::Logits => logits(&mut model)?.into_iter().map(f64::from).collect(),
            Question::Serve { streams, prompt, tokens } => {
                Served::ready(&mut served, dir, threads, arithmetic)?
                    .streams(streams, prompt, tokens)?
            }
            Question::Prefix { tokens } => {
                Served::ready(&mut served, dir, threads, arithmetic)?.prefix(tokens)?
            }
        };
        println!("{}", serde_json::to_string(&answer)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Returns the duration of each step in seconds.
fn steps(model: &mut Model, sequences: usize, tokens: usize, rounds: usize) -> Result<Vec<f64>> {
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 7 % 1000).collect();
    let mut tables: Vec<BlockTable> = (0..sequences).map(|_| BlockTable::default()).collect();
    let (mut times, prompt) = (Vec::new(), tokens > 64);
    for _ in 0..rounds {
        for table in &mut tables {
            if prompt {
                model.cache().truncate(table, 0);
            }
            ensure!(model.cache().reserve(table, tokens), "the cache is full");
        }
        let logits = if prompt { 1 } else { tokens };
        let chunk = |table| Chunk { table, tokens: &ids, logits };
        let mut chunks: Vec<_> = tables.iter_mut().map(chunk).collect();
        let started = Instant::now();
        model.forward(&mut chunks).map_err(|error| anyhow!("{error}"))?;
        times.push(started.elapsed().as_secs_f64());
    }
    for table in tables {
        model.cache().release(table);
    }
    Ok(times)
}

/// Returns, for each length of a context, the mean duration in seconds of the last two steps of a
/// prompt and of a step of one token.
fn contexts(model: &mut Model, lengths: [usize; LENGTHS]) -> Result<Vec<f64>> {
    let ids: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7 % 1000).collect();
    let mut table = BlockTable::default();
    let mut step = |model: &mut Model, tokens: usize, kept: bool| {
        let length = table.len();
        ensure!(model.cache().reserve(&mut table, tokens), "the cache is full");
        let started = Instant::now();
        let chunk = Chunk { table: &mut table, tokens: &ids[..tokens], logits: 1 };
        model.forward(&mut [chunk]).map_err(|error| anyhow!("{error}"))?;
        let time = started.elapsed().as_secs_f64();
        if !kept {
            model.cache().truncate(&mut table, length);
        }
        Ok((time, table.len()))
    };
    let (mut times, mut steps) = (Vec::new(), vec![0.0]);
    for length in lengths {
        loop {
            let (time, now) = step(model, PROMPT, true)?;
            steps.push(time);
            if now >= length {
                break;
            }
        }
        times.push(steps[steps.len() - 2..].iter().sum::<f64>() / 2.0);
        let mut decoded = Vec::new();
        for _ in 0..9 {
            decoded.push(step(model, 1, false)?.0);
        }
        times.push(decoded.iter().skip(1).sum::<f64>() / 8.0);
    }
    model.cache().release(table);
    Ok(times)
}

/// Returns the logits after the last of eight tokens.
fn logits(model: &mut Model) -> Result<Vec<f32>> {
    let (mut table, ids) = (BlockTable::default(), [0, 7, 14, 21, 28, 35, 42, 49]);
    ensure!(model.cache().reserve(&mut table, ids.len()), "the cache is full");
    let chunk = Chunk { table: &mut table, tokens: &ids, logits: 1 };
    let logits = model.forward(&mut [chunk]).map_err(|error| anyhow!("{error}"))?;
    let row = logits.rows().next().context("no logits")?.to_vec();
    model.cache().release(table);
    Ok(row)
}
