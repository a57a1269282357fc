//! GGUF files that are a model together, which llama.cpp's `llama-gguf-split` makes.

use nsbridge_handler::{Error, Model, Result, quote};

use crate::gguf::{GgufValue, Metadata};

/// What a name says: `STEM-00002-of-00003.gguf`.
#[derive(PartialEq, Eq)]
struct Split<'a> {
    stem: &'a str,
    count: u32,
}

/// Refuses files whose names say that they are parts of one model.
///
/// # Errors
///
/// A sentence that says how they become one file.
pub(crate) fn refuse_named(model: &Model, files: &[usize]) -> Result<()> {
    let mut named = files.iter().map(|&file| parse(&model.source().files()[file].path));
    let Some(first) = named.next().flatten() else { return Ok(()) };
    // Parts of several models: nothing says which to take, and that is told.
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

/// Refuses a file that is a part by what it says of itself, whatever its name.
///
/// # Errors
///
/// A sentence that says how it becomes whole.
pub(crate) fn refuse_told(model: &Model, file: usize, metadata: &Metadata) -> Result<()> {
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
