//! Detection of GGUF models that llama.cpp's `llama-gguf-split` has split into several files.

use super::{GgufValue, Metadata};
use crate::{Error, Model, Result, quote};

/// Stem and count in a split file name: `STEM-00002-of-00003.gguf`.
#[derive(PartialEq, Eq)]
struct Split<'a> {
    stem: &'a str,
    count: u32,
}

/// Refuses files whose names mark them as parts of one model.
///
/// # Errors
///
/// Returns an error that says how to merge the files.
pub(super) fn refuse_named(model: &Model, files: &[usize]) -> Result<()> {
    let mut named = files.iter().map(|&file| parse(&model.source().files()[file].path));
    let Some(first) = named.next().flatten() else { return Ok(()) };
    // Parts of several models. The caller reports that the choice is ambiguous.
    if named.any(|other| other.as_ref() != Some(&first)) {
        return Ok(());
    }
    let Split { stem, count } = first;
    let (stem, place) = (quote(stem), model.place());
    Err(Error::fatal(format!(
        "the model in {place} is one in {count} .gguf files, and only a single file is read: merge \
         all {count} by `llama-gguf-split --merge {stem}-00001-of-{count:05}.gguf {stem}.gguf` of \
         llama.cpp, and take the parts away"
    )))
}

/// Refuses a file whose metadata marks it as a part, whatever its name.
///
/// # Errors
///
/// Returns an error that says how to merge the parts.
pub(super) fn refuse_told(model: &Model, file: usize, metadata: &Metadata) -> Result<()> {
    match metadata.get("split.count") {
        Some(GgufValue::Unsigned(count)) if *count > 1 => {
            let (path, place) = (quote(&model.source().files()[file].path), model.place());
            Err(Error::fatal(format!(
                "{path} in {place} is a part of one model in {count} .gguf files, and only a single \
                 file is read: merge all {count}, under the names that they were made with, by \
                 `llama-gguf-split --merge FIRST OUT` of llama.cpp"
            )))
        }
        _ => Ok(()),
    }
}

fn parse(name: &str) -> Option<Split<'_>> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let (number, count) = (digits(number)?, digits(count)?);
    (count > 1 && (1..=count).contains(&number)).then_some(Split { stem, count })
}

fn digits(text: &str) -> Option<u32> {
    let five = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    five.then(|| text.parse().ok()).flatten()
}
