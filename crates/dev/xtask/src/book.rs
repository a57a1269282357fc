//! `cargo xtask book`: the documentation as a book, with its links checked.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, in_root, root};
use crate::{machine, output};

/// Folder of the book's sources.
const SOURCES: &str = "docs";

/// Folder of the pages, below the root.
const PAGES: &str = "target/book";

/// Program that checks the links of the pages.
const LINKS: &str = "crates/dev/xtask/src/book/links.py";

/// Builds the book in `target/book` and checks it.
///
/// # Errors
///
/// Returns an error if a document is not in the table of contents, if the book cannot be built, or
/// if one of its links leads nowhere.
pub(crate) fn run() -> Result<()> {
    let sources = root().join(SOURCES);
    let summary = fs::read_to_string(sources.join("SUMMARY.md"));
    let missing = missing(&summary.context("reading docs/SUMMARY.md")?, &documents(&sources)?);
    ensure!(missing.is_empty(), "docs/SUMMARY.md lacks {}", missing.join(", "));
    let python = machine::book()?;
    let pages = root().join(PAGES);
    let mut build = in_root(python.with_file_name("mdbook"));
    build.args(["build".as_ref(), SOURCES.as_ref(), "--dest-dir".as_ref(), pages.as_os_str()]);
    build.env("MDBOOK_LOG", "warn");
    ensure!(cargo::run(build)?, "the book could not be built");
    let mut check = in_root(&python);
    check.arg(LINKS).arg(&pages);
    if !cargo::run(check)? {
        bail!("the book has links that lead nowhere");
    }
    output::line(&format!("the book is {}", pages.join("index.html").display()));
    Ok(())
}

/// Returns the documents of the book, as paths below its sources.
fn documents(sources: &Path) -> Result<Vec<String>> {
    let mut documents = Vec::new();
    for folder in ["", "decisions"] {
        let path = sources.join(folder);
        let entries = path.read_dir().with_context(|| format!("reading {}", path.display()))?;
        for name in entries.flatten().map(|entry| entry.path()) {
            let is_markdown = name.extension() == Some(OsStr::new("md"));
            if let Some(name) = name.file_name().filter(|_| is_markdown) {
                documents.push(Path::new(folder).join(name).display().to_string());
            }
        }
    }
    documents.retain(|document| document != "SUMMARY.md");
    documents.sort();
    Ok(documents)
}

/// Returns the documents that the table of contents lacks.
fn missing(summary: &str, documents: &[String]) -> Vec<String> {
    let is_missing = |document: &&String| !summary.contains(&format!("]({document})"));
    documents.iter().filter(is_missing).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_the_contents_lack_is_named() {
        let documents = ["README.md", "decisions/0001-a.md"].map(str::to_owned);
        assert_eq!(missing("[Start](README.md)", &documents), ["decisions/0001-a.md"]);
        let both = "[Start](README.md)\n- [0001: A](decisions/0001-a.md)";
        assert!(missing(both, &documents).is_empty());
    }
}
