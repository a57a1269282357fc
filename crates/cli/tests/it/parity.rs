//! Comparison of a model's logits with its own and with modified ones.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};

use nsbridge_llama::parity::Reference;

use crate::place::{Place, Process, nsbridge, until};

fn parity(arguments: &[&str]) -> Output {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/tale-7m");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nsbridge"));
    command.arg("parity").args(arguments).arg("--model").arg(bundled).output().unwrap()
}

#[test]
fn a_model_is_equal_to_what_it_recorded_and_not_to_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (asked, own) = (path("asked.safetensors"), path("own.safetensors"));
    let tokens: Vec<u32> = (0..80).map(|i| i * 37 % 4000).collect();
    let logits = vec![0.0; tokens.len() * 4096];
    Reference::new(tokens, logits).write(Path::new(&asked)).unwrap();

    let recorded = parity(&["record", "--reference", &asked, "--out", &own]);
    assert!(recorded.status.success(), "{recorded:?}");
    let check = |reference: &str, more: &[&str]| {
        let done = parity(&[&["check", "--json", "--reference", reference][..], more].concat());
        let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        (done.status.code(), told["max_abs_difference"].as_f64().unwrap())
    };
    assert_eq!(check(&own, &["--tolerance", "0"]), (Some(0), 0.0));
    let (code, difference) = check(&own, &["--quantize", "q8_0"]);
    assert!(code == Some(1) && difference > 1e-3 && difference < 2.0, "{difference}");
    assert!(check(&asked, &[]).1 > 2.0);

    let missing = parity(&["check", "--reference", &path("none")]);
    let words = String::from_utf8(missing.stderr).unwrap();
    assert!(words.contains("none cannot be read") && words.lines().count() == 1, "{words}");
}

/// Returns the stderr output of a worker that fails before it takes requests.
#[track_caller]
fn refusal(place: &Place) -> String {
    let mut worker = nsbridge(&["worker", "--config", &place.path("worker.toml")]);
    let mut worker = Process(worker.spawn().unwrap());
    // A worker that was not refused would run forever.
    until(|| worker.0.try_wait().unwrap().is_some());
    let mut words = String::new();
    worker.0.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(worker.code(), Some(1), "{words}");
    words
}

#[test]
fn a_worker_that_requires_parity_starts_with_its_own_logits_and_not_with_falsified_ones() {
    let place = Place::new();
    let (asked, own) = (place.path("asked.safetensors"), place.path("own.safetensors"));
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 4000).collect();
    let logits = vec![0.0; tokens.len() * 4096];
    Reference::new(tokens, logits).write(Path::new(&asked)).unwrap();
    let recorded = parity(&["record", "--reference", &asked, "--out", &own]);
    assert!(recorded.status.success(), "{recorded:?}");
    place.configure(&format!(
        "[handler]\nparity_reference = \"{own}\"\nparity_tolerance = 0\nmodel_loading_timeout = 600\n"
    ));
    let mut worker = place.worker();
    worker.signal("-TERM");
    assert_eq!(worker.code(), Some(0));

    let mut falsified = Reference::read(Path::new(&own)).unwrap();
    falsified.logits[12 * 4096 + 5] += 0.125;
    falsified.write(Path::new(&own)).unwrap();
    let words = refusal(&place);
    let sentence = words.lines().last().unwrap();
    for word in ["error: ", "own.safetensors", "1.25", "after 13 of 40 tokens", "parity_tolerance"]
    {
        assert!(sentence.contains(word), "{sentence}");
    }
    assert!(!words.contains("taking requests"), "{words}");
}

#[test]
fn a_worker_that_does_not_load_in_time_leaves_with_one_sentence() {
    let place = Place::new();
    place.configure("[handler]\nmodel_loading_timeout = 0.000001\n");
    let words = refusal(&place);
    let sentence = words.lines().last().unwrap();
    assert!(sentence.contains("error: ") && sentence.contains("model_loading_timeout"), "{words}");
}
