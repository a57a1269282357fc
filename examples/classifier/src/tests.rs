//! Tests of the example against its contract, and of the accuracy that its model card states.

use std::path::{Path, PathBuf};

use nsbridge::checkpoint::Checkpoint;
use nsbridge::testing::{answer, check, check_batch, load};
use nsbridge::{Batch, BatchOptions, Batched, Error, JudgeScores, Model, Models};
use serde_json::json;

use super::{Config, Identifier, Network, grams};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/six-languages")
}

fn models() -> Models {
    [("target".to_owned(), Model::in_dir(folder()))].into_iter().collect()
}

fn identifier() -> Identifier {
    Identifier::load((), models()).unwrap()
}

fn held_out() -> Vec<(&'static str, &'static str)> {
    let text = include_str!("../data/held-out.tsv");
    text.lines().map(|line| line.split_once('\t').unwrap()).collect()
}

/// Rows of texts of all languages and lengths.
fn rows(identifier: &Identifier) -> Vec<Vec<f32>> {
    let texts = held_out();
    let long = texts.iter().map(|(_, text)| *text).collect::<Vec<_>>().join(" ");
    let texts = texts.iter().map(|(_, text)| *text).chain(["a", long.as_str()]);
    texts.map(|text| grams(text, identifier.config.buckets).unwrap()).collect()
}

fn likeliest(scores: &JudgeScores) -> (String, f64) {
    let best = scores.0.iter().max_by(|one, other| one.1.total_cmp(other.1));
    best.map(|(language, score)| (language.clone(), *score)).unwrap()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_batch_of_any_size_gives_what_each_gets_alone_to_the_bit() {
    let identifier = identifier();
    let rows = rows(&identifier);
    let alone: Vec<_> =
        rows.iter().map(|row| identifier.network.forward(std::slice::from_ref(row))).collect();
    for size in [2, 3, 8, 32, rows.len()] {
        for (batch, alone) in rows.chunks(size).zip(alone.chunks(size)) {
            assert_eq!(bits(&identifier.network.forward(batch)), bits(&alone.concat()));
        }
    }
}

#[test]
fn neighbours_do_not_matter_and_an_empty_text_fails_alone() {
    let long = "wij weten het niet ".repeat(200);
    let texts = ["Guten Tag", "", "où", "What is this?", &long, "12 + 30"];
    let texts: Vec<_> = texts.iter().map(|text| json!({ "text": text })).collect();
    assert_eq!(check_batch(&mut identifier(), &texts), Ok(()));
}

#[test]
fn the_identifier_is_a_handler_by_the_book() {
    let handler = load::<Batched<Identifier>, _>(BatchOptions::default(), models()).unwrap();
    assert_eq!(check(&handler, &json!({ "text": "the bear went down to the sea" })), Ok(()));
}

#[test]
fn what_cannot_be_told_is_refused_in_a_sentence() {
    let handler = load::<Batched<Identifier>, _>(BatchOptions::default(), models()).unwrap();
    let says = |text: &str| match answer(&handler, &json!({ "text": text }), 1, &[]) {
        Err(Error::BadInput(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(says(" 1, 2 ").contains("has no letters"));
    assert!(says(&"a".repeat(20_000)).contains("`text` has 20000 bytes"));
    let asked = |label: &str| json!({ "text": "the bear", "labels": [{ "label": label }] });
    match answer(&handler, &asked("xx"), 1, &[]) {
        Err(Error::BadInput(why)) => assert!(why.contains("and may have") && why.contains("nl")),
        other => panic!("{other:?}"),
    }
    assert!(answer(&handler, &asked("en"), 1, &[]).is_ok());
}

#[test]
fn languages_are_told_as_often_as_the_models_card_says() {
    let identifier = identifier();
    let told = |text: &str| {
        identifier
            .read(text)
            .map(|row| likeliest(&identifier.scores(&identifier.network.forward(&[row]))).0)
    };
    let right = |words: usize| {
        let texts = held_out().into_iter().flat_map(|(language, text)| {
            let text: Vec<_> = text.split(' ').collect();
            let parts: Vec<_> =
                text.chunks(words.min(text.len())).map(|part| part.join(" ")).collect();
            parts.into_iter().map(move |part| (language, part))
        });
        let answers: Vec<_> =
            texts.filter_map(|(language, text)| Some(told(&text).ok()? == language)).collect();
        (answers.iter().filter(|right| **right).count(), answers.len())
    };
    assert_eq!(right(usize::MAX), (72, 72));
    assert_eq!(right(5), (181, 200));
}

#[test]
fn an_answer_has_the_probability_of_each_language() {
    let handler = load::<Batched<Identifier>, _>(BatchOptions::default(), models()).unwrap();
    let text = "Il ne fait pas beau aujourd'hui, mais demain il fera chaud.";
    let (answers, _) = answer(&handler, &json!({ "text": text }), 1, &[]).unwrap();
    let (language, probability) = likeliest(&answers[0]);
    assert_eq!(language, "fr");
    assert!((0.9..=1.0).contains(&probability), "{:?}", answers[0].0);
    let sum: f64 = answers[0].0.values().sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
}

#[test]
fn weights_that_do_not_fit_the_configuration_are_named() {
    let checkpoint = Checkpoint::open(&Model::in_dir(folder())).unwrap();
    let labels = |n: usize| vec!["xx".to_owned(); n];
    let refusal = |buckets, hidden, labels| {
        let config = Config { buckets, hidden, labels };
        Network::load(&checkpoint, &config).unwrap_err().to_string()
    };
    let Config { buckets, hidden, .. } = identifier().config;
    assert!(refusal(buckets + 1, hidden, labels(6)).contains("first.weight has the shape"));
    assert!(refusal(buckets, hidden, labels(7)).contains("second.weight has the shape"));
    assert!(refusal(buckets, 0, labels(6)).contains("at least one"));
}
