//! Lists of the tests that are left out of a suite, each with a reason.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Tests that are left out for one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Reason, as a sentence.
    pub(crate) reason: String,
    /// Runs the tests and accepts their failures if true. Tests that would hang are not run.
    #[serde(default = "yes")]
    #[expect(dead_code, reason = "the programs of the suites read it")]
    run: bool,
    /// Names of tests. `*` stands for any text.
    pub(crate) tests: Vec<String>,
}

fn yes() -> bool {
    true
}

/// Reads the list of a suite.
///
/// # Errors
///
/// Returns an error if the file is not a list of tests with reasons.
pub(crate) fn read(file: &Path) -> Result<Vec<Entry>> {
    let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let list: Vec<Entry> = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a list of tests", file.display()))?;
    for entry in &list {
        let complete = !entry.reason.trim().is_empty() && !entry.tests.is_empty();
        ensure!(complete, "{}: an entry needs a reason and tests", file.display());
    }
    Ok(list)
}

/// Returns true if the pattern stands for the name. `*` stands for any text, other characters for
/// themselves.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{matches, read};

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in [
            ("a::b[c]", "a::b[c]"),
            ("a::*", "a::b[c]"),
            ("*", "a"),
            ("*[c]", "a::b[c]"),
            ("a*b*c", "a--b--c"),
            ("a*b*c", "abbc"),
            ("a*a", "aa"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("a*", "ba"), ("*a", "ab"), ("a*b*c", "a--c"), ("a*a", "a"), ("", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn an_entry_without_a_reason_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("left-out.json");
        let told = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read(&file).map(|list| list.len()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(told(r#"[{"reason": "Not served.", "tests": ["a"]}]"#), Ok(1));
        assert!(
            told(r#"[{"reason": " ", "tests": ["a"]}]"#).unwrap_err().contains("needs a reason")
        );
        assert!(told(r#"[{"reason": "x", "tests": []}]"#).unwrap_err().contains("needs a reason"));
        assert!(told(r#"[{"tests": ["a"]}]"#).unwrap_err().contains("reason"));
        assert!(told(r#"[{"reason": "x", "test": ["a"]}]"#).unwrap_err().contains("left-out.json"));
    }
}
