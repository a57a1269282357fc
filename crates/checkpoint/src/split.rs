//! GGUF models that llama.cpp's `llama-gguf-split` has split into several files.
//!
//! Each part is a whole GGUF file with some of the tensors. The first has the model's metadata. All
//! have `split.no`, from 0, `split.count`, and `split.tensors.count`, the number of tensors of the
//! model.

use nsbridge_handler::source::split_of;
use nsbridge_handler::{Error, Model, Result, quote};

use crate::gguf::{self, GgufValue, Metadata};
use crate::tensor::TensorInfo;

/// Returns the files in order of their number if their names are those of one split; `None` if they
/// are not.
///
/// # Errors
///
/// Returns an error that names a missing part.
pub(crate) fn parts_of_one(model: &Model, files: &[usize]) -> Result<Option<Vec<usize>>> {
    let path = |file: usize| model.source().files()[file].path.as_str();
    let named: Option<Vec<_>> =
        files.iter().map(|&file| split_of(path(file)).map(|split| (split, file))).collect();
    let Some(mut named) = named else { return Ok(None) };
    let Some(&((stem, _, count), _)) = named.first() else { return Ok(None) };
    // Parts of several models. The caller reports that the choice is ambiguous.
    if named.iter().any(|((other, _, others), _)| (*other, *others) != (stem, count)) {
        return Ok(None);
    }
    named.sort_unstable_by_key(|((_, number, _), _)| *number);
    let missing =
        (1..=count).find(|number| !named.iter().any(|((_, other, _), _)| other == number));
    if let Some(number) = missing {
        let (stem, place) = (quote(stem), model.place());
        return Err(Error::fatal(format!(
            "the model in {place} is one in {count} .gguf files, and \
             {stem}-{number:05}-of-{count:05}.gguf is not there"
        )));
    }
    Ok(Some(named.into_iter().map(|(_, file)| file).collect()))
}

/// Reads the tensors of all parts, and the metadata of the first.
///
/// # Errors
///
/// Returns an error that names the part whose metadata contradicts its name, or the number of
/// tensors that are missing.
pub(crate) fn read(model: &Model, parts: &[usize]) -> Result<(Vec<TensorInfo>, Metadata)> {
    let mut tensors = Vec::new();
    let mut first = Metadata::default();
    for (number, &file) in parts.iter().enumerate() {
        let (own, metadata) = gguf::read(model, file)?;
        let told = [unsigned(&metadata, "split.no"), unsigned(&metadata, "split.count")];
        let named = [Some(number as u64), Some(parts.len() as u64)];
        // A model in a single part need not say so.
        if told != named && (parts.len() > 1 || told != [None, None]) {
            let (path, place) = (quote(&model.source().files()[file].path), model.folder_place());
            return Err(Error::fatal(format!(
                "{path} in {place} is not the part that its name says: its split.no and \
                 split.count must be {number} and {}",
                parts.len()
            )));
        }
        tensors.extend(own);
        if number == 0 {
            first = metadata;
        }
    }
    match unsigned(&first, "split.tensors.count") {
        Some(expected) if expected != tensors.len() as u64 => Err(Error::fatal(format!(
            "the {} parts of the model in {} have {} tensors, and its split.tensors.count is \
             {expected}",
            parts.len(),
            model.place(),
            tensors.len()
        ))),
        _ => Ok((tensors, first)),
    }
}

/// Refuses a file whose metadata marks it as a part, and whose name is not that of a part.
///
/// # Errors
///
/// Returns an error that says how the parts must be named.
pub(crate) fn refuse_lone(model: &Model, file: usize, metadata: &Metadata) -> Result<()> {
    match unsigned(metadata, "split.count") {
        Some(count) if count > 1 => {
            let (path, place) = (quote(&model.source().files()[file].path), model.folder_place());
            Err(Error::fatal(format!(
                "{path} in {place} is a part of one model in {count} .gguf files: give all \
                 {count} the names that they were made with, NAME-00001-of-{count:05}.gguf to \
                 NAME-{count:05}-of-{count:05}.gguf"
            )))
        }
        _ => Ok(()),
    }
}

fn unsigned(metadata: &Metadata, key: &str) -> Option<u64> {
    match metadata.get(key) {
        Some(GgufValue::Unsigned(number)) => Some(*number),
        Some(GgufValue::Signed(number)) => u64::try_from(*number).ok(),
        _ => None,
    }
}
