//! Any bytes as a safetensors file or its index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::safetensors(bytes));
