//! Tests of the pieces that are released, and of those that are not.

use nsbridge_handler::{FinishReason, TextInput, TextPiece};

use super::Hold;
use crate::judge::Judge;
use crate::policy::{Policy, Selection, Thresholds};
use crate::rules::Rules;

fn judge() -> (Rules, Thresholds) {
    let words = vec!["forbidden fruit".to_owned(), "禁断の果実".to_owned()];
    let rules = Rules::new(&Selection::All(false), [("fruit".to_owned(), words)].into()).unwrap();
    let all = Selection::default();
    let policy = Policy::new(rules.categories(), &all, &all, &Default::default()).unwrap();
    (rules, policy.after)
}

fn pieces(texts: &[&str]) -> Vec<TextPiece> {
    (0..).zip(texts).map(|(token, text)| TextPiece::new(token, *text)).collect()
}

/// Returns the texts that are released, each with the number of pieces that were pushed before.
fn released(input: &TextInput, pieces: Vec<TextPiece>) -> Vec<(usize, TextPiece)> {
    let (rules, thresholds) = judge();
    let mut hold = Hold::new(&rules, &thresholds, input);
    let (mut out, count) = (Vec::new(), pieces.len());
    for (index, piece) in pieces.into_iter().enumerate() {
        hold.push(piece, false);
        out.extend(std::iter::from_fn(|| hold.release()).map(|piece| (index + 1, piece)));
    }
    hold.end();
    out.extend(std::iter::from_fn(|| hold.release()).map(|piece| (count + 1, piece)));
    out
}

#[track_caller]
fn check(input: &TextInput, texts: &[&str], expected: &[&str]) {
    let released = released(input, pieces(texts));
    let found: Vec<&str> = released.iter().map(|(_, piece)| piece.text.as_str()).collect();
    assert_eq!(found, expected);
}

#[test]
fn pieces_before_the_refused_text_are_all_that_is_released() {
    let input = TextInput::default();
    check(&input, &["the ", "forbidden", " fruit", " is ripe"], &["the "]);
    check(&input, &["the ", "forbidden", " fruit"], &["the "]);
    // A piece that begins in harmless text is held with the rest of it.
    check(&input, &["a", " the forb", "idden fruit"], &["a"]);
    check(&input, &["the ", "forbidden", " fruits", "."], &["the ", "forbidden", " fruits", "."]);
    check(&input, &["the ", "forbidden"], &["the ", "forbidden"]);
}

#[test]
fn the_first_bytes_of_a_refused_character_are_held() {
    // The token of the empty piece, and perhaps that of the piece before, have bytes of the character.
    check(&TextInput::default(), &["あの", "x", "", "禁断", "の果実"], &["あの"]);
    // An ASCII character has one byte.
    check(&TextInput::default(), &["あの", "x ", "forbidden fruit"], &["あの", "x "]);
}

#[test]
fn tokens_whose_text_waits_for_a_stop_sequence_are_held() {
    let input = TextInput { stop: vec!["forbidden f".to_owned()], ..TextInput::default() };
    // The handler holds back `forbidden`, and its token is that of a piece without text. Each token
    // before may have up to ten characters of it.
    let texts = ["Eat more. ", "It is good for you. ", "the ", "", "forbidden fruit"];
    check(&input, &texts, &["Eat more. "]);
}

#[test]
fn harmless_text_waits_for_one_more_piece_alone() {
    let released = released(&TextInput::default(), pieces(&["a ", "b ", "forbid ", "c "]));
    let pushed: Vec<usize> = released.iter().map(|(pushed, _)| *pushed).collect();
    assert_eq!(pushed, [2, 3, 4, 5]);
}

#[test]
fn a_refused_reply_among_several_ends_alone() {
    let of = |index, text: &str, last: bool| TextPiece {
        index,
        finish_reason: last.then_some(FinishReason::Stop),
        ..TextPiece::new(7, text)
    };
    let input = TextInput { n: Some(2), ..TextInput::default() };
    let made = vec![
        of(0, "the ", false),
        of(1, "a ", false),
        of(0, "forbidden ", false),
        of(1, "b ", false),
        of(0, "fruit ", false),
        of(1, "c ", false),
        of(0, "is ripe", true),
        of(1, "d", true),
    ];
    let refused =
        TextPiece { finish_reason: Some(FinishReason::ContentFilter), ..TextPiece::default() };
    let expected = [
        of(0, "the ", false),
        of(1, "a ", false),
        refused,
        of(1, "b ", false),
        of(1, "c ", false),
        of(1, "d", true),
    ];
    let found: Vec<TextPiece> =
        released(&input, made).into_iter().map(|(_, piece)| piece).collect();
    assert!(found == expected, "{:?}", found.iter().map(|it| &it.text).collect::<Vec<_>>());
}

#[test]
fn a_refusal_at_the_end_is_told() {
    let (rules, thresholds) = judge();
    let mut hold = Hold::new(&rules, &thresholds, &TextInput::default());
    for piece in pieces(&["the ", "forbidden", " fruit"]) {
        assert_eq!(hold.push(piece, false), None);
    }
    assert_eq!(hold.end(), [0]);
    assert_eq!(hold.finish_reason(), Some(FinishReason::ContentFilter));
}

#[test]
fn the_finish_is_that_of_the_first_reply() {
    let (rules, thresholds) = judge();
    let input = TextInput { n: Some(2), ..TextInput::default() };
    let mut hold = Hold::new(&rules, &thresholds, &input);
    let finish_reason = Some(FinishReason::Length);
    hold.push(TextPiece { finish_reason, ..TextPiece::new(0, "a") }, false);
    let refused = TextPiece { index: 1, ..TextPiece::new(1, "forbidden fruit.") };
    assert_eq!(hold.push(refused, false), Some(0));
    assert!(hold.is_over());
    assert_eq!(hold.finish_reason(), Some(FinishReason::Length));
}
