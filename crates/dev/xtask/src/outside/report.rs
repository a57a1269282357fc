//! Report of a suite's program, and the verdict on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::left_out::{Entry, matches};
use crate::cargo::root;

/// Line of a report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Test(Test),
    Version { name: String, version: String },
    Figure(Figure),
}

/// Test of a suite, and its outcome.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Test {
    name: String,
    outcome: Outcome,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    why: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Passed,
    Failed,
    /// The suite or its program did not run the test.
    Skipped,
}

/// Figure that a suite measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    name: String,
    value: f64,
    unit: String,
}

/// Report of a suite's program.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tests: Vec<Test>,
    versions: BTreeMap<String, String>,
    figures: Vec<Figure>,
}

impl Report {
    /// Reads the lines that a program wrote.
    ///
    /// # Errors
    ///
    /// Returns an error if a line is not one of a report, if a test is reported twice, or if there is
    /// no test.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", file.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut report = Self::default();
        let mut names = BTreeSet::new();
        for (line, number) in text.lines().zip(1..) {
            let line = serde_json::from_str(line).with_context(|| format!("line {number}"))?;
            match line {
                Line::Test(test) => {
                    ensure!(names.insert(test.name.clone()), "{} was reported twice", test.name);
                    report.tests.push(test);
                }
                Line::Version { name, version } => {
                    report.versions.insert(name, version);
                }
                Line::Figure(figure) => report.figures.push(figure),
            }
        }
        ensure!(!report.tests.is_empty(), "no test was run");
        Ok(report)
    }

    /// Compares the outcomes with the list of the tests that are left out.
    pub(crate) fn against(&self, list: &[Entry]) -> Verdict {
        let mut verdict = Verdict::default();
        let patterns: Vec<_> = list.iter().flat_map(|entry| &entry.tests).collect();
        let of = |test: &Test| {
            list.iter().position(|entry| entry.tests.iter().any(|p| matches(p, &test.name)))
        };
        let mut left_out: BTreeMap<usize, LeftOut> = BTreeMap::new();
        for test in &self.tests {
            if let Some(entry) = of(test) {
                let out = left_out.entry(entry).or_default();
                out.tests += 1;
                if test.outcome == Outcome::Passed {
                    out.passed.push(test.name.clone());
                }
            } else if test.outcome == Outcome::Passed {
                verdict.passed += 1;
            } else {
                verdict.failed.push(test.clone());
            }
        }
        for (entry, mut out) in left_out {
            out.reason = list.get(entry).map(|entry| entry.reason.clone()).unwrap_or_default();
            verdict.left_out.push(out);
        }
        let exists = |pattern: &str| self.tests.iter().any(|test| matches(pattern, &test.name));
        verdict.unknown = patterns.into_iter().filter(|p| !exists(p)).cloned().collect();
        verdict
    }
}

/// Outcome of a suite beside its list.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Verdict {
    passed: usize,
    failed: Vec<Test>,
    left_out: Vec<LeftOut>,
    /// Names on the list that no test has.
    unknown: Vec<String>,
}

/// Tests that were left out for one reason.
#[derive(Debug, Default, PartialEq, Serialize)]
struct LeftOut {
    reason: String,
    tests: usize,
    /// Tests that pass nevertheless, such as those that depend on sampled text.
    passed: Vec<String>,
}

/// File that a verdict is written to.
#[derive(Debug, Serialize)]
struct Written<'a> {
    suite: &'a str,
    date: String,
    versions: &'a BTreeMap<String, String>,
    #[serde(flatten)]
    verdict: &'a Verdict,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    figures: &'a [Figure],
}

impl Verdict {
    /// Returns true if tests passed, none failed that must not, and the list names no others.
    pub(crate) fn is_good(&self) -> bool {
        self.passed > 0 && self.failed.is_empty() && self.unknown.is_empty()
    }

    /// Returns a line for each test that failed and for each unknown name. The file has all that a
    /// test said.
    pub(crate) fn problems(&self) -> Vec<String> {
        let failed = self.failed.iter().map(|test| {
            let how = if test.outcome == Outcome::Skipped { "skipped" } else { "failed" };
            let why: String =
                test.why.lines().next().unwrap_or_default().chars().take(200).collect();
            format!("  {how}: {}: {why}", test.name)
        });
        let unknown = self.unknown.iter();
        let unknown = unknown.map(|name| format!("  left out, but not a test: {name}"));
        failed.chain(unknown).collect()
    }

    /// Returns the counts, figures and versions in one line.
    pub(crate) fn summary(&self, report: &Report) -> String {
        let left_out: usize = self.left_out.iter().map(|out| out.tests).sum();
        let mut line =
            format!("{} passed, {} failed, {left_out} left out", self.passed, self.failed.len());
        for figure in &report.figures {
            line += &format!(", {} {} {}", figure.name, figure.value, figure.unit);
        }
        let versions = report.versions.iter();
        let versions: Vec<_> =
            versions.map(|(name, version)| format!("{name} {version}")).collect();
        format!("{line} ({})", versions.join(", "))
    }

    /// Writes `target/outside/SUITE.json` and returns its path.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub(crate) fn write(&self, suite: &str, report: &Report) -> Result<PathBuf> {
        let date = Command::new("date").args(["-u", "+%F"]).output().context("starting date")?;
        let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
        let (versions, figures) = (&report.versions, report.figures.as_slice());
        let written = Written { suite, date, versions, verdict: self, figures };
        let file = root().join("target/outside").join(format!("{suite}.json"));
        fs::write(&file, serde_json::to_string_pretty(&written)? + "\n")
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::left_out::Entry;
    use super::{LeftOut, Report};

    fn report(tests: &[(&str, &str)]) -> Report {
        let line = |(name, outcome): &(&str, &str)| {
            json!({"test": {"name": name, "outcome": outcome, "why": "it says so"}}).to_string()
        };
        Report::parse(&tests.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap()
    }

    fn list(tests: &[&str]) -> Vec<Entry> {
        serde_json::from_value(json!([{"reason": "Not served.", "tests": tests}])).unwrap()
    }

    const THREE: [(&str, &str); 3] = [("a", "passed"), ("b", "failed"), ("c", "skipped")];

    #[test]
    fn a_failed_or_skipped_test_must_be_on_the_list() {
        let verdict = report(&THREE).against(&[]);
        assert!(!verdict.is_good());
        assert_eq!(verdict.problems(), ["  failed: b: it says so", "  skipped: c: it says so"]);
        assert!(!report(&THREE).against(&list(&["b"])).is_good());
        assert!(report(&THREE).against(&list(&["b", "c"])).is_good());
    }

    #[test]
    fn a_name_on_the_list_must_be_that_of_a_test() {
        let verdict = report(&THREE).against(&list(&["b", "c", "d*"]));
        assert!(!verdict.is_good());
        assert_eq!(verdict.problems(), ["  left out, but not a test: d*"]);
    }

    #[test]
    fn tests_that_are_left_out_are_counted_by_reason() {
        let verdict = report(&THREE).against(&list(&["*"]));
        let out =
            LeftOut { reason: "Not served.".to_owned(), tests: 3, passed: vec!["a".to_owned()] };
        assert_eq!(verdict.left_out, [out]);
        assert!(!verdict.is_good(), "nothing passed");
    }

    #[test]
    fn an_incomplete_report_is_refused() {
        let told = |text: &str| Report::parse(text).map(|_| ()).map_err(|e| format!("{e:#}"));
        let line = json!({"test": {"name": "a", "outcome": "passed"}}).to_string();
        assert_eq!(told(&line), Ok(()));
        assert!(told("").unwrap_err().contains("no test"));
        assert!(told(&format!("{line}\n{line}")).unwrap_err().contains("twice"));
        assert!(told(&format!("{line}\n{{")).unwrap_err().contains("line 2"));
        let other = json!({"test": {"name": "a", "outcome": "fine"}}).to_string();
        assert!(told(&other).unwrap_err().contains("line 1"));
    }

    #[test]
    fn the_summary_has_versions_and_figures() {
        let lines = [
            json!({"test": {"name": "a", "outcome": "passed"}}),
            json!({"version": {"name": "openai", "version": "1.2"}}),
            json!({"figure": {"name": "TTFT", "value": 1.5, "unit": "ms"}}),
        ];
        let text = lines.map(|line| line.to_string()).join("\n");
        let report = Report::parse(&text).unwrap();
        let summary = report.against(&[]).summary(&report);
        assert_eq!(summary, "1 passed, 0 failed, 0 left out, TTFT 1.5 ms (openai 1.2)");
    }
}
