//! Any bytes as frames from a broker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::frames(bytes));
