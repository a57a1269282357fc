//! Benchmark of steps by their number of rows, which is one more than the draft length.
//!
//! ```sh
//! cargo run --release -p nsbridge-llama --example step_speed -- examples/models/tale-7m bf16 1
//! target/cuda/release/examples/step_speed examples/models/tale-7m stored cuda:0
//! ```

#![expect(clippy::print_stdout, reason = "a chore is an edge")]

use std::time::{Duration, Instant};

use nsbridge_handler::{Error, Result};
use nsbridge_llama::{Backend, BlockTable, Chunk, Config, Format, Model, Setup, Weights};

/// Number of tokens before each step.
const BEFORE: usize = 100;

const ENOUGH: Duration = Duration::from_secs(20);

const ROWS: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 96];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, format, processor] = &arguments[..] else {
        return Err(Error::bad_input(
            "give a model's folder, bf16, q8_0 or stored, and a number of threads or a device",
        ));
    };
    let format = match format.as_str() {
        "bf16" => Some(Format::Bf16),
        "q8_0" => Some(Format::Q8_0),
        _ => None,
    };
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files).map_err(Error::fatal)?;
    let weights = Weights::read(&files).map_err(Error::fatal)?;
    let threads = processor.parse().ok();
    let name = if threads.is_some() { "cpu" } else { processor };
    let device = Backend::named(name, 1).map_err(Error::fatal)?;
    let setup = Setup { device, threads, format, ..Setup::default() };
    let mut model = Model::new(&config, 1024, &weights, &setup).map_err(Error::fatal)?;
    let mut table = BlockTable::default();
    model.cache().reserve(&mut table, BEFORE);
    let tokens = [7; BEFORE];
    model.forward(&mut [Chunk { table: &mut table, tokens: &tokens, logits: 1 }])?;
    let mut least = [f64::INFINITY; ROWS.len()];
    let begun = Instant::now();
    for round in 0..40 {
        for (rows, least) in ROWS.into_iter().zip(&mut least) {
            *least = least.min(run(&mut model, &mut table, rows)?);
        }
        if round > 0 && begun.elapsed() > ENOUGH {
            break;
        }
    }
    for (rows, seconds) in ROWS.into_iter().zip(least) {
        println!("{rows:3} rows {:8.3} ms {:6.2}", seconds * 1000.0, seconds / least[0]);
    }
    Ok(())
}

/// Returns the seconds of a step after a hundred tokens.
fn run(model: &mut Model, table: &mut BlockTable, rows: usize) -> Result<f64> {
    model.cache().truncate(table, BEFORE);
    model.cache().reserve(table, rows);
    let begun = Instant::now();
    model.forward(&mut [Chunk { table, tokens: &[7; BEFORE][..rows], logits: rows }])?;
    Ok(begun.elapsed().as_secs_f64())
}
