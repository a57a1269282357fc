//! Tests that a reply equals that of a lone run, whatever the concurrent load and the preemptions.

mod turns;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::testing::{self, answer, check};
use nsbridge_handler::{AsyncHandler, Error, Finish, FinishReason, Pieces, Stop, TextPiece};
use nsbridge_llama::{Llama, Options};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::replies::{call, check_refused, uncached};
use crate::tiny::Tiny;

/// Returns a model with blocks of 8 KiB, so one request of 4096 tokens can need 1 MiB.
fn tiny() -> Tiny {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 48, "vocab_size": 258, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "max_position_embeddings": 4096, "tie_word_embeddings": true,
        "eos_token_id": 257
    });
    Tiny::new().with("config.json", &config)
}

/// Options with too little memory, few places, and steps that are shorter than the prompts.
fn crowded() -> Options {
    Options {
        max_rolling_batch_size: Some(8),
        job_queue_size: Some(100),
        max_num_batched_tokens: Some(64),
        kv_cache_mb: Some(1),
        ..Options::default()
    }
}

/// Returns a metric of the engine.
pub(crate) fn measure(llama: &Llama, name: &str) -> f64 {
    let measures = AsyncHandler::measures(llama);
    measures.iter().find(|measure| measure.name == name).expect(name).value
}

/// Behavior of one client.
#[derive(Clone, Debug)]
struct Client {
    tenant: usize,
    input: Value,
    seed: u64,
    /// Number of pieces after which it cancels.
    leaves: Option<usize>,
    /// Time for which it does not read.
    sleeps: Option<Duration>,
    /// Number of pieces that it has of an earlier attempt.
    has: usize,
}

type Reply = (Vec<TextPiece>, Finish);

/// Returns the reply of a model that serves no other request and has no prefix cache.
fn alone(input: &Value, seed: u64) -> Reply {
    type Known = (Arc<Llama>, HashMap<String, Reply>);
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let mut known = KNOWN.lock();
    let (llama, known) = known.get_or_insert_with(|| {
        let options = Options {
            enable_prefix_caching: Some(false),
            max_rolling_batch_size: Some(1),
            threads: Some(1),
            ..Options::default()
        };
        (tiny().load(options).unwrap(), HashMap::new())
    });
    // Several replies need the memory of several requests, so each is made by itself.
    let n = input.get("n").and_then(Value::as_u64);
    let mut one = |seed: u64| -> Reply {
        let mut input = input.clone();
        input.as_object_mut().unwrap().remove("n");
        let make = || answer(llama, &input, seed, &[]).unwrap();
        known.entry(format!("{seed} {input}")).or_insert_with(make).clone()
    };
    let Some(n) = n.filter(|n| *n > 1) else { return one(seed) };
    let replies: Vec<Reply> = (0..n).map(|index| one(seed + index)).collect();
    in_turns(&replies)
}

/// Returns the replies of one request in the order of their pieces.
fn in_turns(replies: &[Reply]) -> Reply {
    let longest = replies.iter().map(|(pieces, _)| pieces.len()).max().unwrap();
    let mut all = Vec::new();
    for at in 0..longest {
        for (index, (pieces, finish)) in replies.iter().enumerate() {
            let Some(piece) = pieces.get(at) else { continue };
            let mut piece = piece.clone();
            piece.index = index as u32;
            piece.finish_reason = (at + 1 == pieces.len()).then_some(finish.reason);
            all.push(piece);
        }
    }
    let mut finish = replies[0].1;
    finish.usage.output_tokens = all.len() as u64;
    (all, finish)
}

/// Reads the reply and compares it with that of a lone run, up to where the client leaves.
fn take(llama: &Llama, client: &Client) {
    let expected = alone(&client.input, client.seed);
    let (mut call, reader) = call(&client.input);
    call.info.seed = client.seed;
    call.info.scope = format!("tenant {}", client.tenant).into();
    call.info.account = call.info.scope.clone();
    let has = client.has.min(expected.0.len());
    if has > 0 {
        let pieces = expected.0[..has].iter().map(|piece| serde_json::to_vec(piece).unwrap());
        call.resume = Some(Pieces { first: 0, pieces: pieces.collect() });
    }
    let over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            let result = futures_executor::block_on(AnyHandler::call(llama, call));
            over.store(true, Ordering::Release);
            result
        });
        std::thread::sleep(client.sleeps.unwrap_or_default());
        while !over.load(Ordering::Acquire) {
            reader.mark_all_sent();
            if client.leaves.is_some_and(|pieces| reader.len() >= pieces) {
                reader.stop(Stop::Cancelled);
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        made.join().unwrap()
    });
    let pieces = testing::pieces(&reader).unwrap();
    match result {
        Ok(finish) => {
            let made = uncached((pieces, finish));
            assert_eq!(made, uncached(expected), "{client:?}");
        }
        Err(Error::Stopped(Stop::Cancelled)) => {
            assert!(client.leaves.is_some());
            assert_eq!(pieces, expected.0[..pieces.len()], "{client:?}");
        }
        Err(error) => panic!("{error} {client:?}"),
    }
}

/// Returns a prompt of up to three thousand tokens; many prompts have a common prefix.
fn prompt(kind: usize, length: usize) -> String {
    let line = |at: usize| format!("{} {at} of story {}; ", at * at % 97, kind % 3);
    let mut text: String = (0..length / 20).map(line).collect();
    text.push_str(["", "and why", "who?"][kind % 3]);
    text
}

prop_compose! {
    fn client()(
        tenant in 0..3usize, kind in 0..6usize, length in 1..1800usize, max_tokens in 1..40u32,
        n in prop_oneof![3 => Just(1u32), 1 => 2..6u32], temperature in prop_oneof![Just(0.0), Just(0.9)],
        priority in -1..2i32, seed in 0..3u64, leaves in prop::option::weighted(0.2, 0..30usize),
        sleeps in prop::option::weighted(0.2, 1..60u64), has in prop_oneof![3 => Just(0usize), 1 => 1..60usize],
        penalty in prop_oneof![Just(1.0), Just(1.3)], form in 0..10,
    ) -> Client {
        let mut input = json!({
            "prompt": prompt(kind, length), "max_tokens": max_tokens, "n": n,
            "temperature": temperature, "priority": priority, "repetition_penalty": penalty
        });
        if form < 2 {
            let regex = "[a-z]{3,20}(, [0-9]+){0,9}";
            input["response_format"] = json!({ "type": "regex", "regex": regex });
        }
        // The prompt comes before a single reply, or alone.
        if n == 1 && form >= 6 {
            input["prompt_logprobs"] = json!(form - 6);
            input["echo"] = json!(form == 7);
        }
        if n == 1 && form == 9 {
            input["max_tokens"] = json!(0);
        }
        let sleeps = sleeps.map(Duration::from_millis);
        Client { tenant, input, seed, leaves, sleeps, has }
    }
}

/// Checks that no request holds memory.
#[track_caller]
fn check_empty(llama: &Llama) {
    let begun = Instant::now();
    while measure(llama, "kv_blocks_held") + measure(llama, "engine_running") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "memory is held by nobody");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(measure(llama, "engine_waiting"), 0.0);
}

#[test]
fn any_crowd_gets_the_replies_of_lone_runs() {
    check_crowd(&tiny().load(crowded()).unwrap());
}

#[test]
fn any_crowd_that_is_drafted_gets_the_replies_of_lone_runs() {
    let (target, draft) = (tiny(), tiny());
    draft.draw_again(0.2);
    // Always drafts, although that does not pay: the draft is as large as the model.
    let always =
        Options { speculative_length: Some(5), speculative_adaptive: Some(false), ..crowded() };
    let llama = target.load_with_draft(&draft, always).unwrap();
    check_crowd(&llama);
    let counted =
        ["accepted", "wasted"].map(|kind| measure(&llama, &format!("speculation_{kind}_tokens")));
    assert!(counted.iter().all(|count| *count > 100.0), "{counted:?}");
}

#[test]
fn any_crowd_on_several_ranks_gets_the_replies_of_lone_runs() {
    let (target, draft) = (tiny(), tiny());
    draft.draw_again(0.242);
    let spread = Options {
        tensor_parallel_degree: Some(4),
        draft_model_tp_size: Some(2),
        threads: Some(1),
        speculative_length: Some(3),
        speculative_adaptive: Some(false),
        // With four ranks, each of the two key-value heads is stored twice.
        kv_cache_mb: crowded().kv_cache_mb.map(|mebibytes| 2 * mebibytes),
        ..crowded()
    };
    let llama = target.load_with_draft(&draft, spread).unwrap();
    check_crowd(&llama);
    assert!(measure(&llama, "speculation_accepted_tokens") > 100.0);
}

fn check_crowd(llama: &Arc<Llama>) {
    let clients = prop::collection::vec(client(), 1..14);
    let config = ProptestConfig { cases: 6, max_shrink_iters: 30, ..ProptestConfig::default() };
    let run = |clients: Vec<Client>| {
        // Computed beforehand, so that all clients begin at the same time.
        clients.iter().for_each(|client| drop(alone(&client.input, client.seed)));
        std::thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| take(llama, client));
            }
        });
        check_empty(llama);
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&clients, run).unwrap();
    // Memory suffices for six prompts, but for none of them with its whole reply.
    let grows = |seed| Client {
        tenant: seed as usize % 2,
        input: json!({
            "prompt": format!("{seed} {}", prompt(0, 600)), "max_tokens": 200, "ignore_eos": true
        }),
        seed,
        leaves: None,
        sleeps: None,
        has: 0,
    };
    run((0..8).map(grows).collect()).unwrap();
    // Otherwise there was no contention.
    for name in ["preemptions", "prefix_cache_hits", "prefix_cache_evictions"] {
        assert!(measure(llama, name) > 0.0, "{name}");
    }
}

#[test]
fn several_replies_to_a_prompt_are_those_of_the_seeds_that_follow() {
    let llama = tiny().load(Options::default()).unwrap();
    let input = json!({ "prompt": prompt(1, 700), "max_tokens": 20, "n": 3, "temperature": 1.2 });
    assert_eq!(check(&llama, &input), Ok(()));
    let fresh = tiny().load(Options::default()).unwrap();
    let (pieces, finish) = answer(&fresh, &input, 7, &[]).unwrap();
    assert_eq!((&pieces, finish), (&alone(&input, 7).0, alone(&input, 7).1));
    // The replies differ, and the prompt was run once.
    let of = |index: u32| -> Vec<u32> {
        pieces.iter().filter(|piece| piece.index == index).map(|piece| piece.token).collect()
    };
    assert!(of(0) != of(1) && of(1) != of(2) && of(0) != of(2));
    let made = pieces.len() as f64;
    assert!(measure(&fresh, "engine_tokens") <= 1.0 + finish.usage.input_tokens as f64 + made);
    // Resumes from any piece, also in the middle of a round, and with a prompt that fills its
    // blocks.
    let filled = json!({ "prompt": "x".repeat(95), "max_tokens": 4, "n": 3 });
    for (input, step) in [(input, 5), (filled, 1)] {
        let (pieces, _) = alone(&input, 7);
        for at in (0..=pieces.len()).step_by(step) {
            let again = answer(&llama, &input, 7, &pieces[..at]).unwrap();
            assert_eq!(again.0, pieces, "at {at}");
        }
    }
    check_empty(&llama);
}

#[test]
fn a_reply_that_ends_before_the_others_says_why() {
    let llama = tiny().load(Options::default()).unwrap();
    // Half of all bytes end a reply.
    let ends: Vec<u32> = (0..128).collect();
    let input = json!({
        "prompt": "x", "max_tokens": 12, "n": 8, "temperature": 1.5, "stop_token_ids": ends
    });
    let (pieces, finish) = answer(&llama, &input, 3, &[]).unwrap();
    assert_eq!((&pieces, finish), (&alone(&input, 3).0, alone(&input, 3).1));
    let ended: Vec<_> = pieces.iter().filter_map(|piece| piece.finish_reason).collect();
    assert_eq!(ended.len(), 8);
    assert!(ended.contains(&FinishReason::Stop), "{ended:?}");
    let lengths = |index| pieces.iter().filter(|piece| piece.index == index).count();
    assert!((1..8).any(|index| lengths(index) != lengths(0)), "all ended at once");
    check_empty(&llama);
}

#[test]
fn more_replies_than_there_can_be_are_refused_with_the_number() {
    let llama = tiny().load(crowded()).unwrap();
    check_refused(&llama, &json!({ "prompt": "x", "n": 0 }), &["`n`", "from 1 to 128"]);
    check_refused(&llama, &json!({ "prompt": "x", "n": 129 }), &["`n`", "from 1 to 128"]);
    // The maximum is allowed, however small the worker's steps are.
    let all = json!({ "prompt": "x", "n": 128, "max_tokens": 2, "ignore_eos": true });
    assert_eq!(answer(&llama, &all, 7, &[]).unwrap().0.len(), 256);
}

/// Two steps are the exact bound, which the schedule's own tests check. This test also counts the
/// steps between submission and the first plan, and between the last piece and its consumer.
#[test]
fn a_flood_of_long_prompts_does_not_hold_up_another_tenants_short_one() {
    let llama = tiny().load(crowded()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..100 {
            let (llama, over) = (&llama, &over);
            scope.spawn(move || {
                let input = json!({ "prompt": prompt(seed, 2000), "max_tokens": 20 });
                let (mut call, reader) = call(&input);
                (call.info.seed, call.info.account) = (seed as u64, "flood".into());
                std::thread::scope(|scope| {
                    let made = scope
                        .spawn(|| futures_executor::block_on(AnyHandler::call(&**llama, call)));
                    while !made.is_finished() {
                        reader.mark_all_sent();
                        if over.load(Ordering::Acquire) {
                            reader.stop(Stop::Cancelled);
                        }
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            });
        }
        while measure(&llama, "engine_running") + measure(&llama, "engine_waiting") < 100.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = |_: usize| {
            let before = measure(&llama, "engine_steps");
            let (mut call, _reader) = call(&json!({ "prompt": "short", "max_tokens": 1 }));
            call.info.account = "other".into();
            futures_executor::block_on(AnyHandler::call(&*llama, call)).unwrap();
            measure(&llama, "engine_steps") - before
        };
        let mut steps: Vec<f64> = (0..20).map(ended).collect();
        let left = measure(&llama, "engine_waiting");
        over.store(true, Ordering::Release);
        // Behind the flood it would be thousands of steps. A thread that is scheduled late adds a
        // few.
        steps.sort_by(f64::total_cmp);
        assert!(steps[10] <= 10.0, "{steps:?}");
        assert!(left > 50.0, "the flood was over");
    });
    check_empty(&llama);
}

#[test]
fn prompts_that_arrive_together_and_begin_alike_are_computed_once() {
    let options = Options { max_num_batched_tokens: Some(64), ..Options::default() };
    let llama = tiny().load(options).unwrap();
    let begin = prompt(1, 2000);
    let input = |end: usize| json!({ "prompt": format!("{begin} {end}"), "max_tokens": 3 });
    let expected: Vec<Reply> = (0..8).map(|end| alone(&input(end), 7)).collect();
    let everyone = Barrier::new(8);
    std::thread::scope(|scope| {
        for (end, expected) in expected.into_iter().enumerate() {
            let (llama, everyone, input) = (&llama, &everyone, input(end));
            scope.spawn(move || {
                everyone.wait();
                let made = answer(llama, &input, 7, &[]).unwrap();
                assert_eq!(uncached(made), uncached(expected));
            });
        }
    });
    // The end of each prompt is its own: less than two blocks of 32 tokens.
    let computed = measure(&llama, "prefix_cache_misses");
    assert!(computed <= 2000.0 + 8.0 * 64.0, "{computed}");
    check_empty(&llama);
}

/// Blocks have 32 tokens, and these lengths begin at eleven positions of a block.
#[test]
fn m1_a_request_that_gave_memory_to_another_goes_on_with_what_it_has() {
    let llama = tiny().load(crowded()).unwrap();
    let client =
        |tenant, input| Client { tenant, input, seed: 7, sleeps: None, leaves: None, has: 0 };
    for length in (40..72).step_by(3) {
        let many = json!({
            "prompt": "a".repeat(length), "n": 12, "max_tokens": 320, "ignore_eos": true
        });
        let other = json!({ "prompt": "b".repeat(700 + length), "max_tokens": 40 });
        let (many, other) = (client(0, many), client(1, other));
        // Computed beforehand, so that both run at the same time.
        for client in [&many, &other] {
            drop(alone(&client.input, client.seed));
        }
        std::thread::scope(|scope| {
            let made = scope.spawn(|| take(&llama, &many));
            while !made.is_finished() {
                take(&llama, &other);
            }
        });
    }
    assert!(measure(&llama, "preemptions") > 7.0);
    check_empty(&llama);
}

#[test]
fn every_measure_has_a_row_for_the_operator_and_every_row_a_measure() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("\n## ").find(|it| it.starts_with("Metrics of the Llama handler"));
    let lines = section.unwrap().lines();
    let rows = lines.filter_map(|line| line.strip_prefix("| `nsbridge_handler_"));
    let mut told: Vec<&str> =
        rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name).collect();
    let options = Options { speculative_ngram: Some(3), ..Options::default() };
    let measures = AsyncHandler::measures(&*tiny().load(options).unwrap());
    let mut names: Vec<&str> = measures.iter().map(|measure| measure.name).collect();
    names.sort_unstable();
    names.dedup();
    told.sort_unstable();
    assert_eq!(told, names);
}
