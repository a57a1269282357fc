//! Comparison of tokenizers from GGUF files with the `tokenizers` package: 0 differing ids.
//!
//! ```sh
//! cargo xtask vocabularies
//! ```
//!
//! writes the cases with `tests/vocabularies/full.py` and runs this program on their folder. It fails if
//! an id differs, and prints the first texts that differ. Each subfolder has a `model.gguf`, and for each
//! text of `texts.json` its number of ids and the ids in `ids.bin`, four bytes each.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use nsbridge_handler::{Model, TextInput};
use nsbridge_llama::testing::Tokens;

/// Number of texts that are printed for each case.
const PRINTED: usize = 5;

fn main() -> Result<ExitCode> {
    let folder = std::env::args_os().nth(1).context("give the folder of the cases")?;
    let entries = Path::new(&folder).read_dir().context("reading the folder of the cases")?;
    let mut cases: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    cases.retain(|case| case.join("ids.bin").exists());
    cases.sort();
    ensure!(!cases.is_empty(), "the folder has no cases");
    let mut differing = 0;
    for case in &cases {
        differing += compare(case).with_context(|| case.display().to_string())?;
    }
    println!("{} cases, {differing} texts differ", cases.len());
    Ok(if differing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a line about a case, and returns the number of texts with other ids.
fn compare(case: &Path) -> Result<usize> {
    let texts: Vec<String> = serde_json::from_slice(&fs::read(case.join("texts.json"))?)?;
    let ids = fs::read(case.join("ids.bin"))?;
    let mut ids =
        ids.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap_or_default()));
    let started = Instant::now();
    let tokens = Tokens::read(&Model::in_dir(case), 1 << 18).map_err(|error| anyhow!("{error}"))?;
    let loaded = started.elapsed();
    let (started, mut differing, mut bytes, mut least) = (Instant::now(), 0, 0, 0);
    for text in &texts {
        let count = ids.next().context("ids.bin is too short")?;
        let expected: Vec<u32> = ids.by_ref().take(count as usize).collect();
        let input = TextInput { prompt: Some(text.clone()), ..TextInput::default() };
        let found = tokens.of(&input, 1 << 20).map_err(|error| anyhow!("{error}"))?;
        if found != expected {
            differing += 1;
            if differing <= PRINTED {
                println!("  {text:?} is {found:?}, and {expected:?} by tokenizers");
            }
        }
        bytes += text.len();
        least += usize::from(tokens.least(text) > found.len());
    }
    ensure!(least == 0, "{least} texts have fewer tokens than their lower bound");
    let name = case.file_name().unwrap_or_default().to_string_lossy();
    println!(
        "{name}: {differing} of {} texts differ, {bytes} bytes in {:.1} s, loaded in {:.2} s",
        texts.len(),
        started.elapsed().as_secs_f64(),
        loaded.as_secs_f64()
    );
    Ok(differing)
}
