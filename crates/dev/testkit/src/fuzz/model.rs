//! Fuzz target for model files: a checkpoint that opens must load.

use std::sync::Arc;

use nsbridge_checkpoint::{Checkpoint, Order, Weight, Weights};
use nsbridge_handler::{Error, Model, Result};

use super::memory::InMemory;

/// A sentence is not longer than this, whatever a file holds.
const LONGEST_SENTENCE: usize = 8 << 10;

/// Opens a model of these files, and loads it if it opens.
pub(super) fn read(files: &[(&str, &[u8])]) {
    let model = Model::from_source(Arc::new(InMemory::new(files)));
    match Checkpoint::open(&model) {
        Ok(checkpoint) => load(&checkpoint, files).expect("what was opened can be loaded"),
        Err(error) => refused(&error, files),
    }
}

/// The worker leaves with one sentence that names a file.
pub(super) fn refused(error: &Error, files: &[(&str, &[u8])]) {
    let sentence = error.to_string();
    assert!(matches!(error, Error::Fatal(_)), "{sentence}");
    assert!(!sentence.contains(char::is_control), "{sentence:?}");
    assert!(sentence.len() < LONGEST_SENTENCE, "{} bytes: {sentence}", sentence.len());
    assert!(files.iter().any(|(path, _)| sentence.contains(path)), "{sentence}");
}

fn load(checkpoint: &Checkpoint, files: &[(&str, &[u8])]) -> Result<()> {
    let there: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let claimed: u64 = checkpoint.tensors().iter().map(|tensor| tensor.bytes()).sum();
    assert!(claimed <= there, "tensors of {claimed} bytes in files of {there}");
    let weights = checkpoint.load(&Order::everything().for_ranks(2))?;
    for tensor in checkpoint.tensors() {
        let whole = weights.tensor(&tensor.name)?;
        assert_eq!(whole.contiguous().len() as u64, tensor.bytes());
        let (count, bytes) = tensor.dtype.block();
        assert_eq!(tensor.elements() / count as u64 * bytes as u64, tensor.bytes());
        for dim in 0..3 {
            share(&weights, &whole, &tensor.name, dim);
        }
    }
    Ok(())
}

/// Checks that the parts of two ranks make the whole tensor, where it can be shared.
fn share(weights: &Weights, whole: &Weight, name: &str, dim: usize) {
    let of = |rank| weights.shard(name, dim, rank);
    let (Ok(left), Ok(right)) = (of(0), of(1)) else { return };
    assert_eq!(left.shape(), right.shape());
    let (left, right, whole) = (left.contiguous(), right.contiguous(), whole.contiguous());
    if dim == 0 {
        assert_eq!([left, right].concat(), *whole);
    } else {
        assert_eq!(left.len() + right.len(), whole.len());
    }
}
