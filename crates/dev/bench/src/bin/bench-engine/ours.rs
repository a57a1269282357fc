//! Process of our engine, which answers the benchmark's questions.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use nsbridge_llama::{BlockTable, Chunk, Config, Model, Setup, Weights};

use crate::engine::Question;
use crate::served::Served;

/// Answers each line of standard input with a line.
pub(crate) fn serve(dir: &Path, threads: usize, ranks: usize) -> Result<()> {
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files)?;
    let weights = Weights::for_ranks(&files, ranks)?;
    // KV cache blocks for sixteen sequences of a few hundred tokens.
    let setup = Setup { ranks, threads: Some(threads), blocks: 256, ..Setup::default() };
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
            Question::Logits => logits(&mut model)?.into_iter().map(f64::from).collect(),
            Question::Serve { streams, prompt, tokens } => {
                Served::ready(&mut served, dir, threads)?.streams(streams, prompt, tokens)?
            }
            Question::Prefix { tokens } => {
                Served::ready(&mut served, dir, threads)?.prefix(tokens)?
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
