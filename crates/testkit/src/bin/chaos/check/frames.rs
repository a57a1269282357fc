//! No nonce is used for two contents.

use std::collections::HashMap;

use crate::journal::{Line, What};

use super::Report;

/// A stream has one key, and a frame's number is its nonce: the same number in the same stream
/// must be the same bytes, however often it is sent.
pub(super) fn check(lines: &[Line], report: &mut Report) {
    let mut seen: HashMap<(&str, u64), u64> = HashMap::new();
    for line in lines {
        let What::Frame { stream, seq, hash, .. } = &line.what else { continue };
        let first = *seen.entry((stream, *seq)).or_insert(*hash);
        if first != *hash {
            report.broken.push(format!("stream {stream} has two contents under number {seq}"));
        }
    }
}
