//! What a step costs: decoding, verifying four tokens, sixteen sequences, a prompt.
//!
//! ```sh
//! cargo run --release -p nsbridge-llama --example speed -- MODEL_DIR q8_0 2
//! ```

#![expect(clippy::print_stdout, reason = "figures are its result")]

use std::time::Instant;

use nsbridge_llama::{Chunk, Config, Format, LoadError, Model, Setup, Table, Weights};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, format, threads] = &arguments[..] else {
        println!("usage: speed MODEL_DIR f32|bf16|q8_0 THREADS");
        return Ok(());
    };
    let format = match format.as_str() {
        "f32" => Format::F32,
        "bf16" => Format::Bf16,
        _ => Format::Q8_0,
    };
    let threads = threads.parse().ok();
    let mut model = open(dir, format, threads)?;
    for (name, sequences, tokens, rounds) in [
        ("decode", 1, 1, 40),
        ("verify 2", 1, 2, 20),
        ("verify 4", 1, 4, 20),
        ("verify 8", 1, 8, 10),
        ("16 streams", 16, 1, 10),
        ("prompt of 256", 1, 256, 3),
    ] {
        let times = measure(&mut model, sequences, tokens, rounds)?;
        let (least, median) = (times[0], times[times.len() / 2]);
        let rate = (sequences * tokens) as f64 / median;
        println!("{name}: {:.2} ms ({:.2} at best), {rate:.1} tokens/s", median * 1e3, least * 1e3);
    }
    Ok(())
}

fn open(
    dir: &str,
    format: Format,
    threads: Option<usize>,
) -> std::result::Result<Model, LoadError> {
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files)?;
    let weights = Weights::read(&files)?;
    let setup = Setup { threads, format: Some(format), blocks: 256, ..Setup::default() };
    Model::new(&config, 2048, &weights, &setup)
}

/// Seconds of each round, sorted.
fn measure(model: &mut Model, sequences: usize, tokens: usize, rounds: usize) -> Result<Vec<f64>> {
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 7 % 1000).collect();
    let mut tables: Vec<Table> = (0..sequences).map(|_| Table::default()).collect();
    let mut times = Vec::new();
    for _ in 0..rounds {
        for table in &mut tables {
            if tokens > 64 {
                model.cache().truncate(table, 0);
            }
            model.cache().reserve(table, tokens);
        }
        let chunk =
            |table| Chunk { table, tokens: &ids, logits: if tokens > 64 { 1 } else { tokens } };
        let mut chunks: Vec<_> = tables.iter_mut().map(chunk).collect();
        let started = Instant::now();
        model.forward(&mut chunks).map_err(|error| error.to_string())?;
        times.push(started.elapsed().as_secs_f64());
    }
    for table in tables {
        model.cache().release(table);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
