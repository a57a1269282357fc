//! Any bytes as a vocabulary in a GGUF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::vocabulary(bytes));
