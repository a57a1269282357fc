//! Tests of the bundled trained model. It is retrained now and then, so its text is not checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nsbridge_handler::testing::{answer, check, load};
use nsbridge_handler::{AsyncHandler, Model};
use nsbridge_llama::{Arithmetic, Llama, NativeSpeed, Options, Tier};
use serde_json::{Value, json};

use crate::replies::uncached;
use crate::tiny::models;

pub(crate) fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models").join(name)
}

const ARITHMETICS: [Arithmetic; 2] = [Arithmetic::Portable, Arithmetic::Native];

fn with(arithmetic: Arithmetic) -> Options {
    Options { arithmetic: Some(arithmetic), ..Options::default() }
}

fn tale(arithmetic: Arithmetic) -> Arc<Llama> {
    load(with(arithmetic), models(&bundled("tale-7m"))).unwrap()
}

/// Loads the model with the draft model in this folder.
fn drafted_tale(draft: &str, arithmetic: Arithmetic) -> Arc<Llama> {
    let models = [("target", "tale-7m"), ("draft", draft)];
    let models = models.map(|(name, dir)| (name.to_owned(), Model::in_dir(bundled(dir))));
    load(with(arithmetic), models.into_iter().collect()).unwrap()
}

fn chat(temperature: f64) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "灯台守の話をしてください。" }],
        "temperature": temperature, "max_tokens": 32
    })
}

#[test]
fn the_bundled_model_keeps_its_contract() {
    assert_eq!(check(&tale(Arithmetic::Portable), &chat(0.8)), Ok(()));
}

#[test]
fn the_bundled_model_resumes_as_if_nothing_had_happened() {
    for arithmetic in ARITHMETICS {
        let tale = tale(arithmetic);
        for temperature in [0.0, 0.8] {
            let whole = answer(&tale, &chat(temperature), 3, &[]).unwrap();
            for at in [1, whole.0.len() / 2] {
                let again = answer(&tale, &chat(temperature), 3, &whole.0[..at]).unwrap();
                assert_eq!(uncached(again), uncached(whole.clone()), "{arithmetic:?}");
            }
        }
    }
}

#[test]
fn the_native_arithmetic_has_a_fingerprint_of_its_own_where_the_cpu_has_it() {
    let of = |arithmetic| AsyncHandler::fingerprint(&*tale(arithmetic)).unwrap();
    let has_its_own = Tier::best().bf16_order().is_some();
    assert_eq!(of(Arithmetic::Native) != of(Arithmetic::Portable), has_its_own);
    let speed = NativeSpeed::measure().unwrap();
    assert_eq!(speed.map(|speed| speed.tier), has_its_own.then(Tier::best));
}

#[test]
fn earlier_names_of_an_arithmetic_are_still_read() {
    for (name, arithmetic) in [("exact", Arithmetic::Portable), ("bf16", Arithmetic::Native)] {
        let options: Options = serde_json::from_value(json!({ "arithmetic": name })).unwrap();
        assert_eq!(options, with(arithmetic));
    }
}

#[test]
fn the_bundled_model_says_something_in_japanese() {
    let (pieces, _) = answer(&tale(Arithmetic::Portable), &chat(0.7), 3, &[]).unwrap();
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let japanese = |c: char| matches!(c, '\u{3040}'..='\u{30ff}' | '\u{4e00}'..='\u{9fff}');
    let share = text.chars().filter(|c| japanese(*c)).count();
    assert!(2 * share > text.chars().count(), "{share} of {}", text.chars().count());
    assert!(!text.contains('\u{fffd}'));
}

#[test]
fn the_bundled_pair_says_what_the_target_says_alone() {
    ARITHMETICS.into_iter().for_each(check_pair);
}

fn check_pair(arithmetic: Arithmetic) {
    let (alone, pair) = (tale(arithmetic), drafted_tale("tale-1m", arithmetic));
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
