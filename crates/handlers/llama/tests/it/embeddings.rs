//! Tests of embeddings, from a request through the handler to its vectors.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use nsbridge_handler::testing::{answer, check, load};
use nsbridge_handler::{
    Embedding, EmbeddingInput, EmbeddingPiece, EmbeddingText, Error, FinishReason, Usage,
};
use nsbridge_llama::{Embedder, Llama, Options, Pooling, Setup, Task};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::network;
use crate::replies::check_bad_input;
use crate::tiny::{BOS, Tiny, models};

fn embed(pooling: Pooling) -> Options {
    Options { task: Some(Task::Embed), pooling: Some(pooling), ..Options::default() }
}

fn embedder(dir: &Path, options: Options) -> Arc<Embedder> {
    load(options, models(dir)).unwrap()
}

fn tokens(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|at| (at * at * 3 + at * 7 + seed) % 256).collect()
}

fn texts() -> Value {
    json!({ "input": [tokens(40, 1), "the sea", tokens(1, 2), "灯台守", tokens(160, 3), "the sea"] })
}

fn vectors(embedder: &Arc<Embedder>, input: &Value) -> (Vec<Vec<f32>>, Usage) {
    let (pieces, finish) = answer(embedder, input, 7, &[]).unwrap();
    assert!(pieces.iter().zip(0..).all(|(piece, index)| piece.index == index));
    assert_eq!(finish.reason, FinishReason::Stop);
    let vector = |piece: EmbeddingPiece| match piece.embedding {
        Embedding::Floats(vector) => vector,
        _ => panic!("no numbers"),
    };
    (pieces.into_iter().map(vector).collect(), finish.usage)
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt()
}

#[track_caller]
fn check_refused(embedder: &Arc<Embedder>, input: &Value, words: &[&str]) {
    check_bad_input(answer(embedder, input, 7, &[]), words);
}

#[test]
fn a_vector_is_pooled_from_the_hidden_states_after_the_last_norm() {
    let tiny = Tiny::new();
    let setup = Setup { hidden: true, ..Setup::default() };
    let mut model = network::open(tiny.path(), &setup);
    for (pooling, seed) in [(Pooling::Last, 1), (Pooling::Mean, 2)] {
        let own = Options { normalize: Some(false), ..embed(pooling) };
        let embedder = embedder(tiny.path(), own);
        for count in [1, 2, 33, 160] {
            let tokens = tokens(count, seed);
            let hidden = network::logits(&mut model, &tokens, 9);
            let expected = match pooling {
                Pooling::Last => hidden[count as usize - 1].clone(),
                Pooling::Mean => (0..hidden[0].len())
                    .map(|at| {
                        let sum: f64 = hidden.iter().map(|row| f64::from(row[at])).sum();
                        (sum / f64::from(count)) as f32
                    })
                    .collect(),
                other => panic!("{other:?} has no expected vector"),
            };
            let (made, usage) = vectors(&embedder, &json!({ "input": tokens }));
            assert_eq!(made, [expected], "{pooling:?} of {count}");
            assert_eq!(usage.input_tokens, u64::from(count));
        }
    }
}

#[test]
fn a_vector_has_length_one_unless_the_options_say_otherwise() {
    let tiny = Tiny::new();
    let (made, _) = vectors(&embedder(tiny.path(), embed(Pooling::Mean)), &texts());
    assert!(made.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-6));
    let raw = Options { normalize: Some(false), ..embed(Pooling::Mean) };
    let (raw, _) = vectors(&embedder(tiny.path(), raw), &texts());
    assert!(raw.iter().any(|vector| (length(vector) - 1.0).abs() > 0.1));
    for (one, raw) in made.iter().zip(&raw) {
        let scale = length(raw);
        assert!(
            one.iter().zip(raw).all(|(a, b)| (f64::from(*a) - f64::from(*b) / scale).abs() < 1e-6)
        );
    }
}

#[test]
fn vectors_do_not_depend_on_the_batch_the_chunks_the_ranks_or_the_cache() {
    let tiny = Tiny::new();
    for pooling in [Pooling::Last, Pooling::Mean] {
        let first = embedder(tiny.path(), embed(pooling));
        let (expected, usage) = vectors(&first, &texts());
        for (at, vector) in expected.iter().enumerate() {
            let alone = json!({ "input": [texts()["input"][at]] });
            assert_eq!(vectors(&first, &alone).0, std::slice::from_ref(vector), "text {at} alone");
        }
        let plain = || embed(pooling);
        for options in [
            Options { max_num_batched_tokens: Some(7), ..plain() },
            Options { max_rolling_batch_size: Some(1), ..plain() },
            Options { tensor_parallel_degree: Some(2), ..plain() },
            Options { enable_prefix_caching: Some(false), ..plain() },
        ] {
            let other = embedder(tiny.path(), options.clone());
            std::thread::scope(|scope| {
                let made: Vec<_> =
                    (0..3).map(|_| scope.spawn(|| vectors(&other, &texts()))).collect();
                for made in made {
                    let (made, used) = made.join().unwrap();
                    assert_eq!(made, expected, "{options:?}");
                    assert_eq!(used.input_tokens, usage.input_tokens);
                }
            });
        }
    }
}

#[test]
fn the_last_token_takes_a_known_prefix_from_the_cache_and_the_mean_does_not() {
    let tiny = Tiny::new();
    let input = json!({ "input": tokens(140, 5) });
    for (pooling, cached) in [(Pooling::Last, 128), (Pooling::Mean, 0)] {
        let embedder = embedder(tiny.path(), embed(pooling));
        assert_eq!(vectors(&embedder, &input).1.cached_tokens, 0);
        assert_eq!(vectors(&embedder, &input).1.cached_tokens, cached);
    }
}

#[test]
fn a_vector_is_cut_and_normalized_again_and_has_the_same_bits_in_base64() {
    let embedder = embedder(Tiny::new().path(), embed(Pooling::Last));
    let with = |more: Value| {
        let mut input = json!({ "input": "the sea" });
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input
    };
    let whole = vectors(&embedder, &with(json!({}))).0.remove(0);
    assert_eq!(whole.len(), 32);
    let cut = vectors(&embedder, &with(json!({ "dimensions": 8 }))).0.remove(0);
    let scale = length(&whole[..8]);
    assert_eq!(cut.len(), 8);
    assert!(
        cut.iter().zip(&whole).all(|(a, b)| (f64::from(*a) - f64::from(*b) / scale).abs() < 1e-6)
    );
    let input = with(json!({ "dimensions": 8, "encoding_format": "base64" }));
    let pieces = answer(&embedder, &input, 7, &[]).unwrap().0;
    let Embedding::Base64(text) = &pieces[0].embedding else { panic!("{pieces:?}") };
    assert_eq!(decoded(text), cut);
}

/// Decodes base64 of numbers, written by itself.
fn decoded(text: &str) -> Vec<f32> {
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut bytes) = (0u32, 0, Vec::new());
    for digit in text.trim_end_matches('=').chars() {
        bits = bits << 6 | alphabet.find(digit).unwrap() as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_text_has_the_special_tokens_of_its_tokenizer_and_token_ids_have_none() {
    let embedder = embedder(Tiny::new().path(), embed(Pooling::Mean));
    let of = |input: Value| vectors(&embedder, &json!({ "input": input }));
    let bytes: Vec<u32> = b"sea".map(u32::from).to_vec();
    let begun = [&[BOS], &bytes[..]].concat();
    assert_eq!(of(json!("sea")), of(json!(begun)));
    assert_ne!(of(json!("sea")).0, of(json!(bytes)).0);
    let input = EmbeddingInput::texts([EmbeddingText::from("sea"), bytes.clone().into()]);
    let both = vectors(&embedder, &serde_json::to_value(input).unwrap()).0;
    assert_eq!(both, [of(json!("sea")).0, of(json!(bytes)).0].concat());
}

#[test]
fn embeddings_keep_the_contract_and_resume_after_each_vector() {
    let embedder = embedder(Tiny::new().path(), embed(Pooling::Mean));
    assert_eq!(check(&embedder, &texts()), Ok(()));
    let (whole, finish) = answer(&embedder, &texts(), 7, &[]).unwrap();
    for at in 0..=whole.len() {
        let (again, ended) = answer(&embedder, &texts(), 7, &whole[..at]).unwrap();
        assert_eq!(again, whole, "at {at}");
        assert_eq!(ended.usage.input_tokens, finish.usage.input_tokens);
    }
}

#[test]
fn inputs_beyond_a_bound_are_refused_in_words_that_do_not_quote_them() {
    let embedder = embedder(Tiny::new().path(), embed(Pooling::Last));
    let cases: [(Value, &[&str]); 10] = [
        (json!({ "input": [] }), &["`input` has 0 texts"]),
        (json!({ "input": [[]] }), &["text 0 of `input` has no token"]),
        (json!({ "input": ["canary", tokens(161, 1)] }), &["text 1 of `input` has 161", "160"]),
        (json!({ "input": ["canary".repeat(40)] }), &["text 0 of `input` has 241", "160"]),
        (json!({ "input": [[258]] }), &["text 0 of `input`", "from 0 to 257"]),
        (json!({ "input": "canary", "dimensions": 33 }), &["`dimensions`", "1 to 32"]),
        (json!({ "input": "canary", "dimensions": 0 }), &["`dimensions`"]),
        (json!({ "input": "canary", "user": "x" }), &["unknown field `user`"]),
        (json!({ "prompt": "canary" }), &["unknown field `prompt`", "`input`"]),
        (json!({ "messages": [] }), &["unknown field `messages`", "`input`"]),
    ];
    for (input, words) in cases {
        check_refused(&embedder, &input, words);
    }
}

#[test]
fn a_worker_has_one_task_and_refuses_the_other_ones_requests_and_options() {
    let tiny = Tiny::new();
    let llama = tiny.load(Options { task: Some(Task::Generate), ..Options::default() }).unwrap();
    let refused = answer(&llama, &json!({ "input": "canary" }), 7, &[]);
    assert!(matches!(refused, Err(Error::BadInput(why)) if why.contains("unknown field `input`")));
    let why = |loaded: Result<(), Error>| loaded.unwrap_err().to_string();
    let text = |options| why(load::<Llama, _>(options, models(tiny.path())).map(drop));
    assert!(text(embed(Pooling::Last)).contains("the option task is embed"));
    let pooling = Options { pooling: Some(Pooling::Last), ..Options::default() };
    assert!(text(pooling).contains("the option pooling"));
    let vector = |options| why(load::<Embedder, _>(options, models(tiny.path())).map(drop));
    assert!(vector(Options::default()).contains("the option task must be embed"));
    for (options, name) in [
        (Options { speculative_ngram: Some(3), ..embed(Pooling::Last) }, "speculative_ngram"),
        (Options { max_tokens: Some(3), ..embed(Pooling::Last) }, "max_tokens"),
        (
            Options { parity_reference: Some("x".into()), ..embed(Pooling::Last) },
            "parity_reference",
        ),
    ] {
        assert!(vector(options).contains(name));
    }
}

/// Writes the model again as one saved without its output matrix: other names, and other tensors.
fn save_as_base_model(dir: &Path) {
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let kept: HashMap<String, _> = tensors
        .iter()
        .filter_map(|(name, view)| Some((name.strip_prefix("model.")?.to_owned(), view)))
        .collect();
    safetensors::serialize_to_file(&kept, None, &path).unwrap();
}

#[test]
fn a_checkpoint_without_an_output_matrix_makes_the_vectors_of_the_whole_one() {
    let config = |architecture: &str| {
        json!({
            "architectures": [architecture], "hidden_act": "silu", "hidden_size": 32,
            "intermediate_size": 48, "vocab_size": 258, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0, "max_position_embeddings": 160, "tie_word_embeddings": false,
            "head_dim": 8
        })
    };
    let tiny = Tiny::new().with("config.json", &config("Qwen3ForCausalLM"));
    tiny.draw_again(0.25);
    let whole = vectors(&embedder(tiny.path(), embed(Pooling::Last)), &texts()).0;
    let tiny = tiny.with("config.json", &config("Qwen3Model"));
    save_as_base_model(tiny.path());
    let bare = vectors(&embedder(tiny.path(), embed(Pooling::Last)), &texts()).0;
    assert_eq!(bare, whole);
    let why = tiny.load(Options::default()).unwrap_err().to_string();
    assert!(why.contains("lm_head.weight"), "{why}");
}

#[test]
fn the_files_of_sentence_transformers_decide_where_no_option_does() {
    let tiny = Tiny::new();
    let plain = Options { task: Some(Task::Embed), ..Options::default() };
    let made = |options: Options| {
        let embedder = embedder(tiny.path(), options);
        let print = nsbridge_handler::AsyncHandler::fingerprint(&*embedder).unwrap();
        (vectors(&embedder, &texts()).0, print)
    };
    let last = made(plain.clone());
    assert_eq!(last.0, made(embed(Pooling::Last)).0);
    std::fs::create_dir(tiny.path().join("1_Pooling")).unwrap();
    let modes = json!({ "pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false });
    std::fs::write(tiny.path().join("1_Pooling/config.json"), modes.to_string()).unwrap();
    let mean = made(plain.clone());
    assert_eq!(mean.0, made(embed(Pooling::Mean)).0);
    assert!(mean.0 != last.0 && mean.1 != last.1);
    let kinds = ["Transformer", "Pooling"];
    let module = |(at, kind): (usize, &str)| {
        json!({ "idx": at, "name": "x", "path": if at == 0 { "" } else { "1_Pooling" },
                "type": format!("sentence_transformers.models.{kind}") })
    };
    let modules: Value = kinds.into_iter().enumerate().map(module).collect();
    std::fs::write(tiny.path().join("modules.json"), modules.to_string()).unwrap();
    let raw = Options { normalize: Some(false), ..embed(Pooling::Mean) };
    assert_eq!(made(plain).0, made(raw).0);
}
