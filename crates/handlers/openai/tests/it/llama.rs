//! Replies of llama-server (llama.cpp 0.7.0 of Debian) with SmolLM2-135M-Instruct on a CPU.

use std::sync::Arc;

use nsbridge_handler::{Finish, FinishReason, Models, TextPiece, TokenText, testing};
use nsbridge_openai::{OpenAi, Options};
use serde_json::{Value, json};

use crate::replay::Replay;

const SEED: u64 = 1_234_567_890_123;

struct Setup {
    replay: Replay,
    handler: Arc<OpenAi>,
}

fn setup() -> Setup {
    let replay = Replay::start("llama.txt", option_env!("NSBRIDGE_TEST_RECORD_LLAMA"));
    let handler = testing::load(Options::new(replay.url()), Models::default()).unwrap();
    Setup { replay, handler }
}

impl Setup {
    fn answer(&self, input: &Value, known: &[TextPiece]) -> (Vec<TextPiece>, Finish) {
        testing::answer(&self.handler, input, SEED, known).unwrap()
    }
}

fn texts(pieces: &[TextPiece]) -> Vec<&str> {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

#[test]
fn the_handler_keeps_its_contract() {
    let setup = setup();
    let chat = json!({ "messages": [{ "role": "user", "content": "Say hello." }],
                       "max_tokens": 8, "temperature": 0.0, "stop": [" you"] });
    for input in [
        json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0 }),
        json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0, "n": 2 }),
        chat,
    ] {
        assert_eq!(testing::check(&setup.handler, &input), Ok(()), "{input}");
    }
}

#[test]
fn a_reply_ends_with_its_end_token_and_all_tokens_count() {
    let question = "What is the capital of France? One word.";
    let input = json!({ "messages": [{ "role": "user", "content": question }],
                        "max_tokens": 60, "temperature": 0.0 });
    let setup = setup();
    let (pieces, finish) = setup.answer(&input, &[]);
    assert_eq!((finish.reason, texts(&pieces).last()), (FinishReason::Stop, Some(&"")));
    assert_eq!(finish.usage.output_tokens, pieces.len() as u64);
    assert!(texts(&pieces).concat().contains("Paris"), "{:?}", texts(&pieces));
    setup.replay.seen("");
    assert_eq!(setup.answer(&input, &pieces).1.reason, FinishReason::Stop);
    assert_eq!(setup.replay.seen("/completion"), Vec::<String>::new());
}

#[test]
fn plain_text_continues_wherever_the_first_attempt_was_lost() {
    let setup = setup();
    let input = json!({ "prompt": "Two bears", "max_tokens": 10, "temperature": 0.0 });
    let (pieces, finish) = setup.answer(&input, &[]);
    for at in 1..=pieces.len() {
        let (resumed, end) = setup.answer(&input, &pieces[..at]);
        assert_eq!(texts(&resumed), texts(&pieces), "{at}");
        assert_eq!((end.reason, end.usage.output_tokens), (finish.reason, 10), "{at}");
    }
}

#[test]
fn a_character_of_several_tokens_counts_its_tokens_and_its_reply_starts_over() {
    let schema = json!({ "const": "日本語🐻 ok" });
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let input = json!({ "prompt": "Hi.", "max_tokens": 40, "temperature": 0.0,
                        "response_format": format });
    let setup = setup();
    let (pieces, finish) = setup.answer(&input, &[]);
    assert_eq!(texts(&pieces).concat(), "\"日本語🐻 ok\"");
    assert_eq!(finish.usage.output_tokens, pieces.len() as u64);
    assert!(texts(&pieces).iter().filter(|text| text.is_empty()).count() > 1);
    assert_eq!(texts(&setup.answer(&input, &pieces[..3]).0), texts(&pieces));
}

#[test]
fn tokens_of_the_request_end_a_reply_and_have_no_text() {
    let setup = setup();
    let mut input = json!({ "prompt": "Two bears", "max_tokens": 10, "temperature": 0.0 });
    let (whole, _) = setup.answer(&input, &[]);
    input["stop_token_ids"] = json!([whole[3].token]);
    let (pieces, finish) = setup.answer(&input, &[]);
    let first = whole.iter().position(|piece| piece.token == whole[3].token).unwrap();
    assert_eq!((pieces.len(), finish.reason), (first + 1, FinishReason::Stop));
    assert_eq!(pieces[first].text, "");
}

#[test]
fn log_probabilities_come_with_the_bytes_of_their_tokens() {
    let input = json!({ "prompt": "Two bears", "max_tokens": 5, "temperature": 0.0,
                        "logprobs": true, "top_logprobs": 2, "return_token_texts": true });
    let (pieces, _) = setup().answer(&input, &[]);
    for piece in &pieces {
        let best = &piece.top_logprobs[0];
        assert_eq!((piece.top_logprobs.len(), best.token), (2, piece.token), "greedy");
        assert!(piece.logprob.unwrap() <= 0.0);
        assert_eq!(best.text, piece.token_text);
        assert_eq!(piece.token_text.as_ref().map(TokenText::as_bytes), Some(piece.text.as_bytes()));
    }
}
