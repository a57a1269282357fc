//! Comparison of chat templates with transformers: the same text for each conversation.
//!
//! ```sh
//! cargo xtask templates
//! ```
//!
//! writes the cases with `tests/templates/record.py` and runs this program on their folder. It fails if a
//! text differs, and prints where. A template may be given an empty content or null for a message that has
//! calls alone, so the text must be equal to that of one of both. Where transformers refuses both, the
//! request must be refused. The texts in `tests/templates/left-out.json` differ for the reasons there, and
//! must.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow, ensure};
use nsbridge_handler::{Model, TextInput};
use nsbridge_llama::ChatFormats;
use nsbridge_llama::testing::Template;
use serde::Deserialize;

/// Number of characters that are printed of a difference.
const PRINTED: usize = 80;

/// Request, and the texts that transformers makes of it.
#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    request: TextInput,
    texts: [Option<String>; 2],
}

/// Cases of a template whose texts may differ.
#[derive(Debug, Default, Deserialize)]
struct LeftOut {
    cases: Vec<String>,
}

/// Numbers of texts.
#[derive(Debug, Default)]
struct Counts {
    equal: usize,
    left_out: usize,
    /// Texts that differ and are not left out, or are left out and equal.
    wrong: usize,
}

fn main() -> Result<ExitCode> {
    let left_out = include_str!("../tests/templates/left-out.json");
    let left_out: BTreeMap<String, LeftOut> = serde_json::from_str(left_out)?;
    let folder = std::env::args_os().nth(1).context("give the folder of the cases")?;
    let entries = Path::new(&folder).read_dir().context("reading the folder of the cases")?;
    let mut places: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    places.retain(|place| place.join("cases.json").exists());
    places.sort();
    ensure!(!places.is_empty(), "the folder has no cases");
    let mut counts = Counts::default();
    for place in &places {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let cases = left_out.get(&*name).map_or(&[][..], |left_out| &left_out.cases);
        compare(place, &name, cases, &mut counts).with_context(|| place.display().to_string())?;
    }
    let Counts { equal, left_out, wrong } = counts;
    println!(
        "{} templates: {equal} texts are equal, {left_out} left out, {wrong} differ or are left out in vain",
        places.len()
    );
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a line about a template, and one about each text that is wrong. Counts its texts.
fn compare(place: &Path, name: &str, left_out: &[String], counts: &mut Counts) -> Result<()> {
    let model = Model::in_dir(place);
    let template = Template::read(&model).map_err(|error| anyhow!("{error}"))?;
    let formats = ChatFormats::read(&model)?;
    let calls = formats.calls.map_or("-", |format| format.name());
    let reasoning = formats.reasoning.map_or("-", |format| format.name());
    println!("{name}: calls {calls}, reasoning {reasoning}");
    let cases: Vec<Case> = serde_json::from_slice(&fs::read(place.join("cases.json"))?)?;
    for case in &cases {
        let found = template.render(&case.request, SystemTime::now()).ok();
        let is_equal = match &found {
            None => case.texts == [None, None],
            Some(_) => case.texts.contains(&found),
        };
        let expected = case.texts.iter().flatten().next().map(String::as_str);
        match (is_equal, left_out.contains(&case.name)) {
            (true, false) => counts.equal += 1,
            (false, true) => counts.left_out += 1,
            (true, true) => {
                counts.wrong += 1;
                println!("  {}: equal, although it is left out", case.name);
            }
            (false, false) => {
                counts.wrong += 1;
                println!("  {}: {}", case.name, difference(found.as_deref(), expected));
            }
        }
    }
    Ok(())
}

/// Returns the place where two texts differ.
fn difference(found: Option<&str>, expected: Option<&str>) -> String {
    let (Some(found), Some(expected)) = (found, expected) else {
        let says = |text: Option<&str>| if text.is_some() { "renders it" } else { "refuses it" };
        return format!("nsbridge {}, transformers {}", says(found), says(expected));
    };
    let same = found.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
    let rest =
        |text: &str| text.chars().skip(same.saturating_sub(20)).take(PRINTED).collect::<String>();
    format!("{:?}, and {:?} by transformers", rest(found), rest(expected))
}
