//! The model as ONNX, in Python with onnxruntime (`examples/python/onnx`), beside the model in Rust.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use classifier::Identifier;
use nsbridge::testing::{answer, check, load};
use nsbridge::{BatchOptions, Batched, Error, JudgeScores, Model, Models};
use nsbridge_python::{Options, Python};
use serde_json::json;

fn in_examples(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns a Python with onnx and onnxruntime, which `cargo xtask test` names.
fn python() -> PathBuf {
    std::env::var_os("NSBRIDGE_TEST_ONNX").map_or_else(|| "python3".into(), PathBuf::from)
}

fn models(folder: &Path) -> Models {
    [("target".to_owned(), Model::in_dir(folder))].into_iter().collect()
}

fn likeliest(scores: &JudgeScores) -> &str {
    scores.0.iter().max_by(|one, other| one.1.total_cmp(other.1)).unwrap().0
}

#[test]
fn the_exported_model_gives_the_verdicts_of_the_model_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let exported = folder.path().join("six-languages");
    let mut export = Command::new(python());
    export.arg("-B").arg(in_examples("python/onnx/export.py"));
    export.arg(in_examples("models/six-languages")).arg(&exported);
    assert!(export.status().unwrap().success());
    let mut options = Options::new(in_examples("python/onnx/model.py"));
    options.python = python();
    let onnx = load::<Python, _>(options, models(&exported)).unwrap();
    let rust = models(&in_examples("models/six-languages"));
    let rust = load::<Batched<Identifier>, _>(BatchOptions::default(), rust).unwrap();
    let held_out = include_str!("../../data/held-out.tsv").lines();
    let texts = held_out.map(|line| line.split_once('\t').unwrap().1);
    let (mut compared, mut furthest) = (0, 0.0_f64);
    for text in texts.chain(["a", "Ça va? 12 × où", "ÄÖÜ straße STRASSE"]) {
        let input = json!({ "text": text });
        let (pieces, _) = answer(&onnx, &input, 1, &[]).unwrap();
        assert_eq!(pieces.len(), 1);
        let scores: JudgeScores = serde_json::from_str(pieces[0].get()).unwrap();
        let (expected, _) = answer(&rust, &input, 1, &[]).unwrap();
        assert_eq!(likeliest(&scores), likeliest(&expected[0]), "{text}");
        for (label, score) in &expected[0].0 {
            furthest = furthest.max((scores.0[label] - score).abs());
        }
        compared += 1;
    }
    assert!(compared > 70 && furthest < 1e-5, "{compared} texts, {furthest} apart");
    // The contract, and an input that it refuses.
    assert_eq!(check(&onnx, &json!({ "text": "the bear went down to the sea" })), Ok(()));
    let refused = answer(&onnx, &json!({ "text": " 1, 2 " }), 1, &[]);
    assert!(matches!(refused, Err(Error::BadInput(why)) if why.contains("has no letters")));
}
