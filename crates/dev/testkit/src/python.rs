//! Python interpreters with packages for tests.

use std::path::PathBuf;

/// Returns the Python with jsonschema and pydantic, which `cargo xtask test` installs.
///
/// # Panics
///
/// Panics if `NSBRIDGE_TEST_SCHEMAS` is not set: a comparison with a validator must not pass without
/// one.
#[expect(clippy::panic, reason = "for tests, which end here with this sentence")]
pub fn with_schemas() -> PathBuf {
    let named = std::env::var_os("NSBRIDGE_TEST_SCHEMAS").map(PathBuf::from);
    named.unwrap_or_else(|| {
        panic!(
            "this test needs jsonschema and pydantic: `cargo xtask test` installs them, or set \
             NSBRIDGE_TEST_SCHEMAS to a Python with what crates/handlers/python/tests/requirements.txt \
             lists"
        )
    })
}
