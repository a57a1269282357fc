//! Short fuzzing pass: the seeds, and mutations of them from a fixed seed.

use std::collections::BTreeSet;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use allocation_counter::measure;
use nsbridge_testkit::fuzz::{TARGETS, Target, vocabulary_file};

/// Number of mutations of each seed, unless the environment variable `NSBRIDGE_TEST_MUTATIONS` has
/// another.
const MUTATIONS: u64 = 1000;

/// Maximum memory that is in use while a vocabulary is read and used: a multiple of the file, and the
/// tables that any vocabulary needs.
const MEMORY_FACTOR: u64 = 400;
const MEMORY: u64 = 4 << 20;

/// Eight-byte numbers that often break parsers.
const NUMBERS: [u64; 6] = [0, 1, u32::MAX as u64, 1 << 60, 1 << 63, u64::MAX];

/// Returns a copy of the seed with a few changes of the kinds that libFuzzer makes.
fn mutation(seed: &[u8], random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random(4) {
        let at = random(bytes.len().max(1));
        let end = (at + 1 + random(16)).min(bytes.len());
        match random(7) {
            _ if bytes.is_empty() => bytes.push(random(256) as u8),
            0 => bytes[at] = random(256) as u8,
            1 => bytes[at] ^= 1 << random(8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let copied = bytes[at..end].to_vec();
                let to = random(bytes.len());
                bytes.splice(to..to, copied);
            }
            5 => bytes[at] = bytes[at].wrapping_add(1),
            _ => {
                let number = NUMBERS[random(NUMBERS.len())].to_le_bytes();
                let end = (at + 8).min(bytes.len());
                bytes.splice(at..end, number);
            }
        }
    }
    bytes
}

/// Returns a generator of reproducible numbers below its argument: xorshift64*.
fn random() -> impl FnMut(usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

#[track_caller]
fn check(name: &str) {
    let target = TARGETS.into_iter().find(|target| target.name == name).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the testkit is an edge")]
    let mutations = env::var("NSBRIDGE_TEST_MUTATIONS");
    let mutations = mutations.map_or(MUTATIONS, |number| number.parse().unwrap());
    let mut random = random();
    let mut seen = BTreeSet::new();
    for seed in (target.seeds)() {
        run(target, &seed);
        for _ in 0..mutations {
            let bytes = mutation(&seed, &mut random);
            run(target, &bytes);
            if seen.len() <= 2000 {
                seen.insert(bytes);
            }
        }
    }
    assert!(seen.len() > 2000, "{} inputs differ", seen.len());
}

#[track_caller]
fn run(target: Target, bytes: &[u8]) {
    let is_vocabulary = target.name == "vocabulary";
    let file = if is_vocabulary { vocabulary_file(bytes) } else { bytes.into() };
    let mut used = None;
    let mut measured = || used = Some(measure(|| (target.run)(&file)));
    let done = if is_vocabulary {
        // The tokenizers crate keeps a cache for each vocabulary that a thread has used.
        thread::scope(|scope| scope.spawn(measured).join())
    } else {
        catch_unwind(AssertUnwindSafe(&mut measured))
    };
    assert!(done.is_ok(), "{} fails on {}", target.name, bytes.escape_ascii());
    if is_vocabulary {
        let used = used.map_or(0, |used| used.bytes_max);
        let most = MEMORY + MEMORY_FACTOR * file.len() as u64;
        assert!(used <= most, "{used} bytes for {}: {}", file.len(), bytes.escape_ascii());
    }
}

#[test]
fn mutated_safetensors_files_and_indices_end_in_order() {
    check("safetensors");
}

#[test]
fn mutated_gguf_files_end_in_order() {
    check("gguf");
}

#[test]
fn mutated_manifests_aliases_and_addresses_end_in_order() {
    check("manifest");
}

#[test]
fn mutated_frames_of_a_broker_end_in_order() {
    check("frames");
}

#[test]
fn mutated_shapes_of_a_model_end_in_order() {
    check("config");
}

#[test]
fn mutated_tokenizers_end_in_order() {
    check("tokenizer");
}

#[test]
fn mutated_vocabularies_of_gguf_files_end_in_order_and_take_memory_by_their_size() {
    let target = TARGETS.into_iter().find(|target| target.name == "vocabulary").unwrap();
    // The first run makes the tables that all runs share.
    (target.seeds)().iter().for_each(|seed| run(target, seed));
    check("vocabulary");
}

#[test]
fn mutated_response_formats_end_in_order() {
    check("format");
}
