//! A judge that panics on a text fails that request alone.

use std::sync::Arc;

use nsbridge_handler::erased::Servable;
use nsbridge_handler::{
    Batched, Error, FinishReason, JudgeScores, Models, Result, TextPiece, testing,
};
use nsbridge_judged::{
    Category, Finding, Judge, JudgeOptions, Judged, JudgedOptions, Scoring, Selection,
};
use serde_json::{Value, json};

use crate::echo::{AsyncWords, Words};

/// Judge that panics on the letter `é` and finds nothing.
#[derive(Debug)]
struct Fragile([Category; 1]);

impl Judge for Fragile {
    type Options = ();

    fn load((): (), _: &Models) -> Result<Self> {
        Ok(Self([Category::new("anything")]))
    }

    fn categories(&self) -> &[Category] {
        &self.0
    }

    fn window(&self) -> usize {
        4
    }

    fn find(&self, text: &str, _: usize) -> Vec<Finding> {
        assert!(!text.contains('é'), "the canary in {text}");
        Vec::new()
    }

    fn fingerprint(&self) -> Vec<u8> {
        b"fragile".to_vec()
    }
}

#[track_caller]
fn check<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(Error::Failed(why)) => assert_eq!(why.to_string(), "the judge panicked"),
        other => panic!("{other:?}"),
    }
}

/// Checks a handler whose prompts or replies are judged.
#[track_caller]
fn check_judged<H: Servable<K, Output = TextPiece>, K>(handler: &Arc<H>) {
    for prompt in ["é", "a word or two and then é and more", "one two three é"] {
        check(testing::answer(handler, &json!({ "prompt": prompt }), 7, &[]));
        let good = json!({ "prompt": "a good prompt" });
        let (pieces, finish) = testing::answer(handler, &good, 7, &[]).unwrap();
        assert_eq!((pieces.len(), finish.reason), (3, FinishReason::Length));
    }
}

#[test]
fn a_judge_that_panics_on_a_prompt_or_a_reply_fails_that_request_alone() {
    for [before, after] in [[true, false], [false, true]] {
        let options = || {
            let [before, after] = [before, after].map(Selection::All);
            let judge = JudgeOptions { before, after, ..JudgeOptions::default() };
            JudgedOptions { judge: Some(judge), own: () }
        };
        let words: Arc<Judged<Words, Fragile>> =
            testing::load(options(), Models::default()).unwrap();
        check_judged(&words);
        let words: Arc<Judged<AsyncWords, Fragile>> =
            testing::load(options(), Models::default()).unwrap();
        check_judged(&words);
    }
}

#[test]
fn a_judge_that_panics_on_a_text_to_score_fails_that_request_alone() {
    let scoring: Arc<Batched<Scoring<Fragile>>> = testing::load(
        serde_json::from_value(Value::Object(Default::default())).unwrap(),
        Models::default(),
    )
    .unwrap();
    check(testing::answer(&scoring, &json!({ "text": "é" }), 7, &[]));
    let (scores, _) = testing::answer(&scoring, &json!({ "text": "e" }), 7, &[]).unwrap();
    assert!(matches!(scores.as_slice(), [JudgeScores(scores)] if scores["anything"] == 0.0));
}
