//! Tests of prompts of token ids, of echoed prompts and of the log-probabilities of prompts.

use std::sync::Arc;

use nsbridge_handler::testing::{answer, check};
use nsbridge_handler::{Error, Finish, FinishReason, TextPiece};
use nsbridge_llama::{Llama, Options, Scratch, Setup, logprobs};
use serde_json::{Value, json};

use crate::network;
use crate::replies::{check_refused, uncached};
use crate::tiny::{BOS, Tiny};

/// Bytes that are the tokens of the prompts here; `é` has two.
const TEXT: &str = "a caf\u{e9} by the sea, and a lighthouse keeper who writes down each ship";

fn load(options: Options) -> Arc<Llama> {
    Tiny::endless().load(options).unwrap()
}

fn llama() -> Arc<Llama> {
    load(Options::default())
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn with(base: &Value, more: &Value) -> Value {
    let mut input = base.clone();
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    input
}

fn scored(tokens: &[u32], top: u32) -> Value {
    json!({ "prompt_token_ids": tokens, "prompt_logprobs": top, "max_tokens": 5, "temperature": 0.8 })
}

fn ask(llama: &Arc<Llama>, input: &Value) -> (Vec<TextPiece>, Finish) {
    answer(llama, input, 7, &[]).unwrap()
}

/// Returns the pieces of the prompt and those of the reply.
fn parts(pieces: &[TextPiece]) -> (&[TextPiece], &[TextPiece]) {
    pieces.split_at(pieces.iter().take_while(|piece| piece.prompt).count())
}

fn text(pieces: &[TextPiece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

#[test]
fn a_prompt_of_token_ids_is_run_as_it_is() {
    let llama = llama();
    let begun: Vec<u32> = [BOS].into_iter().chain(ids(TEXT)).collect();
    let input = |prompt: Value| with(&json!({ "max_tokens": 8, "temperature": 0.8 }), &prompt);
    let (as_text, as_ids) = (json!({ "prompt": TEXT }), json!({ "prompt_token_ids": begun }));
    assert_eq!(ask(&llama, &input(as_text.clone())).0, ask(&llama, &input(as_ids)).0);
    // Without the start token, none is added.
    let (pieces, finish) = ask(&llama, &input(json!({ "prompt_token_ids": ids(TEXT) })));
    assert_eq!(finish.usage.input_tokens, TEXT.len() as u64);
    assert_ne!(pieces, ask(&llama, &input(as_text)).0);
    assert_eq!(parts(&pieces).0, []);
}

#[test]
fn prompts_of_token_ids_are_refused_in_words_that_name_them() {
    let llama = llama();
    let both = json!({ "prompt": "x", "prompt_token_ids": [1] });
    for input in [both, json!({ "prompt_token_ids": [] })] {
        check_refused(&llama, &input, &["exactly one of", "`prompt_token_ids`"]);
    }
    let unknown = json!({ "prompt_token_ids": [1, 258] });
    check_refused(&llama, &unknown, &["`prompt_token_ids`", "from 0 to 257"]);
    for tokens in [160, 161, 5000] {
        let full = json!({ "prompt_token_ids": vec![1; tokens] });
        check_refused(&llama, &full, &[&format!("{tokens} tokens"), "context of 160"]);
    }
    assert_eq!(ask(&llama, &json!({ "prompt_token_ids": vec![1; 159] })).0.len(), 1);
    let nothing = json!({ "prompt": "x", "max_tokens": 0 });
    check_refused(&llama, &nothing, &["`max_tokens`", "`echo`", "`prompt_logprobs`"]);
    let several = json!({ "prompt": "x", "echo": true, "n": 2 });
    check_refused(&llama, &several, &["`n` must be 1"]);
    let many = json!({ "prompt": "x", "prompt_logprobs": 21 });
    check_refused(&llama, &many, &["`prompt_logprobs` must be at most 20"]);
}

#[test]
fn log_probabilities_of_a_prompt_are_to_the_bit_those_of_the_models_logits() {
    let tiny = Tiny::endless();
    let tokens = ids(TEXT);
    let rows = network::logits(&mut network::open(tiny.path(), &Setup::default()), &tokens, 7);
    let (pieces, finish) = ask(&tiny.load(Options::default()).unwrap(), &scored(&tokens, 3));
    let (prompt, reply) = parts(&pieces);
    assert_eq!((prompt.len(), reply.len()), (tokens.len(), 5));
    assert_eq!(finish.usage.input_tokens, tokens.len() as u64);
    assert_eq!(finish.usage.output_tokens, 5);
    let first = TextPiece { prompt: true, ..TextPiece::new(tokens[0], "") };
    assert_eq!(prompt[0], first);
    for ((piece, &token), row) in prompt[1..].iter().zip(&tokens[1..]).zip(&rows) {
        let all = logprobs(row, token, row.len(), &mut Scratch::default()).unwrap();
        assert_eq!((piece.token, piece.text.as_str()), (token, ""));
        assert_eq!(piece.logprob.map(f32::to_bits), Some(all.chosen.to_bits()));
        let top = piece.top_logprobs.iter().map(|top| (top.token, top.logprob));
        assert_eq!(top.collect::<Vec<_>>(), all.top[..3]);
        let rank = all.top.iter().position(|(other, _)| *other == token).unwrap() + 1;
        assert_eq!(piece.rank, Some(rank as u32));
    }
}

#[test]
fn log_probabilities_of_a_prompt_do_not_depend_on_chunks_ranks_the_cache_or_neighbors() {
    let input = scored(&ids(TEXT), 5);
    let expected = uncached(ask(&llama(), &input));
    let steps = |tokens| Options { max_num_batched_tokens: Some(tokens), ..Options::default() };
    let ranks = Options { tensor_parallel_degree: Some(2), ..Options::default() };
    let uncaching = Options { enable_prefix_caching: Some(false), ..Options::default() };
    for options in [steps(1), steps(9), steps(24), steps(1000), ranks, uncaching] {
        let llama = load(options.clone());
        for _ in 0..2 {
            assert_eq!(uncached(ask(&llama, &input)), expected, "{options:?}");
        }
        let other = with(&input, &json!({ "prompt_token_ids": ids("another prompt") }));
        std::thread::scope(|scope| {
            let made: Vec<_> = (0..6)
                .map(|at| {
                    let (llama, input) = (&llama, if at % 2 == 0 { &input } else { &other });
                    scope.spawn(move || ask(llama, input))
                })
                .collect();
            for made in made.into_iter().step_by(2) {
                assert_eq!(uncached(made.join().unwrap()), expected, "{options:?}");
            }
        });
    }
}

#[test]
fn a_prompt_has_the_log_probabilities_that_its_tokens_had_as_a_reply() {
    for options in [
        Options::default(),
        Options { speculative_ngram: Some(3), ..Options::default() },
        Options { kv_cache_dtype: Some(nsbridge_llama::KvFormat::Bf16), ..Options::default() },
    ] {
        let llama = load(options);
        let made = json!({
            "prompt_token_ids": ids(TEXT), "max_tokens": 60, "temperature": 0.8,
            "logprobs": true, "top_logprobs": 4
        });
        let made = ask(&llama, &made).0;
        let tokens: Vec<u32> =
            ids(TEXT).into_iter().chain(made.iter().map(|piece| piece.token)).collect();
        let pieces = ask(&llama, &scored(&tokens, 4)).0;
        let (prompt, _) = parts(&pieces);
        for (piece, made) in prompt[TEXT.len()..].iter().zip(&made) {
            assert_eq!((piece.token, piece.logprob), (made.token, made.logprob));
            assert!(piece.top_logprobs == made.top_logprobs);
        }
    }
}

#[test]
fn an_echoed_reply_begins_with_the_prompt_and_goes_on_as_without() {
    let llama = llama();
    let plain = json!({ "prompt": TEXT, "max_tokens": 9, "temperature": 0.8 });
    let (alone, _) = ask(&llama, &plain);
    let (pieces, finish) = ask(&llama, &with(&plain, &json!({ "echo": true })));
    let (prompt, reply) = parts(&pieces);
    assert_eq!((text(prompt).as_str(), reply), (TEXT, &alone[..]));
    // One piece is the start token, which has no text.
    assert_eq!((prompt.len(), prompt[0].token), (TEXT.len() + 1, BOS));
    assert!(prompt.iter().all(|piece| piece.logprob.is_none() && piece.rank.is_none()));
    assert_eq!((finish.usage.output_tokens, finish.reason), (9, FinishReason::Length));
    // A stop text ends the reply only where the reply has it.
    let stop = with(&plain, &json!({ "echo": true, "stop": ["sea"] }));
    assert_eq!(ask(&llama, &stop).0, pieces);
    // With `logprobs`, the echoed tokens have them too.
    let told = json!({ "echo": true, "logprobs": true, "top_logprobs": 2 });
    let (told, _) = ask(&llama, &with(&plain, &told));
    assert!(told[1..].iter().all(|piece| piece.logprob.is_some() && piece.top_logprobs.len() == 2));
    let own = with(&plain, &json!({ "prompt_logprobs": 2 }));
    for (echoed, own) in parts(&told).0.iter().zip(parts(&ask(&llama, &own).0).0) {
        assert_eq!(&TextPiece { text: String::new(), ..echoed.clone() }, own);
    }
}

#[test]
fn an_echoed_prompt_that_ends_in_a_part_of_a_character_leaves_the_reply_alone() {
    let llama = llama();
    let tokens = &ids(TEXT)[..6];
    let input = json!({ "prompt_token_ids": tokens, "max_tokens": 6, "temperature": 0.8 });
    let (pieces, _) = ask(&llama, &with(&input, &json!({ "echo": true })));
    let (prompt, reply) = parts(&pieces);
    assert_eq!((text(prompt).as_str(), reply), ("a caf\u{fffd}", &ask(&llama, &input).0[..]));
}

#[test]
fn a_prompt_is_scored_without_a_reply() {
    let llama = llama();
    let nothing = json!({ "max_tokens": 0 });
    let whole = ask(&llama, &with(&scored(&ids(TEXT), 2), &json!({ "echo": true }))).0;
    let input = with(&scored(&ids(TEXT), 2), &json!({ "echo": true, "max_tokens": 0 }));
    let (pieces, finish) = ask(&llama, &input);
    assert_eq!(pieces, parts(&whole).0);
    assert_eq!((finish.reason, finish.usage.output_tokens), (FinishReason::Length, 0));
    // A prompt may fill the context then, or have a single token.
    for tokens in [1, 2, 159, 160] {
        let tokens: Vec<u32> = (0..tokens).map(|at| at * 7 % 256).collect();
        let (pieces, finish) = ask(&llama, &with(&scored(&tokens, 1), &nothing));
        assert_eq!((pieces.len(), finish.reason), (tokens.len(), FinishReason::Length));
        assert!(pieces[1..].iter().all(|piece| piece.logprob.is_some()));
        let echo = json!({ "prompt_token_ids": tokens, "echo": true, "max_tokens": 0 });
        assert_eq!(ask(&llama, &echo).0.len(), tokens.len());
    }
    let full = with(&scored(&[1; 161], 1), &nothing);
    check_refused(&llama, &full, &["161 tokens", "context of 160"]);
}

#[test]
fn a_scored_reply_keeps_the_contract_and_resumes_wherever_it_broke() {
    let llama = llama();
    let tokens = ids(&TEXT[..40]);
    let echo = json!({ "echo": true, "prompt_token_ids": tokens, "max_tokens": 3 });
    let both = with(&scored(&tokens, 2), &json!({ "echo": true }));
    let nothing = with(&both, &json!({ "max_tokens": 0 }));
    for input in [echo, both, nothing, scored(&tokens, 0)] {
        assert_eq!(check(&llama, &input), Ok(()), "{input}");
        let whole = ask(&llama, &input);
        for at in 0..=whole.0.len() {
            let again = answer(&llama, &input, 7, &whole.0[..at]).unwrap();
            assert_eq!(uncached(again), uncached(whole.clone()), "at {at} of {input}");
        }
        for (at, forged) in [
            (3, TextPiece { token: 1, ..whole.0[3].clone() }),
            (3, TextPiece { prompt: false, ..whole.0[3].clone() }),
            (3, TextPiece { text: "forged".to_owned(), ..whole.0[3].clone() }),
            (whole.0.len(), TextPiece { prompt: true, ..TextPiece::new(70_000, "") }),
        ] {
            let pieces = [&whole.0[..at], &[forged]].concat();
            let refused = answer(&llama, &input, 7, &pieces);
            assert!(matches!(refused, Err(Error::BadInput(_))), "{at} of {input}");
        }
    }
}

#[test]
fn a_scored_prompt_takes_nothing_from_the_cache_that_it_needs_and_leaves_all_there() {
    let llama = llama();
    let tokens: Vec<u32> = (0..140).map(|at| at * 11 % 256).collect();
    let cached = |input: &Value, resumed: &[TextPiece]| {
        let finish = answer(&llama, input, 7, resumed).unwrap().1;
        finish.usage.cached_tokens
    };
    let plain = json!({ "prompt_token_ids": tokens, "max_tokens": 1 });
    assert_eq!(cached(&scored(&tokens, 1), &[]), 0);
    assert_eq!(cached(&plain, &[]), 128);
    assert_eq!(cached(&scored(&tokens, 1), &[]), 0);
    assert_eq!(cached(&with(&plain, &json!({ "echo": true })), &[]), 128);
    // A resumed reply needs only the rows after its pieces.
    let whole = ask(&llama, &scored(&tokens, 1)).0;
    for (known, found) in [(32, 0), (33, 32), (97, 96), (140, 128), (142, 128)] {
        assert_eq!(cached(&scored(&tokens, 1), &whole[..known]), found, "{known}");
    }
}

#[test]
fn a_long_prompt_with_many_alternatives_streams_in_order_at_the_readers_pace() {
    let tiny = Tiny::literate();
    let llama = tiny.load(Options::default()).unwrap();
    let tokens: Vec<u32> = (0..600).map(|at| at * at % 256).collect();
    let input = with(&scored(&tokens, 20), &json!({ "max_tokens": 0 }));
    let (pieces, _) = ask(&llama, &input);
    assert_eq!(pieces.iter().map(|piece| piece.token).collect::<Vec<_>>(), tokens);
    let bytes: usize = pieces.iter().map(|piece| serde_json::to_vec(piece).unwrap().len()).sum();
    assert!(bytes > 200_000, "{bytes}");
    assert_eq!(check(&llama, &input), Ok(()));
}

#[test]
fn broken_weights_score_nothing() {
    let tiny = Tiny::new();
    tiny.break_weights();
    let llama = tiny.load(Options::default()).unwrap();
    let result = answer(&llama, &scored(&[1, 2, 3], 1), 7, &[]);
    assert!(matches!(result, Err(Error::Retry(why)) if why.to_string().contains("no numbers")));
}
