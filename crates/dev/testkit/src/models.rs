//! Real models for tests.

use std::path::PathBuf;

/// Returns the GGUF file of SmolLM2-135M-Instruct, which `cargo xtask test` fetches.
///
/// # Panics
///
/// Panics if `NSBRIDGE_TEST_SMOLLM2` names no file: a test of a real model must not pass without
/// one.
#[expect(clippy::panic, reason = "for tests, which end here with this sentence")]
pub fn smollm2() -> PathBuf {
    let named = std::env::var_os("NSBRIDGE_TEST_SMOLLM2").map(PathBuf::from);
    match named {
        Some(file) if file.is_file() => file,
        _ => panic!(
            "this test needs SmolLM2-135M-Instruct: `cargo xtask test` fetches it, or set \
             NSBRIDGE_TEST_SMOLLM2 to the path that `cargo xtask models` prints"
        ),
    }
}
