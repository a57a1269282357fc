//! The layer keeps the contract of the handler, and changes nothing where nothing is refused.

use std::sync::Arc;

use nsbridge_handler::erased::Servable;
use nsbridge_handler::{
    AsyncHandler as _, Finish, Handler as _, Models, TextInput, TextPiece, testing,
};
use nsbridge_judged::{Judged, JudgedOptions};
use serde_json::{Value, json};

use crate::echo::{AsyncWords, Words, async_words, said, words};

const STORY: &str = "Once upon a time a bear went to the sea and heard the waves of 1999.";

fn whole<H: Servable<K, Output = TextPiece>, K>(
    handler: &Arc<H>,
    input: &Value,
) -> (Vec<TextPiece>, Finish) {
    testing::answer(handler, input, 1, &[]).unwrap()
}

#[test]
fn a_judged_handler_is_a_handler_by_the_book() {
    let input = json!({ "prompt": STORY });
    assert_eq!(testing::check(&words(true, true), &input), Ok(()));
    assert_eq!(testing::check(&async_words(true, true), &input), Ok(()));
    let several = json!({ "prompt": STORY, "n": 3 });
    assert_eq!(testing::check(&words(true, true), &several), Ok(()));
    assert_eq!(testing::check(&async_words(true, true), &several), Ok(()));
}

#[test]
fn a_handler_keeps_its_contract_where_its_reply_is_refused() {
    let input = json!({ "prompt": "Ten words come before the mail address, which is taro@example.com to be sure." });
    assert_eq!(testing::check(&words(false, true), &input), Ok(()));
    assert_eq!(testing::check(&async_words(false, true), &input), Ok(()));
    let mut several = input;
    several["n"] = 2.into();
    assert_eq!(testing::check(&words(false, true), &several), Ok(()));
    assert_eq!(testing::check(&async_words(false, true), &several), Ok(()));
}

#[test]
fn pieces_and_finish_are_the_handlers_own_where_nothing_is_refused() {
    let [judged, passed] = [words(true, true), words(false, true)];
    let [awaited, before] = [async_words(true, true), async_words(true, false)];
    for prompt in [STORY, "", " ", "4111", "no space", "クマが 海辺に 行った。 090", "a b c 1 2 3 "]
    {
        for n in [1, 2, 4] {
            let input = json!({ "prompt": prompt, "n": n });
            let expected = said(&serde_json::from_value::<TextInput>(input.clone()).unwrap());
            for (pieces, finish) in [
                whole(&judged, &input),
                whole(&passed, &input),
                whole(&awaited, &input),
                whole(&before, &input),
            ] {
                assert!(pieces == expected, "{prompt:?} {n}");
                assert_eq!(finish, Finish::LENGTH);
            }
        }
    }
}

#[test]
fn without_its_table_the_layer_is_absent() {
    let bare: Arc<Judged<Words>> =
        testing::load(JudgedOptions::default(), Models::default()).unwrap();
    let input = json!({ "prompt": "Mail taro@example.com." });
    assert_eq!(whole(&bare, &input).0.len(), 2);
    assert_eq!((bare.fingerprint(), bare.measures()), (None, vec![]));
}

#[test]
fn the_fingerprint_covers_judge_and_policy() {
    let bare: Arc<Judged<AsyncWords>> =
        testing::load(JudgedOptions::default(), Models::default()).unwrap();
    let mut prints: Vec<_> = [(true, true), (true, false), (false, true)]
        .map(|(before, after)| async_words(before, after).fingerprint())
        .to_vec();
    prints.push(bare.fingerprint());
    let count = prints.len();
    prints.sort_by_key(|print| print.map(|print| print.0));
    prints.dedup();
    assert_eq!(prints.len(), count);
    assert_eq!(async_words(true, true).fingerprint(), async_words(true, true).fingerprint());
}
