//! Soak test: random load on one engine with barely enough memory.
//!
//! `cargo run --release -p nsbridge-llama --example soak -- examples/models/tale-7m 600` runs for
//! 600 seconds. Its clients request replies of all lengths and kinds, read slowly, cancel, and
//! flood. It fails if the engine stalls, if a reply differs from that of its lone run, if memory is
//! still held at the end or grows, or if scheduling takes 2 % of the model's time.
#![expect(clippy::print_stdout, reason = "what it is for")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::{AsyncHandler, Error, Model, Models, Stop, testing};
use nsbridge_llama::{Config, KvFormat, Llama, Memory, Options};
use parking_lot::Mutex;
use serde_json::{Value, json};

const CLIENTS: u64 = 40;
/// Number of those clients that belong to one tenant.
const FLOOD: u64 = 20;
const PLACES: usize = 16;
/// Time limit of a request, after which it counts as lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum time between two steps while there is work to do.
const STANDSTILL: Duration = Duration::from_secs(5);
const WORDS: [&str; 12] = [
    "the",
    "lighthouse",
    "keeper",
    "said",
    "and",
    "the rain",
    "fell",
    "on",
    "a",
    "small",
    "boat",
    "again.",
];

type Fault = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let run = match &arguments[..] {
        [model, seconds] => seconds
            .parse()
            .map_err(Fault::from)
            .and_then(|seconds| soak(Path::new(model), Duration::from_secs(seconds))),
        _ => Err("usage: soak MODEL SECONDS".into()),
    };
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("FAILED: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// State shared by all clients.
struct World {
    llama: Arc<Llama>,
    context: u64,
    over: AtomicBool,
    ended: AtomicU64,
    cancelled: AtomicU64,
    /// Requests whose replies were recorded, to be repeated later.
    kept: Mutex<Vec<(Value, u64, Vec<u8>)>>,
    fault: Mutex<Option<String>>,
}

fn soak(model: &Path, time: Duration) -> Result<(), Fault> {
    let config = Config::read(&Model::in_dir(model))?;
    // A third of the memory that this many requests can need.
    let all = Memory::new(&config, 1, 0.0, KvFormat::F32, PLACES * config.context);
    let megabytes = (all.bytes() / 3).div_ceil(1 << 20) as usize;
    let options = Options {
        max_rolling_batch_size: Some(PLACES),
        job_queue_size: Some(CLIENTS as usize),
        kv_cache_mb: Some(megabytes),
        kv_cache_dtype: Some(KvFormat::F32),
        ..Options::default()
    };
    let models: Models = [("target".to_owned(), Model::in_dir(model))].into_iter().collect();
    let world = World {
        llama: testing::load(options, models).map_err(|error| error.to_string())?,
        context: config.context as u64,
        over: AtomicBool::new(false),
        ended: AtomicU64::new(0),
        cancelled: AtomicU64::new(0),
        kept: Mutex::default(),
        fault: Mutex::default(),
    };
    println!("{CLIENTS} clients, {PLACES} places, {megabytes} MiB for keys and values");
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let world = &world;
            scope.spawn(move || be_a_client(world, client));
        }
        watch(&world, time);
        world.over.store(true, Ordering::Release);
    });
    judge(&world)
}

/// Monitors the engine, and reports a fault if it stalls or its memory grows.
fn watch(world: &World, time: Duration) {
    let (begun, mut moved, mut steps, mut early) = (Instant::now(), Instant::now(), 0.0, None);
    let mut full: f64 = 0.0;
    while begun.elapsed() < time && world.fault().is_none() {
        thread::sleep(Duration::from_millis(500));
        let now = world.measure("engine_steps");
        if now > steps {
            (steps, moved) = (now, Instant::now());
        } else if moved.elapsed() > STANDSTILL {
            world.fail("the engine stands still".into());
        }
        full = full.max(world.measure("kv_blocks_held") / world.measure("kv_blocks"));
        if begun.elapsed() > time / 5 && early.is_none() {
            early = resident();
        }
    }
    let (early, late) = (early.unwrap_or(0), resident().unwrap_or(0));
    println!(
        "{} replies, {} cancelled, {steps} steps; at most {:.0} % of the memory for keys and \
         values held; resident {early} MiB early, {late} MiB late",
        world.ended.load(Ordering::Relaxed),
        world.cancelled.load(Ordering::Relaxed),
        100.0 * full,
    );
    if late > early + early / 20 + 32 {
        world.fail("its memory grows".into());
    }
    if full < 0.9 {
        world.fail("the memory was never nearly full".into());
    }
}

/// Checks the engine after the last client has left.
fn judge(world: &World) -> Result<(), Fault> {
    let begun = Instant::now();
    while world.measure("kv_blocks_held") > 0.0 {
        if begun.elapsed() > STANDSTILL {
            world.fail("blocks are held by nobody".into());
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    for measure in AsyncHandler::measures(&*world.llama) {
        println!("{:28} {:.1}", measure.name, measure.value);
    }
    let share = world.measure("engine_schedule_seconds") / world.measure("engine_model_seconds");
    println!("schedule / model             {:.2} %", 100.0 * share);
    if share >= 0.02 {
        world.fail("deciding what runs takes too long".into());
    }
    let kept = std::mem::take(&mut *world.kept.lock());
    for (input, seed, pieces) in &kept {
        if ask(world, input, *seed, "alone", &Manner::default())?.as_ref() != Some(pieces) {
            world.fail(format!("another reply alone: seed {seed}, {input}"));
        }
    }
    println!("{} replies asked for once more, alone", kept.len());
    world.fault().map_or(Ok(()), |fault| Err(fault.into()))
}

impl World {
    fn measure(&self, name: &str) -> f64 {
        let measures = AsyncHandler::measures(&*self.llama);
        measures.iter().find(|measure| measure.name == name).map_or(f64::NAN, |found| found.value)
    }

    fn fail(&self, why: String) {
        self.fault.lock().get_or_insert(why);
    }

    fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }
}

/// Manner in which a client reads its reply.
#[derive(Default)]
struct Manner {
    cancels_after: Option<usize>,
    sleeps: Duration,
}

fn be_a_client(world: &World, client: u64) {
    let mut dice = Dice(client + 1);
    let tenant = if client < FLOOD { 0 } else { 1 + client % 5 };
    while !world.over.load(Ordering::Acquire) {
        let (input, seed) = (request(&mut dice, world.context), dice.below(1000));
        let manner = Manner {
            cancels_after: (dice.below(6) == 0).then(|| dice.below(40) as usize),
            sleeps: Duration::from_millis(if dice.below(8) == 0 { dice.below(500) } else { 0 }),
        };
        match ask(world, &input, seed, &format!("tenant {tenant}"), &manner) {
            Ok(Some(pieces)) => {
                world.ended.fetch_add(1, Ordering::Relaxed);
                let mut kept = world.kept.lock();
                if kept.len() < 200 && dice.below(20) == 0 {
                    kept.push((input, seed, pieces));
                }
            }
            Ok(None) => drop(world.cancelled.fetch_add(1, Ordering::Relaxed)),
            Err(error) => return world.fail(error.to_string()),
        }
        if client >= FLOOD {
            thread::sleep(Duration::from_millis(dice.below(300)));
        }
    }
}

/// Returns the bytes of all pieces, or `None` if the request was canceled.
fn ask(
    world: &World,
    input: &Value,
    seed: u64,
    scope: &str,
    manner: &Manner,
) -> Result<Option<Vec<u8>>, Fault> {
    let (mut call, reader) = testing::call(input, seed);
    call.info.scope = scope.into();
    let begun = Instant::now();
    let result = thread::scope(|scope| {
        let made =
            scope.spawn(|| futures_executor::block_on(AnyHandler::call(&*world.llama, call)));
        thread::sleep(manner.sleeps);
        while !made.is_finished() {
            reader.mark_all_sent();
            if manner.cancels_after.is_some_and(|pieces| reader.len() >= pieces) {
                reader.stop(Stop::Cancelled);
            }
            if begun.elapsed() > REQUEST_TIMEOUT {
                world.fail(format!("a request took over {} s: {input}", REQUEST_TIMEOUT.as_secs()));
                reader.stop(Stop::Cancelled);
            }
            thread::sleep(Duration::from_millis(2));
        }
        made.join()
    });
    match result.map_err(|_| "a call panicked")? {
        Ok(_) => Ok(Some(reader.pieces().encode())),
        Err(Error::Stopped(_)) => Ok(None),
        Err(error) => Err(format!("{error}: {input}").into()),
    }
}

fn request(dice: &mut Dice, context: u64) -> Value {
    // Most prompts are short, some nearly fill the context; many have a common prefix.
    let words = if dice.below(5) == 0 { dice.below(context / 3) } else { dice.below(60) };
    let story = dice.below(4);
    let word = |at: u64| WORDS[((at * (story + 3) + at / 7) % 12) as usize];
    let prompt: Vec<&str> = (0..=words).map(word).collect();
    let longest = if dice.below(4) == 0 { 200 } else { 40 };
    let temperature = [0.0, 0.7, 1.3][dice.below(3) as usize];
    let mut input = json!({
        "prompt": prompt.join(" "), "max_tokens": 1 + dice.below(longest),
        "temperature": temperature, "priority": dice.below(3),
    });
    match dice.below(6) {
        0 => input["n"] = json!(2 + dice.below(4)),
        1 => input["repetition_penalty"] = json!(1.2),
        2 => input["top_p"] = json!(0.9),
        3 => input["logprobs"] = json!(true),
        4 => {
            let regex = "[a-z]{3,20}(, [0-9]+){0,9}";
            input["response_format"] = json!({ "type": "regex", "regex": regex });
        }
        _ => {}
    }
    input
}

/// Returns the resident memory of this process, in MiB.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes / 1024)
}

/// Knuth's linear congruential generator, for the same load in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}
