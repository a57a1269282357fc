//! Benchmark of steps and of loading on a GPU, and a comparison of its logits with the CPU's.
//!
//! ```sh
//! cargo run --release -p nsbridge-llama --features emulator,testing --example gpu_bench -- exact emulator examples/models/tale-7m
//! cargo run --release -p nsbridge-llama --features emulator,testing --example gpu_bench -- steps emulator tiny q4_k --cases 1x1,2x1,1x3 --contexts 64 --prefill 64
//! target/cuda/release/examples/gpu_bench steps cuda:0 llama-70b q4_k --bandwidth 3350 --memory 80
//! ```
//!
//! `exact` is for models in folders. `steps` is for models of a shape, whose weights are generated in
//! memory and pass through the loader. The keys and values before a step are not computed. A case
//! `16x1` is 16 sequences of one token each; `1x5` is one sequence with a draft of four. Each
//! measurement is a line of JSON.

#![expect(clippy::print_stdout, reason = "a chore is an edge")]

mod exact;
mod generated;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use nsbridge_checkpoint::Dtype;
use nsbridge_handler::{Error, Result};
use nsbridge_llama::testing::{assume, record_launches, run_sampled};
use nsbridge_llama::{
    Arithmetic, Backend, BlockTable, Chunk, Config, Format, History, KvFormat, Model, Setup,
    Weights,
};
use serde_json::{Value, json};

use generated::Shape;

const USAGE: &str = "arguments: exact DEVICE FOLDER...; or steps DEVICE tiny|llama-8b|llama-70b \
                     bf16|f8_e4m3|q8_0|q4_k|q6_k, and options: --arithmetic native|portable, --ranks N, \
                     --cases 1x1,16x1,1x5, --contexts 1024,8192, --prefill 1024,8192, --kv bf16|f32, \
                     --bandwidth and --memory of the device in GB/s and GB";

/// Positions in a page of the KV cache.
const PAGE: usize = 32;

/// Tokens of a step of prefill, as in a worker.
const STEP_TOKENS: usize = 2048;

/// Bytes of a device that are left to the buffers of steps.
const BYTES_LEFT: f64 = 3e9;

/// Steps before those that are timed. The launches of the second are recorded.
const WARM_UP: usize = 3;

const MIN_STEPS: usize = 10;

const MIN_TIME: Duration = Duration::from_millis(500);

const MAX_TIME: Duration = Duration::from_secs(2);

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["exact", device, ref folders @ ..] if !folders.is_empty() => {
            let equal = exact::run(device, folders)?;
            Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ["steps", device, model, format, ref options @ ..] => {
            let options = Options::read(options).ok_or_else(usage)?;
            Bench::load(device, model, format, options)?.run()?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(usage()),
    }
}

fn usage() -> Error {
    Error::bad_input(USAGE)
}

/// Prints a measurement.
fn print(value: &Value) {
    println!("{value}");
}

struct Options {
    arithmetic: Arithmetic,
    ranks: usize,
    /// Numbers of sequences, and of tokens of each.
    cases: Vec<(usize, usize)>,
    contexts: Vec<usize>,
    prefill: Vec<usize>,
    kv: KvFormat,
    /// Bytes a second.
    bandwidth: Option<f64>,
    /// Bytes.
    memory: Option<f64>,
}

impl Options {
    fn read(arguments: &[&str]) -> Option<Self> {
        let numbers = |text: &str| {
            text.split(',').map(|own| own.parse().ok()).collect::<Option<Vec<usize>>>()
        };
        let case = |text: &str| {
            let (sequences, tokens) = text.split_once('x')?;
            Some((sequences.parse().ok()?, tokens.parse().ok()?))
        };
        let gigas = |text: &str| text.parse().ok().map(|number: f64| number * 1e9);
        let mut own = Self {
            arithmetic: Arithmetic::Native,
            ranks: 1,
            cases: vec![(1, 1), (5, 1), (16, 1), (17, 1), (32, 1), (64, 1), (1, 5)],
            contexts: vec![1024, 8192],
            prefill: vec![1024, 8192],
            kv: KvFormat::Bf16,
            bandwidth: None,
            memory: None,
        };
        let (pairs, rest) = arguments.as_chunks::<2>();
        for [name, value] in pairs {
            match *name {
                "--arithmetic" => own.arithmetic = serde_json::from_value(json!(value)).ok()?,
                "--kv" => own.kv = serde_json::from_value(json!(value)).ok()?,
                "--ranks" => own.ranks = value.parse().ok().filter(|ranks| *ranks > 0)?,
                "--cases" => own.cases = value.split(',').map(case).collect::<Option<_>>()?,
                "--contexts" => own.contexts = numbers(value)?,
                "--prefill" => own.prefill = numbers(value)?,
                "--bandwidth" => own.bandwidth = Some(gigas(value)?),
                "--memory" => own.memory = Some(gigas(value)?),
                _ => return None,
            }
        }
        rest.is_empty().then_some(own)
    }
}

/// Loaded model.
struct Bench {
    options: Options,
    /// Fields that each line has.
    named: Value,
    device: Backend,
    model: Model,
    /// Bytes of the matrices that a step reads.
    weights: u64,
    /// Bytes of the keys and values of a position.
    position: u64,
}

impl Bench {
    /// Loads a model of this shape, and prints how long that takes.
    fn load(device: &str, name: &str, format: &str, options: Options) -> Result<Self> {
        let shape = Shape::named(name).ok_or_else(usage)?;
        let (dtype, of_matrices) = match format {
            "bf16" => (Dtype::BF16, Format::Bf16),
            "f8_e4m3" => (Dtype::F8_E4M3, Format::F32),
            "q8_0" => (Dtype::Q8_0, Format::Q8_0),
            "q4_k" => (Dtype::Q4_K, Format::Q4K),
            "q6_k" => (Dtype::Q6_K, Format::Q6K),
            _ => return Err(usage()),
        };
        let named = json!({
            "model": name, "format": format, "arithmetic": options.arithmetic, "device": device,
            "ranks": options.ranks, "kv": options.kv,
        });
        let files = generated::model(shape, dtype)?;
        let bytes = files.source().files()[1].size;
        let config = Config::read(&files).map_err(Error::fatal)?;
        let (ranks, arithmetic) = (options.ranks, options.arithmetic);
        let device = Backend::named(device, ranks, arithmetic, &[of_matrices]);
        let device = device.map_err(Error::fatal)?;
        let width = if options.kv == KvFormat::Bf16 { 2 } else { 4 };
        let head_dim = shape.hidden / shape.heads;
        let position = (2 * shape.layers * shape.kv_heads * head_dim * width) as u64;
        // On the device, eight-bit floats have more scales than in the file.
        let kept = bytes as f64 * if dtype == Dtype::F8_E4M3 { 33.0 / 32.0 } else { 1.0 };
        let room = options.memory.map(|memory| (memory - kept - BYTES_LEFT).max(0.0));
        let room = room.map_or(usize::MAX, |room| room as usize / PAGE / position as usize);
        let blocks = options.blocks().min(room).max(1);
        let setup =
            Setup { device: device.clone(), ranks, kv: options.kv, blocks, ..Setup::default() };
        let begun = Instant::now();
        let weights = Weights::for_ranks(&files, ranks).map_err(Error::fatal)?;
        let context = options.longest();
        let model = Model::new(&config, context, &weights, &setup).map_err(Error::fatal)?;
        let seconds = begun.elapsed().as_secs_f64();
        let of_tokens = if dtype == Dtype::F8_E4M3 { Dtype::BF16 } else { dtype };
        let embedding = of_tokens.bytes_of((shape.hidden * shape.vocabulary) as u64);
        let weights = bytes - embedding.unwrap_or_default();
        let bench = Self { options, named, device, model, weights, position };
        bench.print(json!({
            "kind": "load", "bytes": bytes, "seconds": seconds, "blocks": blocks,
            "gb_per_s": bytes as f64 / 1e9 / seconds, "computes": bench.model.arithmetic(),
        }));
        Ok(bench)
    }

    fn run(&mut self) -> Result<()> {
        for (recorded, sampled) in [(true, true), (true, false), (false, true)] {
            record_launches(&self.device, recorded);
            for context in self.options.contexts.clone() {
                for case in self.options.cases.clone() {
                    self.steps((recorded, sampled), context, case)?;
                }
            }
        }
        record_launches(&self.device, true);
        for tokens in self.options.prefill.clone() {
            self.prefill(tokens)?;
        }
        Ok(())
    }

    /// Times the steps of some sequences that have this context. They end with tokens that the device
    /// samples, or with logits.
    fn steps(
        &mut self,
        (recorded, sampled): (bool, bool),
        context: usize,
        (sequences, each): (usize, usize),
    ) -> Result<()> {
        let mut tables: Vec<_> = (0..sequences).map(|_| BlockTable::default()).collect();
        let cache = self.model.cache();
        let fits = |table: &mut BlockTable| assume(cache, table, context + each);
        if !tables.iter_mut().all(fits) {
            tables.into_iter().for_each(|table| self.model.cache().release(table));
            self.print(json!({
                "kind": "skipped", "sequences": sequences, "context": context,
                "why": "the keys and values do not fit into the memory",
            }));
            return Ok(());
        }
        let tokens = vec![7; each];
        let history = History::new(&tokens);
        let mut took = Vec::new();
        let mut begun = Instant::now();
        for step in 0.. {
            if step == WARM_UP {
                begun = Instant::now();
            }
            let (many, all) = (took.len() >= MIN_STEPS, begun.elapsed());
            if step > WARM_UP && (many && all >= MIN_TIME || all >= MAX_TIME) {
                break;
            }
            for table in &mut tables {
                self.model.cache().truncate(table, context);
                self.model.cache().reserve(table, each);
            }
            let chunks = tables.iter_mut();
            let chunks = chunks.map(|table| Chunk { table, tokens: &tokens, logits: each });
            let mut chunks: Vec<_> = chunks.collect();
            let begun = Instant::now();
            if sampled {
                run_sampled(&mut self.model, &mut chunks, &history)?;
            } else {
                self.model.forward(&mut chunks)?;
            }
            if step >= WARM_UP {
                took.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        tables.into_iter().for_each(|table| self.model.cache().release(table));
        took.sort_by(f64::total_cmp);
        let bytes = self.weights + sequences as u64 * context as u64 * self.position;
        let median = took[took.len() / 2];
        let roofline = self.options.bandwidth.map(|all| bytes as f64 / all / (median / 1e3));
        self.print(json!({
            "kind": "step", "recorded": recorded, "sampled": sampled, "sequences": sequences,
            "rows": sequences * each, "context": context, "steps": took.len(),
            "median_ms": median, "min_ms": took[0], "max_ms": took[took.len() - 1],
            "bytes": bytes, "roofline": roofline,
        }));
        Ok(())
    }

    /// Times the prefill of one prompt, the best of three.
    fn prefill(&mut self, tokens: usize) -> Result<()> {
        let mut took = f64::INFINITY;
        for _ in 0..3 {
            let mut table = BlockTable::default();
            if !self.model.cache().reserve(&mut table, tokens) {
                let why = "the keys and values do not fit into the memory";
                self.print(json!({ "kind": "skipped", "tokens": tokens, "why": why }));
                return Ok(());
            }
            let begun = Instant::now();
            let prompt = vec![7; tokens];
            for part in prompt.chunks(STEP_TOKENS) {
                self.model.forward(&mut [Chunk { table: &mut table, tokens: part, logits: 1 }])?;
            }
            took = took.min(begun.elapsed().as_secs_f64() * 1e3);
            self.model.cache().release(table);
        }
        self.print(json!({
            "kind": "prefill", "tokens": tokens, "ms": took,
            "tokens_per_s": tokens as f64 / took * 1e3,
        }));
        Ok(())
    }

    /// Prints a measurement with the fields that each line has.
    fn print(&self, mut value: Value) {
        for (name, field) in self.named.as_object().into_iter().flatten() {
            value[name] = field.clone();
        }
        print(&value);
    }
}

impl Options {
    /// Returns the number of pages that the largest case needs.
    fn blocks(&self) -> usize {
        let pages = |tokens: usize| tokens.div_ceil(PAGE);
        let cases = self.contexts.iter().flat_map(|context| {
            self.cases.iter().map(move |(sequences, each)| sequences * pages(context + each))
        });
        cases.chain(self.prefill.iter().map(|tokens| pages(*tokens))).max().unwrap_or(1)
    }

    /// Returns the length of the longest sequence.
    fn longest(&self) -> usize {
        let each = self.cases.iter().map(|(_, each)| *each).max().unwrap_or_default();
        let steps = self.contexts.iter().map(|context| context + each);
        steps.chain(self.prefill.iter().copied()).max().unwrap_or(1)
    }
}
