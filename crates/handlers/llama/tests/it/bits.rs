//! Tests that a token's logits are bit-identical, whatever the batch, the ranks and the threads.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use nsbridge_llama::{
    Arithmetic, Backend, Bf16Order, BlockTable, Chunk, Format, KvFormat, Model, Setup, Tier,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gpu::emulators;
use crate::network;
use crate::tiny::write_drawn;

/// Shape with sliding windows, biases, norms of heads, grouped heads, and columns in eight segments
/// of 32.
fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": 64, "intermediate_size": 256, "vocab_size": 70,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 40, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "max_position_embeddings": 700, "tie_word_embeddings": true, "attention_bias": true,
        "use_sliding_window": true, "sliding_window": 300, "max_window_layers": 1
    })
}

/// Shape that eight ranks can share, with groups of four that have the same key-value head. Five
/// ranks hold all tokens of the vocabulary, in tiles of 16 rows.
fn wide_config() -> Value {
    let mut config = config();
    for (name, value) in [("num_attention_heads", 8), ("head_dim", 32)] {
        config[name] = value.into();
    }
    config["tie_word_embeddings"] = false.into();
    config
}

fn drawn(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_drawn(dir.path(), config, 3, 0.2);
    dir
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Usual,
    Wide,
}

impl Which {
    fn dir(self) -> &'static Path {
        static DIRS: [OnceLock<TempDir>; 2] = [OnceLock::new(), OnceLock::new()];
        match self {
            Self::Usual => DIRS[0].get_or_init(|| drawn(&config())).path(),
            Self::Wide => DIRS[1].get_or_init(|| drawn(&wide_config())).path(),
        }
    }

    /// Returns the folder of the model in a format to which the engine does not convert.
    #[cfg(feature = "testing")]
    fn dir_in(self, format: Format) -> &'static Path {
        type Known = HashMap<(Which, String), &'static TempDir>;
        static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap();
        let made = || {
            let dir = tempfile::tempdir().unwrap();
            let file = std::fs::File::create(dir.path().join("model.gguf")).unwrap();
            std::fs::copy(self.dir().join("config.json"), dir.path().join("config.json")).unwrap();
            let model = nsbridge_handler::Model::in_dir(self.dir());
            nsbridge_llama::testing::write_in(&model, format, &file).unwrap();
            &*Box::leak(Box::new(dir))
        };
        let key = (self, format.to_string());
        known.get_or_insert_default().entry(key).or_insert_with(made).path()
    }
}

/// Formats to which the engine converts the weights of the file.
const CONVERTED: [Format; 4] = [Format::F32, Format::Bf16, Format::F16, Format::Q8_0];

/// Formats in blocks of 32 that only a file can have.
#[cfg(feature = "testing")]
const STORED: &[Format] =
    &[Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Iq4Nl, Format::Mxfp4];
#[cfg(not(feature = "testing"))]
const STORED: &[Format] = &[];

fn formats() -> impl Strategy<Value = Format> {
    prop::sample::select([&CONVERTED[..], STORED].concat())
}

/// Formats of a model and the order of products in bf16, if there are any: they determine its bits
/// besides the files.
type Formats = (Format, KvFormat, Option<Bf16Order>);

fn orders() -> impl Strategy<Value = Option<Bf16Order>> {
    prop::sample::select(vec![None, Some(Bf16Order::Pairs), Some(Bf16Order::Blocks)])
}

type Bits = Vec<u32>;

fn bits(logits: &[f32]) -> Bits {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i + 7 * seed * i + seed) % 70).collect()
}

const MAX_TOKENS: usize = 600;

/// Returns the logits of a prompt's tokens run alone, one by one, on one thread of the portable
/// tier.
fn alone(seed: u32, which: Which, formats: Formats) -> Vec<Bits> {
    type Known = HashMap<(u32, Which, String), Vec<Bits>>;
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap();
    let key = (seed, which, format!("{formats:?}"));
    let all = known.get_or_insert_default().entry(key).or_insert_with(|| {
        let mut model = open(which, formats, Tier::Portable, (1, 1));
        let all = network::logits(&mut model, &prompt(seed, MAX_TOKENS), 1);
        all.iter().map(|logits| bits(logits)).collect()
    });
    all.clone()
}

fn open(
    which: Which,
    (format, kv, order): Formats,
    tier: Tier,
    (ranks, threads): (usize, usize),
) -> Model {
    open_on(Backend::Cpu, which, (format, kv, order), tier, (ranks, threads))
}

fn open_on(
    device: Backend,
    which: Which,
    (format, kv, order): Formats,
    tier: Tier,
    (ranks, threads): (usize, usize),
) -> Model {
    let setup = Setup {
        device,
        ranks,
        threads: Some(threads),
        arithmetic: if order.is_some() { Arithmetic::Native } else { Arithmetic::Portable },
        bf16_order: order,
        tier: Some(tier),
        format: CONVERTED.contains(&format).then_some(format),
        kv,
        blocks: 3 * MAX_TOKENS.div_ceil(32),
        ..Setup::default()
    };
    #[cfg(feature = "testing")]
    if STORED.contains(&format) {
        return network::open(which.dir_in(format), &setup);
    }
    network::open(which.dir(), &setup)
}

/// Sequence of a schedule.
struct Running {
    seed: u32,
    tokens: Vec<u32>,
    table: BlockTable,
    done: usize,
}

/// Event of one step, for each of three places: how many tokens run, or whether the sequence makes
/// way for another one or drops its last tokens.
#[derive(Clone, Debug)]
enum Event {
    Run(usize),
    Rest,
    Replace(u32),
    Forget(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..90usize).prop_map(Event::Run),
        3 => Just(Event::Run(1)),
        1 => Just(Event::Rest),
        1 => (0..4u32).prop_map(Event::Replace),
        1 => (1..70usize).prop_map(Event::Forget),
    ]
}

fn check(model: &mut Model, which: Which, formats: Formats, steps: &[[Event; 3]]) {
    let new = |seed| Running {
        seed,
        tokens: prompt(seed, MAX_TOKENS),
        table: BlockTable::default(),
        done: 0,
    };
    let scope = Arc::from("tenant");
    let mut places = [new(0), new(1), new(2)];
    for step in steps {
        let mut counts = [0; 3];
        for ((place, event), count) in places.iter_mut().zip(step).zip(&mut counts) {
            match event {
                Event::Run(tokens) => *count = (*tokens).min(MAX_TOKENS - place.done),
                Event::Rest => {}
                Event::Replace(seed) => {
                    model.cache().release(std::mem::replace(place, new(*seed)).table);
                    // Starts from cached blocks of an earlier sequence with this seed.
                    model.cache().recall(&mut place.table, &scope, &place.tokens);
                    place.done = place.table.len();
                }

                Event::Forget(tokens) => {
                    place.done = place.done.saturating_sub(*tokens);
                    model.cache().truncate(&mut place.table, place.done);
                }
            }
            assert!(model.cache().reserve(&mut place.table, *count));
        }
        let running = places.iter_mut().zip(counts).filter(|(_, count)| *count > 0);
        let mut chunks: Vec<_> = running
            .map(|(place, count)| Chunk {
                table: &mut place.table,
                tokens: &place.tokens[place.done..place.done + count],
                logits: count,
            })
            .collect();
        if chunks.is_empty() {
            continue;
        }
        let logits: Vec<Bits> = model.forward(&mut chunks).unwrap().rows().map(bits).collect();
        let mut logits = logits.iter();
        for (place, count) in places.iter_mut().zip(counts) {
            let right = alone(place.seed, which, formats);
            for (position, right) in right.iter().enumerate().skip(place.done).take(count) {
                assert!(logits.next() == Some(right), "position {position}");
            }
            place.done += count;
            model.cache().remember(&mut place.table, &scope, &place.tokens);
        }
    }
    for place in places {
        model.cache().release(place.table);
    }
    assert_eq!(model.cache().free(), 3 * MAX_TOKENS.div_ceil(32));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_on_any_tier_and_threads_gives_the_bits_of_the_lone_run(
        format in formats(),
        kv in prop::sample::select(vec![KvFormat::F32, KvFormat::Bf16]),
        tier in prop::sample::select(Tier::available().collect::<Vec<_>>()),
        order in orders(),
        threads in 1..4usize,
        steps in prop::collection::vec([event(), event(), event()], 1..14),
    ) {
        let formats = (format, kv, order);
        let mut model = open(Which::Usual, formats, tier, (1, threads));
        check(&mut model, Which::Usual, formats, &steps);
    }

    #[test]
    fn any_schedule_on_any_number_of_ranks_gives_the_bits_of_one(
        format in formats(),
        kv in prop::sample::select(vec![KvFormat::F32, KvFormat::Bf16]),
        ranks in prop::sample::select(vec![2usize, 4, 8]),
        order in orders(),
        threads in 1..3usize,
        steps in prop::collection::vec([event(), event(), event()], 1..14),
    ) {
        let formats = (format, kv, order);
        let mut model = open(Which::Wide, formats, Tier::best(), (ranks, ranks * threads));
        check(&mut model, Which::Wide, formats, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_on_a_gpu_gives_the_bits_of_the_cpu(
        format in prop::sample::select(&CONVERTED[..]),
        kv in prop::sample::select(vec![KvFormat::F32, KvFormat::Bf16]),
        ranks in prop::sample::select(vec![1usize, 1, 2, 4, 8]),
        order in 0..20u32,
        steps in prop::collection::vec([event(), event(), event()], 1..10),
    ) {
        let formats = (format, kv, None);
        let which = if ranks == 1 { Which::Usual } else { Which::Wide };
        let device = emulators(ranks, order, Arithmetic::Portable);
        let mut model = open_on(device, which, formats, Tier::best(), (ranks, ranks));
        check(&mut model, which, formats, &steps);
    }
}

/// Checksums of the arithmetic. A change to them requires a higher `ARITHMETIC_VERSION`.
#[test]
fn the_bits_are_those_of_this_version_of_the_arithmetic() {
    for (formats, expected) in [
        ((Format::F32, KvFormat::F32, None), 0xcb01_a212_6074_f86e_u64),
        ((Format::Q8_0, KvFormat::Bf16, None), 0xc647_f2a2_bccf_1080),
        ((Format::Bf16, KvFormat::F32, Some(Bf16Order::Pairs)), 0x5fc9_57b2_5bf6_de8a),
        ((Format::Bf16, KvFormat::F32, Some(Bf16Order::Blocks)), 0x71b1_6dc9_c622_1f41),
    ] {
        let all = alone(1, Which::Usual, formats);
        let mixed = all.iter().flatten().fold(0u64, |mixed, bits| {
            (mixed ^ u64::from(*bits)).wrapping_mul(0x100_0000_01b3).rotate_left(29)
        });
        assert_eq!(mixed, expected, "{formats:?}: {mixed:#x}");
    }
}
