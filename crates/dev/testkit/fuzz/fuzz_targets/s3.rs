//! Any bytes as a response of an object store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nsbridge_testkit::fuzz::s3(bytes));
