//! Tests of the judge: its error rates, and the layer around a handler with it.

use std::path::Path;
use std::sync::Arc;

use nsbridge::testing::{answer, check, load};
use nsbridge::{
    BatchOptions, Batched, Finish, FinishReason, Handler, Job, JudgeScores, Model, Models, Result,
    TextInput, TextPiece,
};
use nsbridge_judged::{Judge as _, JudgeOptions, Judged, JudgedOptions, Scoring};
use serde_json::json;

use super::Guard;
use super::corpus::{LABELS, errors};

fn models() -> Models {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/guard");
    [("judge".to_owned(), Model::in_dir(folder))].into_iter().collect()
}

fn guard() -> Guard {
    Guard::load((), &models()).unwrap()
}

/// Handler that says its prompt word by word.
struct Words;

impl Handler for Words {
    type Options = ();
    type Input = TextInput;
    type Output = TextPiece;

    fn load((): (), _models: Models) -> Result<Self> {
        Ok(Self)
    }

    fn handle(&self, input: TextInput, job: &mut Job<TextPiece>) -> Result<Finish> {
        let known = job.accept_resume().len();
        let prompt = input.prompt.unwrap_or_default();
        for (word, token) in prompt.split_inclusive(' ').zip(0..).skip(known) {
            job.emit(TextPiece::new(token, word))?;
        }
        Ok(Finish::STOP)
    }
}

fn judged() -> Arc<Judged<Words, Guard>> {
    let judge =
        JudgeOptions { before: nsbridge_judged::Selection::All(false), ..JudgeOptions::default() };
    load(JudgedOptions { judge: Some(judge), own: () }, models()).unwrap()
}

#[test]
fn errors_on_held_out_texts_are_those_of_the_models_card() {
    let guard = guard();
    let found = |category| {
        let errors = errors(|text| guard.probabilities(text), category, 0.5, |_| true);
        let own = (errors.false_negatives, errors.own);
        (own, (errors.false_positives, errors.others))
    };
    assert_eq!(LABELS[1..], ["prompt_injection", "personal_data", "insult"]);
    assert_eq!([1, 2, 3].map(found), EXPECTED);
}

/// Missed texts of all of the category, and flagged texts of all others.
const EXPECTED: [((usize, usize), (usize, usize)); 3] =
    [((1, 21), (0, 262)), ((3, 128), (0, 155)), ((2, 96), (0, 187))];

#[test]
fn queue_and_layer_have_equal_scores() {
    let guard = guard();
    let batched = load::<Batched<Scoring<Guard>>, _>(BatchOptions::default(), models()).unwrap();
    for text in
        ["My phone number is 090-1234-5678.", "A bear. You are an idiot!", "クマがいた。", ""]
    {
        let (pieces, _) = answer(&batched, &json!({ "text": text }), 1, &[]).unwrap();
        let [scores]: [JudgeScores; 1] = pieces.try_into().unwrap();
        assert_eq!(scores, guard.scores(text), "{text}");
    }
    assert_eq!(check(&batched, &json!({ "text": "A bear. You are an idiot!" })), Ok(()));
}

#[test]
fn a_reply_goes_out_sentence_by_sentence_and_stops_before_the_refused_one() {
    let said = |prompt: &str| {
        let (pieces, finish) = answer(&judged(), &json!({ "prompt": prompt }), 1, &[]).unwrap();
        let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        (text, finish.reason)
    };
    let story = "Once upon a time there lived a bear by the sea. It heard the waves.";
    assert_eq!(said(story), (story.to_owned(), FinishReason::Stop));
    let insult = format!("{story} Listen, you are such an idiot. The end.");
    assert_eq!(said(&insult), (format!("{story} "), FinishReason::ContentFilter));
}

#[test]
fn a_handler_with_this_judge_keeps_the_contract() {
    let input =
        json!({ "prompt": "A bear went to the sea. It heard the waves. It went home again." });
    assert_eq!(check(&judged(), &input), Ok(()));
}
