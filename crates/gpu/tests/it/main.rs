//! Tests of the kernels on the emulator, against the CPU's.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod attention;
mod matrix;
mod rows;
mod self_test;

use std::sync::Arc;

use nsbridge_gpu::device::{Buffer, Device};
use nsbridge_gpu::emulator::Emulator;
use nsbridge_gpu::rows::Count;

use self_test::cases::numbers;

/// Orders in which the threads of a block run. A missing barrier gives other results in one of them.
const ORDERS: [u32; 4] = [0, 1, 2, 77];

fn device(order: u32) -> Arc<dyn Device> {
    let emulator = Emulator::new();
    emulator.set_order(order);
    Arc::new(emulator)
}

fn counts(device: &Arc<dyn Device>, numbers: &[u32]) -> Buffer {
    Buffer::of(device, numbers).unwrap()
}

fn count(buffer: &Buffer) -> Count<'_> {
    Count::new(buffer, 0)
}

fn read(buffer: &Buffer, len: usize) -> Vec<f32> {
    let mut out = vec![0.0; len];
    buffer.read(0, &mut out).unwrap();
    out
}

/// Asserts that all numbers have the same bits.
#[track_caller]
fn assert_bits(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.to_bits(), theirs.to_bits(), "{what}, number {at}: {ours} and {theirs}");
    }
}
