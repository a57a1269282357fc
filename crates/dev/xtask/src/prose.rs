//! First words of doc comments.
//!
//! A doc comment begins with a noun phrase that names the kind of thing, or with a third-person verb.
//! One that begins with a question word or a pronoun is a riddle where rustdoc shows it: alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cargo::root;
use crate::say;

/// Words that a doc comment must not begin with.
const NOT_FIRST: [&str; 16] = [
    "What", "How", "Whether", "Who", "Whose", "Where", "Why", "When", "Which", "The same", "It",
    "Its", "So", "That", "Those", "These",
];

/// Folders with Rust sources.
const FOLDERS: [&str; 2] = ["crates", "examples"];

/// Checks the first words of all doc comments.
///
/// # Errors
///
/// Returns the comments that begin with another word than they should, by file and line.
pub(crate) fn check() -> Result<()> {
    let mut found = Found::default();
    for folder in FOLDERS {
        walk(&root().join(folder), &mut found)?;
    }
    let Found { comments, wrong } = found;
    say::line(&format!("{comments} doc comments, {} with a wrong first word", wrong.len()));
    ensure!(comments > 1000, "only {comments} doc comments were found");
    ensure!(
        wrong.is_empty(),
        "begin with a noun phrase or a third-person verb:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// Number of doc comments, and those with a wrong first word.
#[derive(Debug, Default)]
struct Found {
    comments: usize,
    wrong: Vec<String>,
}

impl Found {
    fn read(&mut self, path: &str, text: &str) {
        let mut before = None;
        for (line, number) in text.lines().zip(1..) {
            let comment = doc(line.trim_start());
            if let Some((kind, first)) = comment
                && before != Some(kind)
            {
                self.comments += 1;
                if begins_wrongly(first) {
                    self.wrong.push(format!("{path}:{number}: {first}"));
                }
            }
            before = comment.map(|(kind, _)| kind);
        }
    }
}

/// The kind of a line's doc comment and its text.
fn doc(line: &str) -> Option<(&str, &str)> {
    let (kind, text) = line.split_at_checked(3)?;
    let is_doc = matches!(kind, "///" | "//!") && !text.starts_with('/');
    is_doc.then(|| (kind, text.trim_start()))
}

fn begins_wrongly(text: &str) -> bool {
    NOT_FIRST.iter().any(|word| {
        let rest = text.strip_prefix(word);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

fn walk(folder: &Path, found: &mut Found) -> Result<()> {
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            walk(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).context("reading a source file")?;
            let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            found.read(&name, &text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Found;

    #[track_caller]
    fn check(text: &str, comments: usize, wrong: &[&str]) {
        let mut found = Found::default();
        found.read("a.rs", text);
        assert_eq!(
            (found.comments, found.wrong),
            (comments, wrong.iter().map(|w| (*w).into()).collect())
        );
    }

    #[test]
    fn a_question_word_at_the_beginning_of_a_doc_comment_is_found() {
        check(
            "/// What it is.\nfn f() {}\n    /// How it is.",
            2,
            &["a.rs:1: What it is.", "a.rs:3: How it is."],
        );
        check("//! The same.\n//! Returns.", 1, &["a.rs:1: The same."]);
        check("//! A module.\n/// Whose it is.", 2, &["a.rs:2: Whose it is."]);
    }

    #[test]
    fn other_comments_and_later_lines_may_begin_with_any_word() {
        check("/// Returns the length.\n/// What is longer is cut.\nfn f() {}", 1, &[]);
        check("// What follows is code.\n//// Why not?\nlet text = \"/// x\";", 0, &[]);
        check("/// Items.\n/// Whatever.\n", 1, &[]);
    }
}
