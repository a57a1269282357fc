//! Benchmark of steps by their number of rows, which is one more than the draft length.
//!
//! ```sh
//! cargo run --release -p nsbridge-llama --example step_speed -- examples/models/tale-7m bf16 1
//! target/cuda/release/examples/step_speed examples/models/tale-7m stored cuda:0
//! target/cuda/release/examples/step_speed llama-70b stored cuda:0 2
//! ```
//!
//! `llama-8b` and `llama-70b` are models with the shapes of Llama 3 and weights of zero in bf16. Their
//! file is sparse, so 70B needs no disk; a GPU needs the memory. The last argument is the number of
//! ranks.

#![expect(clippy::print_stdout, reason = "a chore is an edge")]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nsbridge_handler::{Error, Result};
use nsbridge_llama::{
    Arithmetic, Backend, BlockTable, Chunk, Config, Format, Model, Setup, Weights, tensors,
};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Value, json};

/// Number of tokens before each step.
const BEFORE: usize = 100;

const ENOUGH: Duration = Duration::from_secs(20);

const ROWS: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 96];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (model, format, processor, ranks) = match arguments[..] {
        [model, format, processor] => (model, format, processor, "1"),
        [model, format, processor, ranks] => (model, format, processor, ranks),
        _ => {
            return Err(Error::bad_input(
                "give a model's folder, llama-8b or llama-70b; bf16, q8_0 or stored; a number of \
                 threads or a device; and, for several, the number of ranks",
            ));
        }
    };
    let ranks = match ranks.parse() {
        Ok(ranks) if ranks > 0 => ranks,
        _ => return Err(Error::bad_input("the number of ranks is not a positive number")),
    };
    let drawn = tempfile::tempdir()?;
    let dir = match model {
        "llama-8b" => write_zeros(drawn.path(), &shape(4096, 14336, 32, 32))?,
        "llama-70b" => write_zeros(drawn.path(), &shape(8192, 28672, 80, 64))?,
        dir => Path::new(dir),
    };
    let format = match format {
        "bf16" => Some(Format::Bf16),
        "q8_0" => Some(Format::Q8_0),
        _ => None,
    };
    let files = nsbridge_handler::Model::in_dir(dir);
    let config = Config::read(&files).map_err(Error::fatal)?;
    let weights = Weights::for_ranks(&files, ranks).map_err(Error::fatal)?;
    let threads = processor.parse().ok();
    let name = if threads.is_some() { "cpu" } else { processor };
    let formats = [format.unwrap_or(Format::Bf16)];
    let device = Backend::named(name, ranks, Arithmetic::Native, &formats);
    let device = device.map_err(Error::fatal)?;
    let setup = Setup { device, threads, format, ranks, ..Setup::default() };
    let begun = Instant::now();
    let mut model = Model::new(&config, 1024, &weights, &setup).map_err(Error::fatal)?;
    println!("loaded in {:.1} s", begun.elapsed().as_secs_f64());
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

/// Returns the `config.json` of a model with eight key-value heads.
fn shape(hidden: usize, intermediate: usize, layers: usize, heads: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 128_256,
        "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": false
    })
}

/// Writes a model with weights of zero in bf16 into this folder.
fn write_zeros<'a>(folder: &'a Path, config: &Value) -> io::Result<&'a Path> {
    fs::write(folder.join("config.json"), config.to_string())?;
    let config =
        Config::read(&nsbridge_handler::Model::in_dir(folder)).map_err(io::Error::other)?;
    let mut end = 0;
    let tensors = tensors(&config).map(|(name, shape)| {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        (name, TensorInfo { dtype: Dtype::BF16, shape, data_offsets: (start, end) })
    });
    let header = Metadata::new(None, tensors.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_string(&header)?;
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(folder.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.set_len((8 + header.len() + end) as u64)?;
    Ok(folder)
}

/// Returns the seconds of a step after a hundred tokens.
fn run(model: &mut Model, table: &mut BlockTable, rows: usize) -> Result<f64> {
    model.cache().truncate(table, BEFORE);
    model.cache().reserve(table, rows);
    let begun = Instant::now();
    model.forward(&mut [Chunk { table, tokens: &[7; BEFORE][..rows], logits: rows }])?;
    Ok(begun.elapsed().as_secs_f64())
}
