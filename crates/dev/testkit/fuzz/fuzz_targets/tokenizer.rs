//! Any bytes as a model's tokenizer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::tokenizer(bytes));
