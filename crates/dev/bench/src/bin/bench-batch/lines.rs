//! Requests of the batch, and the check of its results.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::fleet::MODEL;

/// Tokens of each reply.
pub(crate) const TOKENS: u32 = 4;

/// Returns the input of one of the different requests.
pub(crate) fn input(number: usize) -> Value {
    json!({
        "prompt": format!("{number} times the bear asked the seal"), "max_tokens": TOKENS,
        "temperature": 0.8, "ignore_eos": true,
    })
}

/// Returns the seed of one of the different requests.
pub(crate) fn seed(number: usize) -> u64 {
    number as u64
}

/// Writes the file of the batch. Line `n` has the request `n % different`.
pub(crate) fn write(path: &Path, count: usize, different: usize) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for line in 0..count {
        let number = line % different;
        let mut body = input(number);
        body["model"] = MODEL.into();
        body["seed"] = seed(number).into();
        let line = json!({
            "custom_id": format!("line-{line}"), "method": "POST", "url": "/v1/completions",
            "body": body,
        });
        writeln!(file, "{line}")?;
    }
    Ok(file.flush()?)
}

/// Checks that each line has one result, with the text of its request alone.
pub(crate) fn check(path: &Path, count: usize, replies: &[String]) -> Result<()> {
    let mut known = HashSet::new();
    for line in BufReader::new(File::open(path)?).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        let id = line["custom_id"].as_str().context("a result has no custom_id")?;
        let number: usize = id.strip_prefix("line-").context("a custom_id is not ours")?.parse()?;
        ensure!(known.insert(number), "{id} has two results");
        let Some(text) = line["response"]["body"]["choices"][0]["text"].as_str() else {
            bail!("{id} has no text");
        };
        let expected = replies.get(number % replies.len()).context("no reply alone")?;
        ensure!(text == expected, "{id} differs from its request alone");
    }
    ensure!(
        known.len() == count && known.iter().all(|number| *number < count),
        "{} of {count} lines have a result",
        known.len()
    );
    Ok(())
}
