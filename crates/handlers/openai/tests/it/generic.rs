//! A server of which only OpenAI's API is known: vLLM, by the option `flavor`.

use std::sync::Arc;

use nsbridge_handler::{FinishReason, Models, TextPiece, testing};
use nsbridge_openai::{Flavor, OpenAi, Options};
use serde_json::json;

use crate::replay::Replay;

fn handler() -> (Replay, Arc<OpenAi>) {
    let replay = Replay::start("generic.txt", option_env!("NSBRIDGE_TEST_RECORD_VLLM"));
    let mut options = Options::new(replay.url());
    options.flavor = Some(Flavor::Generic);
    let handler = testing::load(options, Models::default()).unwrap();
    (replay, handler)
}

fn texts(pieces: &[TextPiece]) -> Vec<&str> {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

#[test]
fn a_piece_is_a_word_and_the_contract_is_kept() {
    let (_replay, handler) = handler();
    let chat = json!({ "messages": [{ "role": "user", "content": "Tell me a story." }],
                       "max_tokens": 16, "temperature": 0.0 });
    assert_eq!(testing::check(&handler, &chat), Ok(()));
    let several =
        json!({ "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.0, "n": 2 });
    assert_eq!(testing::check(&handler, &several), Ok(()));
}

#[test]
fn the_usage_is_the_servers_own() {
    let (_replay, handler) = handler();
    let input = json!({ "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.0 });
    let (pieces, finish) = testing::answer(&handler, &input, 1, &[]).unwrap();
    assert_eq!((finish.reason, finish.usage.output_tokens), (FinishReason::Length, 16));
    assert_eq!(finish.usage.input_tokens, 4);
    let words = texts(&pieces);
    assert!(words.iter().all(|word| word.trim_start().len() + 1 >= word.len()), "{words:?}");
    assert!(pieces.iter().all(|piece| piece.token == 0 && piece.finish_reason.is_none()));
}

#[test]
fn the_pieces_do_not_depend_on_the_parts_that_the_server_sends() {
    let (replay, handler) = handler();
    let input = json!({ "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.0 });
    let (pieces, finish) = testing::answer(&handler, &input, 1, &[]).unwrap();
    for parts in [2, 3, 100] {
        replay.merge(parts);
        let (merged, end) = testing::answer(&handler, &input, 1, &pieces[..2]).unwrap();
        assert_eq!(
            texts(&merged),
            texts(&pieces),
            "a later attempt starts over, with equal pieces"
        );
        assert_eq!(end, finish);
    }
}
