//! Tests of the example against the contract of a handler.

use std::path::Path;
use std::sync::Arc;

use nsbridge::testing::{answer, check, load};
use nsbridge::{Model, Models};
use serde_json::json;

use super::{Options, Storyteller};

fn storyteller() -> Arc<Storyteller> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tale-7m");
    let models: Models = [("target".to_owned(), Model::in_dir(dir))].into_iter().collect();
    load(Options::default(), models).unwrap()
}

#[test]
fn the_storyteller_keeps_its_contract() {
    let input = json!({ "prompt": "昔々", "max_tokens": 16 });
    assert_eq!(check(&storyteller(), &input), Ok(()));
}

#[test]
fn the_seed_decides_what_is_told() {
    let storyteller = storyteller();
    let told = |seed| {
        let input = json!({ "prompt": "Once", "max_tokens": 24, "temperature": 1.5 });
        answer(&storyteller, &input, seed, &[]).unwrap().0
    };
    assert_eq!(told(1), told(1));
    assert_ne!(told(1), told(2));
}
