//! Tests of replies of one request that do not fit into memory at once.

use super::{
    Client, Options, Value, alone, answer, check_empty, crowded, json, measure, prompt, take, tiny,
    uncached,
};

/// Returns options with one place and memory for a request of 4096 tokens.
fn one_place() -> Options {
    Options { max_rolling_batch_size: Some(1), kv_cache_mb: Some(1), ..Options::default() }
}

/// Returns a request whose prompt takes 64 of the 128 blocks and each of its replies thirteen.
fn wide(n: usize) -> Value {
    json!({
        "prompt": "x".repeat(2050), "max_tokens": 400, "n": n, "ignore_eos": true, "temperature": 1.2
    })
}

#[track_caller]
fn check_pieces(options: Options, input: &Value) -> f64 {
    let llama = tiny().load(options).unwrap();
    let made = uncached(answer(&llama, input, 7, &[]).unwrap());
    assert_eq!(made, uncached(alone(input, 7)));
    check_empty(&llama);
    measure(&llama, "preemptions")
}

#[test]
fn the_cache_gets_what_the_option_says_however_few_the_places_are() {
    let blocks = |options| measure(&tiny().load(options).unwrap(), "kv_blocks");
    for places in [1, 2, 100] {
        let options = Options { max_rolling_batch_size: Some(places), ..one_place() };
        for mebibytes in [1, 2, 5] {
            let options = Options { kv_cache_mb: Some(mebibytes), ..options.clone() };
            assert_eq!(blocks(options), 128.0 * mebibytes as f64, "{places} places");
        }
    }
    for places in [1, 3] {
        let options = Options { max_rolling_batch_size: Some(places), ..Options::default() };
        assert_eq!(blocks(options), 128.0 * places as f64);
    }
}

#[test]
fn several_replies_run_together_where_the_memory_is_given_though_there_is_one_place() {
    let enough = Options { kv_cache_mb: Some(2), ..one_place() };
    assert_eq!(check_pieces(enough, &wide(6)), 0.0);
}

#[test]
fn replies_that_have_no_room_together_are_made_in_turns() {
    for caching in [true, false] {
        let options = Options { enable_prefix_caching: Some(caching), ..one_place() };
        let given_back = check_pieces(options, &wide(6));
        assert!((1.0..=15.0).contains(&given_back), "{given_back}");
    }
    // Steps too short for the prompt and for the tokens to recompute.
    let small = Options { max_num_batched_tokens: Some(64), ..one_place() };
    check_pieces(small, &wide(6));
}

#[test]
fn replies_that_fill_the_context_are_made_one_after_the_other() {
    // With its start token, the prompt ends in the middle of a block, or fills it, or leaves space
    // for one token.
    for prompt in [9, 100, 222, 223, 224, 254] {
        for (n, caching) in [(2, true), (5, true), (5, false)] {
            let options = Options {
                max_rolling_batch_size: Some(1),
                n_positions: Some(256),
                enable_prefix_caching: Some(caching),
                ..Options::default()
            };
            let input = json!({
                "prompt": "x".repeat(prompt), "n": n, "ignore_eos": true, "max_tokens": 255 - prompt
            });
            check_pieces(options, &input);
        }
    }
}

#[test]
fn drafted_replies_are_made_in_turns_too() {
    let ngram = Options {
        speculative_ngram: Some(2),
        speculative_length: Some(5),
        speculative_adaptive: Some(false),
        ..one_place()
    };
    assert!(check_pieces(ngram, &wide(6)) > 0.0);
    let (target, draft) = (tiny(), tiny());
    draft.draw_again(0.242);
    let always =
        Options { speculative_length: Some(5), speculative_adaptive: Some(false), ..one_place() };
    let llama = target.load_with_draft(&draft, always).unwrap();
    let made = uncached(answer(&llama, &wide(6), 7, &[]).unwrap());
    assert_eq!(made, uncached(alone(&wide(6), 7)));
    assert!(measure(&llama, "preemptions") > 0.0);
    assert!(measure(&llama, "speculation_accepted_tokens") > 100.0);
    check_empty(&llama);
}

#[test]
fn replies_made_in_turns_go_on_from_wherever_they_broke() {
    // Replies end at different positions, some in the same step.
    let ends: Vec<u32> = (0..2).collect();
    let mut input = wide(6);
    input["stop_token_ids"] = json!(ends);
    let whole = alone(&input, 7);
    let llama = tiny().load(one_place()).unwrap();
    for at in (0..=whole.0.len()).step_by(whole.0.len() / 9) {
        let again = answer(&llama, &input, 7, &whole.0[..at]).unwrap();
        assert_eq!(uncached(again), uncached(whole.clone()), "at {at}");
    }
    check_empty(&llama);
}

#[test]
fn more_replies_than_a_step_has_tokens_run_in_turns() {
    let input = json!({ "prompt": "x", "max_tokens": 30, "n": 9, "temperature": 1.3 });
    let filled = json!({ "prompt": "x".repeat(95), "max_tokens": 30, "n": 9, "ignore_eos": true });
    for tokens in [1, 2, 4] {
        let options = Options { max_num_batched_tokens: Some(tokens), ..crowded() };
        check_pieces(options.clone(), &input);
        check_pieces(options.clone(), &filled);
        let llama = tiny().load(options).unwrap();
        let whole = alone(&input, 7);
        for at in (0..=whole.0.len()).step_by(5) {
            let again = answer(&llama, &input, 7, &whole.0[..at]).unwrap();
            assert_eq!(uncached(again), uncached(whole.clone()), "at {at}");
        }
    }
}

#[test]
fn a_crowd_of_which_some_have_no_room_gets_the_replies_of_lone_runs() {
    let client = |at: u64| {
        let mut input = match at % 3 {
            0 => wide(6),
            1 => json!({ "prompt": prompt(at as usize, 1500), "max_tokens": 60, "n": 3 }),
            _ => {
                json!({ "prompt": prompt(at as usize, 700), "max_tokens": 200, "ignore_eos": true })
            }
        };
        input["priority"] = json!(at % 2);
        Client {
            tenant: at as usize % 4,
            input,
            seed: at % 2,
            leaves: (at % 5 == 4).then_some(100 * at as usize),
            sleeps: (at % 4 == 1).then(|| std::time::Duration::from_millis(30)),
            has: if at % 7 == 6 { 1111 } else { 0 },
        }
    };
    let clients: Vec<Client> = (0..12).map(client).collect();
    clients.iter().for_each(|client| drop(alone(&client.input, client.seed)));
    for places in [2, 8] {
        let options = Options { max_rolling_batch_size: Some(places), ..crowded() };
        let llama = tiny().load(options).unwrap();
        std::thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| take(&llama, client));
            }
        });
        check_empty(&llama);
    }
}
