//! The results that the self-test of a device expects are those of the emulator.

#[path = "../../examples/self_test/cases.rs"]
pub(crate) mod cases;

use cases::{Outcome, TOLERANCE};

use crate::device;

const EXPECTED: &str = include_str!("../../examples/self_test/expected.txt");

#[test]
fn the_self_test_expects_what_the_emulator_gives() {
    let mut hashes = String::new();
    let mut run = |kernel: &str, outcome| match outcome {
        Outcome::Bits(hash) => hashes.push_str(&format!("{kernel} {hash:016x}\n")),
        Outcome::Difference(apart) => assert!(apart <= TOLERANCE, "{kernel}: {apart}"),
    };
    cases::run(&device(3), &mut run).unwrap();
    assert_eq!(hashes, EXPECTED);
}
