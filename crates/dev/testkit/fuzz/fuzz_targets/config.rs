//! Any bytes as a model's shape.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::config(bytes));
