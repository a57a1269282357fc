//! Any bytes as a manifest, an alias or an address.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::manifest(bytes));
