//! Vectors of vLLM 0.32 with SmolLM2-135M-Instruct on a CPU (`--runner pooling --convert embed`).

use std::sync::Arc;

use nsbridge_handler::{Embedding, EmbeddingPiece, Error, Finish, Models, testing};
use nsbridge_openai::{OpenAi, OpenAiEmbedder, Options};
use serde_json::{Value, json};

use crate::replay::Replay;

/// Number of dimensions of the model's vectors.
const WIDTH: usize = 576;

fn setup() -> (Replay, Arc<OpenAiEmbedder>) {
    let replay = Replay::start("embeddings.txt", option_env!("NSBRIDGE_TEST_RECORD_EMBEDDINGS"));
    let handler = testing::load(Options::new(replay.url()), Models::default()).unwrap();
    (replay, handler)
}

fn answer(handler: &Arc<OpenAiEmbedder>, input: &Value) -> (Vec<EmbeddingPiece>, Finish) {
    testing::answer(handler, input, 1, &[]).unwrap()
}

fn numbers(piece: &EmbeddingPiece) -> &[f32] {
    match &piece.embedding {
        Embedding::Floats(numbers) => numbers,
        other => panic!("{other:?}"),
    }
}

fn product(a: &EmbeddingPiece, b: &EmbeddingPiece) -> f32 {
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| a * b).sum()
}

#[test]
fn the_contract_is_kept() {
    let (_replay, handler) = setup();
    for input in [
        json!({ "input": "a bear", "dimensions": 8 }),
        json!({ "input": ["a bear", [5, 7, 9], "an owl"], "encoding_format": "base64" }),
    ] {
        assert_eq!(testing::check(&handler, &input), Ok(()), "{input}");
    }
}

#[test]
fn each_text_has_a_vector_of_length_1_in_the_order_of_the_texts() {
    let (_replay, handler) = setup();
    let texts = json!({ "input": ["The bear sleeps.", "The bear is asleep.", [5, 7, 9]] });
    let (pieces, finish) = answer(&handler, &texts);
    assert_eq!(pieces.iter().map(|piece| piece.index).collect::<Vec<_>>(), [0, 1, 2]);
    for piece in &pieces {
        assert_eq!(numbers(piece).len(), WIDTH);
        assert!((product(piece, piece) - 1.0).abs() < 1e-4);
    }
    assert!(product(&pieces[0], &pieces[1]) > product(&pieces[0], &pieces[2]));
    assert!(finish.usage.input_tokens >= 3 + 4 + 4, "{:?}", finish.usage);
    assert_eq!(finish.usage.output_tokens, 0);
}

#[test]
fn a_vector_is_cut_to_its_first_dimensions_and_keeps_its_length() {
    let (_replay, handler) = setup();
    let (whole, _) = answer(&handler, &json!({ "input": "a bear" }));
    let (cut, _) = answer(&handler, &json!({ "input": "a bear", "dimensions": 8 }));
    assert_eq!(numbers(&cut[0]).len(), 8);
    assert!((product(&cut[0], &cut[0]) - 1.0).abs() < 1e-4);
    let ratio = numbers(&cut[0])[0] / numbers(&whole[0])[0];
    for (cut, whole) in numbers(&cut[0]).iter().zip(numbers(&whole[0])) {
        assert!((cut - ratio * whole).abs() < 1e-4);
    }
}

#[test]
fn tenants_share_no_prefix_cache_and_a_part_has_one_kind_of_text() {
    let (replay, handler) = setup();
    answer(&handler, &json!({ "input": ["a bear", [5, 7, 9], "an owl"] }));
    let seen = replay.seen("/v1/embeddings");
    let inputs: Vec<Value> = seen
        .iter()
        .map(|request| serde_json::from_str::<Value>(request).unwrap())
        .filter(|request| request["cache_salt"].as_str().is_some_and(|salt| salt.len() == 64))
        .map(|mut request| request["input"].take())
        .collect();
    assert_eq!(inputs, [json!(["a bear"]), json!([[5, 7, 9]]), json!(["an owl"])]);
}

#[test]
fn what_the_server_refuses_goes_to_the_client() {
    let (_replay, handler) = setup();
    let input = json!({ "input": [vec![5; 4000]] });
    let error = testing::answer(&handler, &input, 1, &[]).unwrap_err();
    assert!(matches!(&error, Error::BadInput(why) if why.contains("2048")), "{error}");
}

#[test]
fn a_server_of_the_other_kind_is_one_sentence_at_the_load() {
    let replay = Replay::start("vllm.txt", option_env!("NSBRIDGE_TEST_RECORD_VLLM"));
    let refused = testing::load::<OpenAiEmbedder, _>(Options::new(replay.url()), Models::default());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("makes no vectors (status 404)") && !error.contains('\n'), "{error}");
    let replay = Replay::start("embeddings.txt", option_env!("NSBRIDGE_TEST_RECORD_EMBEDDINGS"));
    let refused = testing::load::<OpenAi, _>(Options::new(replay.url()), Models::default());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("makes no text") && !error.contains('\n'), "{error}");
}
