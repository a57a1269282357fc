//! Licenses of all packages that are compiled into the command.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::closure::{Id, Part};

/// Endings of the names of files with code.
const CODE: [&str; 5] = ["rs", "c", "h", "py", "toml"];

/// Beginnings of the names of files with a license or a notice, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "notice", "unlicense", "copyright"];

/// Returns the texts, each with the packages that it is for.
///
/// # Errors
///
/// Returns an error that names the packages whose text is missing.
pub(super) fn of(tree: &Path, parts: &BTreeMap<Id, Part>) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut missing = Vec::new();
    for part in parts.values().filter(|part| part.checksum.is_some()) {
        let name = format!("{} {} ({})", part.name, part.version, part.license);
        let files = files(part)?;
        for file in &files {
            let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
            texts.entry(text.trim().to_owned()).or_default().push(name.clone());
        }
        if files.is_empty() {
            match common(tree, part)? {
                Some(text) => texts.entry(text.trim().to_owned()).or_default().push(name),
                None => missing.push(name),
            }
        }
    }
    if !missing.is_empty() {
        bail!("packages without a text of their license: {}", missing.join(", "));
    }
    let mut all =
        "nsbridge is made of these packages of others. Each has its license below.\n".to_owned();
    // A text that more packages have stands first.
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (text, names) in texts {
        all.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join("\n")));
    }
    Ok(all)
}

/// Returns the text of a license for a package that has no file with it. That of Apache names no owner; that of
/// MIT names the authors in the package's manifest, or the package's own.
fn common(tree: &Path, part: &Part) -> Result<Option<String>> {
    if part.license.contains("Apache-2.0") {
        return Ok(Some(fs::read_to_string(tree.join("LICENSE-APACHE"))?));
    }
    if part.license != "MIT" {
        return Ok(None);
    }
    let ours = fs::read_to_string(tree.join("LICENSE-MIT"))?;
    let owner = if part.authors.is_empty() {
        format!("the authors of {}", part.name)
    } else {
        part.authors.join(", ")
    };
    let lines = ours.lines().map(|line| {
        if line.starts_with("Copyright") {
            format!("Copyright (c) {owner}")
        } else {
            line.to_owned()
        }
    });
    Ok(Some(lines.collect::<Vec<_>>().join("\n")))
}

/// Folders of a package with files that are not compiled into the command.
const LEFT_OUT: [&str; 6] = ["tests", "benches", "examples", "target", ".github", "fuzz"];

fn files(part: &Part) -> Result<Vec<PathBuf>> {
    let named = part.license_file.iter().filter(|file| file.is_file()).cloned();
    let mut files: Vec<_> = named.chain(below(&part.folder)?).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns the files with a license or a notice in a folder, and in the folders of code that a package took over from
/// others.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let is_code = path.extension().is_some_and(|kind| CODE.iter().any(|code| kind == *code));
        if path.is_dir() {
            if !LEFT_OUT.contains(&&*name) {
                files.extend(below(&path)?);
            }
        } else if !is_code && NAMES.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    Ok(files)
}
