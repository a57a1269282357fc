//! The example client in another language, against a live worker.

use std::path::Path;
use std::process::Command;

use crate::place::{Place, Process};

/// The interpreter with the client's two libraries, as `cargo xtask test` sets it up.
#[expect(clippy::disallowed_methods, reason = "the test run says where its Python is")]
fn python() -> String {
    std::env::var("NSBRIDGE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

#[test]
fn the_python_client_reads_the_same_story() {
    let place = Place::new();
    let _worker = place.worker();
    let story = ["--seed", "7", "--max-tokens", "60", "クマが海辺に行って"];
    let ours = Process(place.ask(&story).spawn().unwrap()).lines().next().unwrap().unwrap();

    let client = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/python-client/nsbridge_client.py");
    let mut python = Command::new(python());
    python.arg(client).args(["--url", &place.url, "--keyring", &place.path("keys.json")]);
    let output =
        python.args(["--model", &place.model, "--tenant", "t"]).args(story).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "run `cargo xtask test`, which sets Python up: {said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().next(), Some(&*ours));
}
