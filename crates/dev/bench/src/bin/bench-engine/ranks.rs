//! Comparison of two ranks with one thread each and one rank with two threads.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use nsbridge_bench::report::Row;
use nsbridge_llama::{Arithmetic, Mix};

use crate::engine::{Engine, Question};
use crate::kept::Kept;
use crate::rounds::{Group, Seen};
use crate::{THREADS, row};

/// Measures each format, after a check that the logits are bit-identical.
pub(crate) fn measure(model: &Path, folder: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mix in [Mix::Q8_0, Mix::Bf16, Mix::Q4KM] {
        let dir = Kept::of(model, mix, folder)?.dir;
        let mut one = Engine::ours(&dir, THREADS, 1, Arithmetic::Portable)?;
        let mut two = Engine::ours(&dir, THREADS, 2, Arithmetic::Portable)?;
        let logits = |engine: &mut Engine| engine.ask(Question::Logits)?.context("ours has logits");
        ensure!(logits(&mut one)? == logits(&mut two)?, "two ranks have other logits than one");
        one.about = "this engine, one rank with two threads, equal bits".into();
        let mut group = Group::new(two, vec![one]);
        group.measure(crate::ROUNDS, None)?;
        let mut push = |what: &str, of: &dyn Fn(&Seen) -> f64| {
            let name = format!("engine.tp2{what}.{mix}");
            rows.push(row(name, "tokens/s", true, &group, &group.peers[0], of));
        };
        push("", &|seen| seen.decode);
        push(".prefill", &|seen| seen.prefill);
        push(".streams16", &|seen| seen.streams);
    }
    Ok(rows)
}
