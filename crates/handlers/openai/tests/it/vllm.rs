//! Replies of vLLM 0.32 with SmolLM2-135M-Instruct on a CPU.

use std::sync::{Arc, OnceLock};

use nsbridge_handler::{Error, Finish, FinishReason, Models, TextPiece, TokenText, testing};
use nsbridge_openai::{OpenAi, Options};
use serde_json::{Value, json};

use crate::replay::Replay;

const SEED: u64 = 1_234_567_890_123;

struct Setup {
    replay: Replay,
    handler: Arc<OpenAi>,
}

fn setup() -> Setup {
    let replay = Replay::start("vllm.txt", option_env!("NSBRIDGE_TEST_RECORD_VLLM"));
    let options = Options::new(format!("{}/v1/", replay.url()));
    let handler = testing::load(options, Models::default()).unwrap();
    Setup { replay, handler }
}

impl Setup {
    fn answer(&self, input: &Value, known: &[TextPiece]) -> (Vec<TextPiece>, Finish) {
        testing::answer(&self.handler, input, SEED, known).unwrap()
    }

    /// Checks that a later attempt has the same pieces and finish, wherever the first one was lost.
    #[track_caller]
    fn check_resumed(&self, input: &Value) -> Vec<TextPiece> {
        let (pieces, finish) = self.answer(input, &[]);
        for at in 1..=pieces.len() {
            let (resumed, end) = self.answer(input, &pieces[..at]);
            assert_eq!(texts(&resumed), texts(&pieces), "{at}");
            assert_eq!(ids(&resumed), ids(&pieces), "{at}");
            let (usage, whole) = (end.usage, finish.usage);
            assert_eq!(end.reason, finish.reason, "{at}");
            assert_eq!(usage.input_tokens, whole.input_tokens, "{at}");
            assert_eq!(usage.output_tokens, whole.output_tokens, "{at}");
        }
        pieces
    }
}

fn texts(pieces: &[TextPiece]) -> Vec<&str> {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

fn ids(pieces: &[TextPiece]) -> Vec<u32> {
    pieces.iter().map(|piece| piece.token).collect()
}

fn chat(text: &str, fields: &Value) -> Value {
    let mut input =
        json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0.0 });
    for (name, value) in fields.as_object().unwrap() {
        input[name] = value.clone();
    }
    input
}

#[test]
fn the_handler_keeps_its_contract() {
    let setup = setup();
    for input in [
        json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0 }),
        json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0, "n": 2 }),
        chat("Say hello.", &json!({ "max_tokens": 8, "stop": [" you"] })),
    ] {
        assert_eq!(testing::check(&setup.handler, &input), Ok(()), "{input}");
    }
}

#[test]
fn a_reply_ends_with_its_end_token_and_all_tokens_count() {
    let input = chat("What is the capital of France? One word.", &json!({ "max_tokens": 60 }));
    let (pieces, finish) = setup().answer(&input, &[]);
    let last = pieces.last().unwrap();
    assert_eq!((finish.reason, last.text.as_str()), (FinishReason::Stop, ""));
    assert_eq!(finish.usage.output_tokens, pieces.len() as u64);
    assert!(finish.usage.input_tokens > 10, "{:?}", finish.usage);
    assert!(texts(&pieces).concat().contains("Paris"), "{:?}", texts(&pieces));
}

#[test]
fn plain_text_continues_wherever_the_first_attempt_was_lost() {
    let setup = setup();
    setup.check_resumed(&json!({ "prompt": "Two bears", "max_tokens": 10, "temperature": 0.0 }));
    setup.check_resumed(&chat("Count: 1, 2,", &json!({ "max_tokens": 60, "stop": ["5, 6"] })));
}

#[test]
fn a_whole_reply_ends_without_a_request() {
    let setup = setup();
    for input in [
        json!({ "prompt": "Two bears", "max_tokens": 10, "temperature": 0.0 }),
        chat("Count: 1, 2,", &json!({ "max_tokens": 60, "stop": ["5, 6"] })),
        chat("What is the capital of France? One word.", &json!({ "max_tokens": 60 })),
    ] {
        let (pieces, finish) = setup.answer(&input, &[]);
        setup.replay.seen("");
        assert_eq!(setup.answer(&input, &pieces).1.reason, finish.reason);
        assert_eq!(setup.replay.seen("/v1/completions"), Vec::<String>::new(), "{input}");
    }
}

#[test]
fn several_replies_take_turns_and_each_continues_after_its_own_pieces() {
    let input = chat("Tell me a word.", &json!({ "n": 3, "temperature": 1.5, "max_tokens": 6 }));
    let setup = setup();
    let pieces = setup.check_turns(&input);
    assert!(pieces.iter().filter(|piece| piece.finish_reason.is_some()).count() == 3);
}

impl Setup {
    #[track_caller]
    fn check_turns(&self, input: &Value) -> Vec<TextPiece> {
        let (pieces, finish) = self.answer(input, &[]);
        let mut told = [0; 3];
        let mut ended = [false; 3];
        for piece in &pieces {
            let due = (0..3).filter(|at| !ended[*at]).min_by_key(|at| told[*at]).unwrap();
            assert_eq!(piece.index as usize, due);
            told[due] += 1;
            ended[due] = piece.finish_reason.is_some();
        }
        assert_eq!(finish.usage.output_tokens, pieces.len() as u64);
        // A sampled continuation is another one: here only its beginning and its turns count.
        let (resumed, _) = self.answer(input, &pieces[..4]);
        assert_eq!(texts(&resumed[..4]), texts(&pieces[..4]));
        assert_eq!(resumed[4].index, pieces[4].index);
        pieces
    }
}

#[test]
fn a_reply_inside_a_format_starts_over() {
    let setup = setup();
    let schema = json!({ "type": "object", "properties": { "name": { "enum": ["bear", "owl"] } },
                         "required": ["name"], "additionalProperties": false });
    let call = json!({ "begin": "<t>", "end": "</t>", "schema": schema, "otherwise": schema });
    for format in [
        json!({ "type": "json_schema", "json_schema": { "schema": schema } }),
        json!({ "type": "regex", "regex": "(bear|owl) [0-9]{3}" }),
        json!({ "type": "tool_calls", "tool_calls": call }),
    ] {
        let fields = json!({ "max_tokens": 40, "response_format": format });
        let pieces = setup.check_resumed(&chat("Name an animal.", &fields));
        let text = texts(&pieces).concat();
        assert!(text.contains("bear") || text.contains("owl"), "{text}");
        assert_eq!(text.matches(['{', '[']).count().max(1), 1, "{text}");
    }
}

#[test]
fn a_character_of_several_tokens_has_its_text_in_the_last_one() {
    let setup = setup();
    let format = json!({ "type": "regex", "regex": "日本語🐻‍❄️ ok" });
    let input = chat("Hi.", &json!({ "max_tokens": 40, "response_format": format }));
    let (pieces, _) = setup.answer(&input, &[]);
    let texts = texts(&pieces);
    assert_eq!(texts.concat(), "日本語🐻‍❄️ ok");
    assert!(texts.iter().filter(|text| text.is_empty()).count() > 1, "{texts:?}");
}

#[test]
fn the_pieces_do_not_show_that_the_server_sends_several_tokens_at_once() {
    let setup = setup();
    let format = json!({ "type": "regex", "regex": "日本語🐻‍❄️ ok" });
    for input in [
        chat("Hi.", &json!({ "max_tokens": 40, "response_format": format })),
        chat("Count: 1, 2,", &json!({ "max_tokens": 60, "stop": ["5, 6"] })),
        chat("Hi.", &json!({ "max_tokens": 10, "logprobs": true, "top_logprobs": 2 })),
    ] {
        setup.replay.merge(1);
        let (pieces, finish) = setup.answer(&input, &[]);
        for parts in [2, 3, 5, 100] {
            setup.replay.merge(parts);
            let (merged, end) = setup.answer(&input, &[]);
            assert_eq!(texts(&merged), texts(&pieces), "{parts}");
            assert!(merged == pieces, "{parts}");
            assert_eq!(end, finish);
        }
    }
}

#[test]
fn log_probabilities_come_with_their_tokens_and_texts() {
    let fields = json!({ "max_tokens": 10, "logprobs": true, "top_logprobs": 2,
                         "return_token_texts": true });
    let (pieces, _) = setup().answer(&chat("Hi.", &fields), &[]);
    for piece in &pieces {
        assert_eq!(piece.top_logprobs.len(), 2);
        let best = &piece.top_logprobs[0];
        assert_eq!((best.token, Some(best.logprob)), (piece.token, piece.logprob), "greedy");
        assert!(best.logprob >= piece.top_logprobs[1].logprob);
        assert!(best.text.is_some() && piece.token_text.is_some());
    }
    let first = pieces[0].token_text.as_ref().map(TokenText::as_bytes);
    assert_eq!(first, Some(pieces[0].text.as_bytes()));
}

#[test]
fn the_prompt_is_echoed_and_scored() {
    let input = json!({ "prompt": "Once upon a time", "echo": true, "prompt_logprobs": 1,
                        "max_tokens": 3, "temperature": 0.0, "logprobs": true });
    let setup = setup();
    let (pieces, finish) = setup.answer(&input, &[]);
    let prompt = finish.usage.input_tokens as usize;
    let (of_prompt, reply) = pieces.split_at(prompt);
    assert_eq!(texts(of_prompt).concat(), "Once upon a time");
    assert!(of_prompt.iter().all(|piece| piece.prompt));
    assert_eq!((of_prompt[0].logprob, of_prompt[0].rank), (None, None));
    for piece in &of_prompt[1..] {
        let rank = piece.rank.unwrap();
        assert_eq!(rank == 1, piece.top_logprobs[0].token == piece.token, "{rank}");
        assert!(piece.logprob.unwrap() < 0.0);
    }
    assert_eq!(reply.len(), 3);
    assert!(reply.iter().all(|piece| !piece.prompt && piece.logprob.is_some()));
    for at in 1..pieces.len() {
        assert_eq!(texts(&setup.answer(&input, &pieces[..at]).0), texts(&pieces), "{at}");
    }
    let mut scored = input;
    scored["max_tokens"] = 0.into();
    let (pieces, finish) = setup.answer(&scored, &[]);
    assert_eq!((pieces.len(), finish.usage.output_tokens), (prompt, 0));
}

#[test]
fn what_the_server_refuses_goes_to_the_client() {
    let setup = setup();
    let refused = |input: &Value| testing::answer(&setup.handler, input, SEED, &[]).unwrap_err();
    let error = refused(&chat("Hi.", &json!({ "max_tokens": 4, "temperature": -1.0 })));
    assert!(matches!(&error, Error::BadInput(why) if why.contains("temperature")), "{error}");
    let error = refused(&json!({ "prompt_token_ids": vec![5; 4000], "max_tokens": 4 }));
    assert!(matches!(&error, Error::BadInput(why) if why.contains("leaves no room")), "{error}");
}

#[test]
fn tenants_share_no_prefix_cache() {
    let setup = setup();
    setup.answer(&json!({ "prompt": "Two bears", "max_tokens": 10, "temperature": 0.0 }), &[]);
    let seen = setup.replay.seen("/v1/completions");
    let request: Value = serde_json::from_str(seen.last().unwrap()).unwrap();
    let salt = request["cache_salt"].as_str().unwrap();
    assert_eq!(salt.len(), 64, "a digest, which names no tenant");
}

#[test]
fn workers_in_front_of_equal_servers_are_equal() {
    use nsbridge_handler::AsyncHandler as _;
    static FIRST: OnceLock<Setup> = OnceLock::new();
    let (first, second) = (FIRST.get_or_init(setup), setup());
    assert_ne!(first.replay.url(), second.replay.url());
    assert_eq!(first.handler.fingerprint(), second.handler.fingerprint());
}
