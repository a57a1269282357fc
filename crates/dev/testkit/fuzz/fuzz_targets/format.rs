//! Any bytes as a request's `response_format`.
#![no_main]

use std::sync::Once;

static HOOK: Once = Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // libFuzzer's hook aborts at any panic. llguidance catches some of its own and makes them
    // refusals, so they must unwind; a panic that nothing catches still aborts.
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
    nsbridge_testkit::fuzz::format(bytes);
});
