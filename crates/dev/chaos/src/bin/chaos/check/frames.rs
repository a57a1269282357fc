//! Checks of reply frames: nonce reuse, attempt numbers, repeated sends.

use std::collections::{BTreeMap, HashMap};

use crate::journal::{Line, What};
use crate::plan::Plan;

use super::Report;

/// Checks that no nonce is used for two contents. A stream has one key and a frame's number is its
/// nonce, so frames with the same number in the same stream must have the same bytes, however often
/// they are sent.
pub(super) fn check(plan: &Plan, lines: &[Line], report: &mut Report) {
    let mut seen: HashMap<(&str, u64), u64> = HashMap::new();
    let (mut again, mut reused) = (0, BTreeMap::<&str, u64>::new());
    for line in lines {
        let What::Frame { stream, seq, hash, .. } = &line.what else { continue };
        match seen.insert((stream, *seq), *hash) {
            None => {}
            Some(first) if first == *hash => again += 1,
            Some(_) => *reused.entry(stream).or_default() += 1,
        }
    }
    for (stream, times) in reused {
        let what = format!("a nonce of stream {stream} has two contents, {times} times");
        report.broken.push(what);
    }
    let highest = lines.iter().filter_map(attempt).max().unwrap_or(0);
    if let Some(most) = plan.rules.most_attempts.filter(|most| highest > *most) {
        report.broken.push(format!("a request came to attempt {highest}, not {most} at most"));
    }
    if again < plan.rules.sent_again {
        let meant = plan.rules.sent_again;
        report.broken.push(format!("{again} frames were sent again, not {meant}"));
    }
}

/// Returns the attempt number of a frame that opens a stream, a big-endian `u32` at byte 80.
fn attempt(line: &Line) -> Option<u32> {
    let What::Frame { open: Some(frame), .. } = &line.what else { return None };
    u32::from_str_radix(frame.get(160..168)?, 16).ok()
}
