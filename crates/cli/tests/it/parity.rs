//! A model beside its own logits, and beside others.

use std::path::Path;
use std::process::{Command, Output};

use nsbridge_llama::parity::Reference;

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
    Reference { tokens, logits }.write(Path::new(&asked)).unwrap();

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
