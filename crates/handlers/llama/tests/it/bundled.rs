//! Tests of the bundled trained model. It is retrained now and then, so its text is not checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nsbridge_handler::Model;
use nsbridge_handler::testing::{answer, check, load};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::replies::uncached;
use crate::tiny::models;

pub(crate) fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models").join(name)
}

fn tale() -> Arc<Llama> {
    load(Options::default(), models(&bundled("tale-7m"))).unwrap()
}

/// Loads the model with the draft model in this folder.
fn drafted_tale(draft: &str) -> Arc<Llama> {
    let models = [("target", "tale-7m"), ("draft", draft)];
    let models = models.map(|(name, dir)| (name.to_owned(), Model::in_dir(bundled(dir))));
    load(Options::default(), models.into_iter().collect()).unwrap()
}

fn chat(temperature: f64) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "灯台守の話をしてください。" }],
        "temperature": temperature, "max_tokens": 32
    })
}

#[test]
fn the_bundled_model_keeps_its_contract() {
    assert_eq!(check(&tale(), &chat(0.8)), Ok(()));
}

#[test]
fn the_bundled_model_resumes_as_if_nothing_had_happened() {
    let tale = tale();
    for temperature in [0.0, 0.8] {
        let whole = answer(&tale, &chat(temperature), 3, &[]).unwrap();
        for at in [1, whole.0.len() / 2] {
            let again = answer(&tale, &chat(temperature), 3, &whole.0[..at]).unwrap();
            assert_eq!(uncached(again), uncached(whole.clone()));
        }
    }
}

#[test]
fn the_bundled_model_says_something_in_japanese() {
    let (pieces, _) = answer(&tale(), &chat(0.7), 3, &[]).unwrap();
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let japanese = |c: char| matches!(c, '\u{3040}'..='\u{30ff}' | '\u{4e00}'..='\u{9fff}');
    let share = text.chars().filter(|c| japanese(*c)).count();
    assert!(2 * share > text.chars().count(), "{share} of {}", text.chars().count());
    assert!(!text.contains('\u{fffd}'));
}

#[test]
fn the_bundled_pair_says_what_the_target_says_alone() {
    let (alone, pair) = (tale(), drafted_tale("tale-1m"));
    let (mut drafted, mut accepted) = (0, 0);
    for temperature in [0.0, 0.7, 1.5] {
        for (seed, penalty) in [(1, 1.0), (2, 1.3), (3, 1.0)] {
            let mut input = chat(temperature);
            input["max_tokens"] = json!(120);
            input["repetition_penalty"] = json!(penalty);
            let expected = answer(&alone, &input, seed, &[]).unwrap();
            let made = answer(&pair, &input, seed, &[]).unwrap();
            drafted += made.1.usage.drafted_tokens;
            accepted += made.1.usage.accepted_tokens;
            assert_eq!(uncached(made), uncached(expected), "{input}");
        }
    }
    assert!(drafted > 500 && 10 * accepted > 6 * drafted, "{accepted} of {drafted}");
}
