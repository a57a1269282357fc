//! Tests of the events and of the objects that are made of pieces.

use nsbridge_client::{FinishReason, RequestId, Summary, TextPiece, Usage};
use nsbridge_gateway_replies::{Failure, ReplyEnd};
use nsbridge_protocol::{Finish, Uuid};
use nsbridge_reply_text::Delta;
use proptest::prelude::{any, proptest};
use proptest::{prop_assert, prop_assert_eq};
use serde_json::{Value, json};

use super::super::request::tests::parse;
use super::{Block, Blocks, MessageView, whole};
use crate::api::sse::{Events, View};

const RUN: RequestId = RequestId(Uuid::from_u128(0x018b_cfe5_6800_7000_8000_0000_0000_0001));
const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn tool() -> Value {
    json!({ "tools": [{ "name": "f", "input_schema": { "type": "object" } }] })
}

fn summary(finish_reason: FinishReason) -> Summary {
    let usage = Usage::new(30, 7).with_cached(20);
    let mut summary = Summary::new(Finish::because(finish_reason).with_usage(usage));
    (summary.chunks, summary.bytes) = (1, 1);
    summary
}

fn pieces(texts: &[&str]) -> Vec<TextPiece> {
    texts.iter().map(|text| TextPiece::new(1, *text)).collect()
}

/// Returns the names and the data of the events of a stream.
fn events(more: &Value, texts: &[&str], end: &ReplyEnd) -> Vec<(String, Value)> {
    let (mut events, request) = (Events::default(), parse(more).unwrap());
    let mut view = MessageView::new(request, RUN);
    view.begin(&mut events);
    pieces(texts).iter().for_each(|piece| view.piece(piece, &mut events));
    view.end(end, &mut events);
    let text = events.take().unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let name = name.strip_prefix("event: ").unwrap().to_owned();
        assert_eq!(data["type"], name);
        (name, data)
    };
    text.trim_end().split("\n\n").map(event).collect()
}

fn done(more: &Value, texts: &[&str], reason: FinishReason) -> Vec<(String, Value)> {
    events(more, texts, &ReplyEnd::Done(summary(reason)))
}

/// Returns the message that a client builds of the events.
fn built(events: &[(String, Value)]) -> Value {
    let (mut message, mut inputs) = (Value::Null, Vec::new());
    for (name, event) in events {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match name.as_str() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                let field = match delta["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    _ => {
                        inputs[index] += delta["partial_json"].as_str().unwrap();
                        continue;
                    }
                };
                let text = block[field].as_str().unwrap().to_owned();
                block[field] = (text + delta[field].as_str().unwrap()).into();
            }
            "content_block_stop" if !inputs[index].is_empty() => {
                let input = serde_json::from_str(&inputs[index]).unwrap_or(json!({}));
                message["content"][index]["input"] = input;
            }
            "message_delta" => {
                message["usage"] = event["usage"].clone();
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
            }
            _ => {}
        }
    }
    message
}

/// Checks content and reason, of the object as well as of the stream.
#[track_caller]
fn check(more: &Value, texts: &[&str], reason: FinishReason, content: &Value, stop: &Value) {
    let message = whole(&parse(more).unwrap(), RUN, &pieces(texts), &summary(reason));
    assert_eq!(&message["content"], content);
    assert_eq!(&json!([message["stop_reason"], message["stop_sequence"]]), stop);
    assert_eq!(built(&done(more, texts, reason)), message);
}

fn plain() -> Value {
    json!({ "model": "plain" })
}

#[test]
fn a_text_is_one_block() {
    let text = json!([{ "type": "text", "text": " Once a bear." }]);
    let end = json!(["end_turn", null]);
    check(&plain(), &[" ", "Once", " a bear."], FinishReason::Stop, &text, &end);
    let cut = json!(["max_tokens", null]);
    check(&plain(), &[" Once a bear."], FinishReason::Length, &text, &cut);
    let refused = json!(["refusal", null]);
    check(&plain(), &[" Once a bear."], FinishReason::ContentFilter, &text, &refused);
    for texts in [&[][..], &[" ", "\n"]] {
        check(&plain(), texts, FinishReason::Stop, &json!([]), &end);
    }
}

#[test]
fn the_only_stop_sequence_is_named_and_one_of_several_is_not() {
    let text = json!([{ "type": "text", "text": "a" }]);
    let mut more = plain();
    more["stop_sequences"] = json!(["."]);
    check(&more, &["a"], FinishReason::StopText, &text, &json!(["stop_sequence", "."]));
    more["stop_sequences"] = json!([".", "!"]);
    check(&more, &["a"], FinishReason::StopText, &text, &json!(["stop_sequence", null]));
}

#[test]
fn thinking_text_and_calls_are_blocks_of_their_own() {
    let call = |index: usize| {
        let id = format!("toolu_018bcfe5680070008000000000000001{index:04x}");
        json!({ "type": "tool_use", "id": id, "name": "f", "input": { "a": 1 } })
    };
    let thinking = json!({ "type": "thinking", "thinking": "Hm.", "signature": "" });
    let text = json!({ "type": "text", "text": "I look." });
    let texts = ["Hm.", "</think>", "\n\nI look.\n", CALL, "\n", CALL];
    let content = json!([thinking, text, call(0), call(1)]);
    check(&tool(), &texts, FinishReason::Stop, &content, &json!(["tool_use", null]));
    check(&tool(), &texts, FinishReason::Length, &content, &json!(["max_tokens", null]));
    let mut more = tool();
    more["thinking"] = json!({ "type": "adaptive", "display": "omitted" });
    let omitted = json!({ "type": "thinking", "thinking": "", "signature": "" });
    let content = json!([omitted, text, call(0), call(1)]);
    check(&more, &texts, FinishReason::Stop, &content, &json!(["tool_use", null]));
    // Models write an empty reasoning if it is turned off.
    more["thinking"] = json!({ "type": "disabled" });
    let content = json!([{ "type": "text", "text": "Hi." }]);
    let texts = ["<think>\n\n</think>\n\n", "Hi."];
    check(&more, &texts, FinishReason::Stop, &content, &json!(["end_turn", null]));
}

#[test]
fn a_forced_call_is_a_call_and_one_that_is_cut_off_has_no_input() {
    let mut more = tool();
    more["tool_choice"] = json!({ "type": "tool", "name": "f" });
    let call = |input: Value| {
        let id = "toolu_018bcfe56800700080000000000000010000";
        json!([{ "type": "tool_use", "id": id, "name": "f", "input": input }])
    };
    let full = ["{\"a\"", ": 1}"];
    check(&more, &full, FinishReason::Stop, &call(json!({ "a": 1 })), &json!(["tool_use", null]));
    let cut = ["{\"a\"", ": "];
    check(&more, &cut, FinishReason::Length, &call(json!({})), &json!(["max_tokens", null]));
}

#[test]
fn the_events_of_a_stream_have_their_order_and_the_usage_is_told_at_the_end() {
    let events = done(&plain(), &["a", "b"], FinishReason::Stop);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(
        events[0].1["message"],
        json!({
            "id": "msg_018bcfe5680070008000000000000001", "type": "message", "role": "assistant",
            "model": "plain", "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": { "input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0,
                       "cache_creation_input_tokens": 0 }
        })
    );
    let usage = json!({ "input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 20,
                        "cache_creation_input_tokens": 0 });
    assert_eq!(events[5].1["usage"], usage);
}

#[test]
fn a_stream_that_fails_ends_with_the_error() {
    let failed = ReplyEnd::Failed(Failure::timeout("too late"));
    let events = events(&plain(), &["a"], &failed);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["message_start", "content_block_start", "content_block_delta", "error"]);
    let error = json!({ "type": "timeout_error", "message": "too late" });
    assert_eq!(events[3].1, json!({ "type": "error", "error": error }));
}

proptest! {
    #[test]
    fn blocks_are_opened_and_closed_in_turn_and_none_is_blank(
        kinds in proptest::collection::vec((0..4_u8, any::<bool>()), 0..20)
    ) {
        let mut blocks = Blocks::new(&parse(&plain()).unwrap(), RUN);
        let (mut open, mut count, mut calls) = (None, 0, 0);
        let mut told = Vec::new();
        for (kind, blank) in kinds {
            let text = if blank { " " } else { "x" }.to_owned();
            let delta = match kind {
                0 => Delta::Content(text),
                1 => Delta::Reasoning(text),
                2 => {
                    calls += 1;
                    Delta::CallBegin { index: calls - 1, name: "f".to_owned() }
                }
                _ if calls > 0 && matches!(blocks.blocks.last(), Some(Block::ToolUse { .. })) => {
                    Delta::CallArguments { index: calls - 1, text }
                }
                _ => continue,
            };
            blocks.push(vec![delta], |name, event| told.push((name.to_owned(), event.clone())));
        }
        blocks.close(|name, event| told.push((name.to_owned(), event.clone())));
        for (name, event) in told {
            let index = event["index"].as_u64();
            match name.as_str() {
                "content_block_start" => {
                    prop_assert_eq!((open, index), (None, Some(count)));
                    (open, count) = (index, count + 1);
                }
                "content_block_delta" => prop_assert_eq!(open, index),
                _ => prop_assert_eq!(open.take(), index),
            }
        }
        prop_assert_eq!(open, None);
        for block in &blocks.blocks {
            if let Block::Prose(_, text) = block {
                prop_assert!(!text.trim().is_empty());
            }
        }
    }
}
