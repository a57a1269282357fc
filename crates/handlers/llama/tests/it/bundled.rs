//! The bundled trained model. It is trained anew now and then, so its text is not held here.

use std::path::Path;
use std::sync::Arc;

use nsbridge_handler::testing::{answer, check, load};
use nsbridge_llama::{Llama, Options};
use serde_json::{Value, json};

use crate::replies::uncached;
use crate::tiny::models;

fn tale() -> Arc<Llama> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tale-7m");
    load(Options::default(), models(&dir)).unwrap()
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
