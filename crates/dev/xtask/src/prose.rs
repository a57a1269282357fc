//! First words of doc comments, words that no text for readers has, and names of constants.
//!
//! A doc comment begins with a noun phrase that names the kind of thing, or with a third-person verb.
//! One that begins with a question word or a pronoun is a riddle where rustdoc shows it: alone.
//!
//! Doc comments, documents and log lines name the actor: a worker, a client, a process.
//!
//! A constant carries its noun, and its unit if it has one: `MAX_FRAME_BYTES`, not `MOST`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cargo::root;
use crate::output;

/// Words that a doc comment must not begin with.
const NOT_FIRST: [&str; 16] = [
    "What", "How", "Whether", "Who", "Whose", "Where", "Why", "When", "Which", "The same", "It",
    "Its", "So", "That", "Those", "These",
];

/// Words that name no actor.
const NOWHERE: [&str; 4] = ["nobody", "somebody", "whoever", "everybody"];

/// Names of constants that say how much, but not of what.
const WITHOUT_NOUN: [&str; 20] = [
    "MOST", "LEAST", "LARGEST", "SMALLEST", "LONGEST", "SHORTEST", "FEWEST", "LARGE", "SMALL",
    "LONG", "SHORT", "LIMIT", "LENGTH", "SIZE", "AT_ONCE", "PATIENCE", "LOOK", "PAUSE", "LEFT",
    "STUCK",
];

/// Beginnings of lines of code with a text for readers: a log line, or the sentence of an error.
const TEXTS: [&str; 2] = ["tracing::", "#[error("];

/// Folders with Rust sources.
const FOLDERS: [&str; 2] = ["crates", "examples"];

/// Documents, and folders of them.
const DOCUMENTS: [&str; 8] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "crates",
    "deploy",
    "docs",
    "python/README.md",
];

/// Checks the first words of all doc comments, the words of comments, documents and log lines, and the
/// names of constants.
///
/// # Errors
///
/// Returns the lines with another first word than they should have, with a word that names no actor,
/// or with a constant without a noun, by file and line.
pub(crate) fn check() -> Result<()> {
    let mut found = Found::default();
    for folder in FOLDERS {
        walk(&root().join(folder), "rs", &mut |path, text| found.read(path, text))?;
    }
    let mut documents = 0;
    for place in DOCUMENTS {
        let mut document = |path: &str, text: &str| {
            documents += 1;
            found.read_document(path, text);
        };
        walk(&root().join(place), "md", &mut document)?;
    }
    let Found { comments, wrong, vague, constants } = found;
    output::line(&format!(
        "{comments} doc comments, {} with a wrong first word; {documents} documents; {} words that \
         name no actor",
        wrong.len(),
        vague.len()
    ));
    ensure!(comments > 1000, "only {comments} doc comments were found");
    ensure!(documents > 50, "only {documents} documents were found");
    ensure!(
        wrong.is_empty(),
        "begin with a noun phrase or a third-person verb:\n{}",
        wrong.join("\n")
    );
    ensure!(
        vague.is_empty(),
        "name the actor instead of {}:\n{}",
        NOWHERE.join(", "),
        vague.join("\n")
    );
    ensure!(
        constants.is_empty(),
        "name what the constant is of, and its unit:\n{}",
        constants.join("\n")
    );
    Ok(())
}

/// Number of doc comments, and the lines that the check refuses.
#[derive(Debug, Default)]
struct Found {
    comments: usize,
    /// Doc comments with a wrong first word.
    wrong: Vec<String>,
    /// Lines with a word that names no actor.
    vague: Vec<String>,
    /// Constants without a noun.
    constants: Vec<String>,
}

impl Found {
    fn read_document(&mut self, path: &str, text: &str) {
        for (line, number) in text.lines().zip(1..) {
            self.read_words(path, number, line);
        }
    }

    fn read_words(&mut self, path: &str, number: usize, line: &str) {
        if is_vague(line) {
            self.vague.push(format!("{path}:{number}: {}", line.trim()));
        }
    }

    fn read(&mut self, path: &str, text: &str) {
        let mut before = None;
        for (line, number) in text.lines().zip(1..) {
            let comment = doc(line.trim_start());
            if comment.is_some() || TEXTS.iter().any(|text| line.trim_start().starts_with(text)) {
                self.read_words(path, number, line);
            }
            let name = constant(line).filter(|_| !line.contains(": Self ="));
            if name.is_some_and(|name| WITHOUT_NOUN.contains(&name)) {
                self.constants.push(format!("{path}:{number}: {}", line.trim()));
            }
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

/// The name of a constant that a line defines.
fn constant(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => line,
    };
    let name = line.strip_prefix("const ")?.split(':').next()?;
    Some(name.trim())
}

fn begins_wrongly(text: &str) -> bool {
    NOT_FIRST.iter().any(|word| {
        let rest = text.strip_prefix(word);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

fn is_vague(line: &str) -> bool {
    // Names of tests have underscores.
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| NOWHERE.iter().any(|vague| word.eq_ignore_ascii_case(vague)))
}

/// Reads all files with this extension in a folder, or one file.
fn walk(place: &Path, extension: &str, read: &mut impl FnMut(&str, &str)) -> Result<()> {
    if place.is_dir() {
        let entries = place.read_dir().with_context(|| format!("reading {}", place.display()))?;
        for entry in entries {
            let path = entry?.path();
            if !path.ends_with("target") {
                walk(&path, extension, read)?;
            }
        }
    } else if place.extension().is_some_and(|of| of == extension) {
        let text = fs::read_to_string(place);
        let text = text.with_context(|| format!("reading {}", place.display()))?;
        let name = place.strip_prefix(root()).unwrap_or(place).display().to_string();
        read(&name, &text);
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
    fn a_word_that_names_no_actor_is_found_in_texts_for_readers() {
        let code = "/// Stops when nobody waits.\nlet nobody = 1;\n    tracing::info!(\"Whoever asks\");\n\
                    // Somebody.\n#[error(\"for somebody's file\")]\n/// Anybodynobody.\n";
        let mut found = Found::default();
        found.read("a.rs", code);
        let expected = [
            "a.rs:1: /// Stops when nobody waits.",
            "a.rs:3: tracing::info!(\"Whoever asks\");",
            "a.rs:5: #[error(\"for somebody's file\")]",
        ];
        assert_eq!(found.vague, expected);
        let mut found = Found::default();
        found.read_document("a.md", "| `of_nobody_else` |\n\nA (nobody) b\n| Everybody |\n");
        assert_eq!(found.vague, ["a.md:3: A (nobody) b", "a.md:4: | Everybody |"]);
        assert_eq!(found.comments, 0);
    }

    #[test]
    fn a_constant_without_a_noun_is_found() {
        let code = "const MOST: usize = 1;\n    pub(crate) const AT_ONCE: u8 = 2;\npub const LIMIT: u8 = 3;\n\
                    const MAX_FRAME_BYTES: usize = 1;\nconst fn limit() {}\nlet most = MOST;\n";
        let mut found = Found::default();
        found.read("a.rs", code);
        let expected = [
            "a.rs:1: const MOST: usize = 1;",
            "a.rs:2: pub(crate) const AT_ONCE: u8 = 2;",
            "a.rs:3: pub const LIMIT: u8 = 3;",
        ];
        assert_eq!(found.constants, expected);
    }

    #[test]
    fn other_comments_and_later_lines_may_begin_with_any_word() {
        check("/// Returns the length.\n/// What is longer is cut.\nfn f() {}", 1, &[]);
        check("// What follows is code.\n//// Why not?\nlet text = \"/// x\";", 0, &[]);
        check("/// Items.\n/// Whatever.\n", 1, &[]);
    }
}
