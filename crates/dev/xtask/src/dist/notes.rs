//! Notes of a release, from the changelog.

use anyhow::{Context, Result};

/// Returns the section of a version, or of what is not released yet if it has none.
///
/// # Errors
///
/// Returns an error if the changelog has neither.
pub(super) fn of(changelog: &str, version: &str) -> Result<String> {
    let section = |title: &str| {
        let start = changelog.find(&format!("\n## {title}"))? + 1;
        let rest = &changelog[start..];
        let end = rest[2..].find("\n## ").map_or(rest.len(), |end| end + 3);
        Some(rest[..end].trim_end().to_owned() + "\n")
    };
    let found = section(version).or_else(|| section("Unreleased"));
    found.with_context(|| format!("CHANGELOG.md has neither `## {version}` nor `## Unreleased`"))
}

#[cfg(test)]
mod tests {
    use super::of;

    const LOG: &str = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0\n\n### Added\n\n- two\n\n## 0.1.0\n\n- one\n";

    #[test]
    fn the_notes_are_the_section_of_the_version_alone() {
        assert_eq!(of(LOG, "0.2.0").unwrap(), "## 0.2.0\n\n### Added\n\n- two\n");
        assert_eq!(of(LOG, "0.1.0").unwrap(), "## 0.1.0\n\n- one\n");
        assert_eq!(of(LOG, "0.3.0").unwrap(), "## Unreleased\n\n- new\n");
        assert!(of("# Changelog\n", "0.3.0").is_err());
    }
}
