//! Counts of passed and failed tests, parsed from the output of the test runners.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::output;

/// Time from which a part's time is printed.
const LONG_PART: Duration = Duration::from_secs(20);

/// Test runner, which determines the stream and the format of the counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runner {
    /// `cargo nextest run`: a summary on stderr.
    Nextest,
    /// `cargo test`: a line on stdout for each binary.
    Libtest,
    /// `python -m unittest`: two lines on stderr.
    Unittest,
    /// `python -m pytest --quiet`: a line on stdout.
    Pytest,
    /// Program that is a single test.
    Whole,
}

/// Numbers of passed and failed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
}

/// Results of the parts of a test run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    total: Tally,
    failed: Vec<&'static str>,
    uncounted: bool,
    /// Parts, each with the time that it took.
    times: Vec<(&'static str, Duration)>,
}

impl Report {
    /// Runs one part. Its output is passed through.
    ///
    /// # Errors
    ///
    /// Returns an error if the part could not be started.
    pub(crate) fn part(
        &mut self,
        name: &'static str,
        runner: Runner,
        command: Command,
    ) -> Result<()> {
        output::step(name);
        let began = Instant::now();
        let (success, printed) =
            watch(command, runner).with_context(|| format!("running {name}"))?;
        self.times.push((name, began.elapsed()));
        let tally = count(runner, &printed, success);
        self.total.passed += tally.passed;
        self.total.failed += tally.failed;
        if !success {
            self.failed.push(name);
            // The part failed without a failed test, for instance because it did not compile.
            self.uncounted |= tally.failed == 0;
        }
        Ok(())
    }

    /// Prints the totals, and the times of the parts that took long.
    ///
    /// # Errors
    ///
    /// Returns an error if a part failed.
    pub(crate) fn end(&self) -> Result<()> {
        if self.uncounted {
            bail!("{} ended before all tests had run", self.failed.join(", "));
        }
        for (name, time) in self.times.iter().filter(|(_, time)| *time >= LONG_PART) {
            output::line(&format!("{name}: {} s", time.as_secs()));
        }
        output::line(&format!("{} passed, {} failed", self.total.passed, self.total.failed));
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        Ok(())
    }
}

/// Runs a command. Returns true if it succeeded, and the output of the stream with the counts.
fn watch(mut command: Command, runner: Runner) -> Result<(bool, String)> {
    let (mut child, mut theirs, mut ours): (_, Box<dyn Read>, Box<dyn Write>) = match runner {
        Runner::Whole => return Ok((command.status()?.success(), String::new())),
        Runner::Libtest | Runner::Pytest => {
            let mut child = command.stdout(Stdio::piped()).spawn()?;
            let stdout = child.stdout.take().context("its output is a pipe")?;
            (child, Box::new(stdout), Box::new(std::io::stdout()))
        }
        Runner::Nextest | Runner::Unittest => {
            let mut child = command.stderr(Stdio::piped()).spawn()?;
            let stderr = child.stderr.take().context("its output is a pipe")?;
            (child, Box::new(stderr), Box::new(std::io::stderr()))
        }
    };
    let (mut printed, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = theirs.read(&mut piece)?;
        if read == 0 {
            break;
        }
        ours.write_all(&piece[..read])?;
        ours.flush()?;
        printed.extend_from_slice(&piece[..read]);
    }
    Ok((child.wait()?.success(), String::from_utf8_lossy(&printed).into_owned()))
}

fn count(runner: Runner, printed: &str, success: bool) -> Tally {
    let plain = without_colour(printed);
    match runner {
        Runner::Nextest => sum(plain.lines().filter_map(nextest)),
        Runner::Libtest => sum(plain.lines().filter_map(libtest)),
        Runner::Unittest => unittest(&plain),
        Runner::Pytest => plain.lines().rev().find_map(pytest).unwrap_or_default(),
        Runner::Whole => Tally { passed: u64::from(success), failed: u64::from(!success) },
    }
}

fn sum(tallies: impl Iterator<Item = Tally>) -> Tally {
    tallies.fold(Tally::default(), |sum, next| Tally {
        passed: sum.passed + next.passed,
        failed: sum.failed + next.failed,
    })
}

/// Parses `Summary [  1.2s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 0 skipped`.
fn nextest(line: &str) -> Option<Tally> {
    let line = line.trim_start().strip_prefix("Summary [")?;
    let (_, counts) = line.split_once("run: ")?;
    let of = |word: &str| numbers_before(counts, ',', word);
    Some(Tally { passed: of("passed"), failed: of("failed") + of("timed") + of("exec") })
}

/// Parses `test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out`.
fn libtest(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let of = |word: &str| numbers_before(counts, ';', word);
    Some(Tally { passed: of("passed"), failed: of("failed") })
}

/// Sums the numbers before `word` in a list.
fn numbers_before(list: &str, separator: char, word: &str) -> u64 {
    let number = |item: &str| {
        let mut words = item.split_whitespace();
        let number = words.next()?.parse::<u64>().ok()?;
        (words.next()? == word).then_some(number)
    };
    list.split(separator).filter_map(number).sum()
}

/// Parses `Ran 9 tests in 0.1s` and, after failures, `FAILED (failures=1, errors=1, skipped=1)`.
fn unittest(printed: &str) -> Tally {
    let mut lines = printed.lines().rev();
    let last = lines.find(|line| line.starts_with("OK") || line.starts_with("FAILED"));
    let ran = lines.find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
    let of = |word: &str| -> u64 {
        let items = last.unwrap_or_default().split(['(', ',', ')']);
        items.filter_map(|item| item.trim().strip_prefix(word)?.parse::<u64>().ok()).sum()
    };
    let failed = of("failures=") + of("errors=") + of("unexpected successes=");
    Tally { passed: ran.unwrap_or(0u64).saturating_sub(failed + of("skipped=")), failed }
}

/// Parses `1 failed, 8 passed, 2 skipped, 1 error in 0.12s`.
fn pytest(line: &str) -> Option<Tally> {
    let (counts, _) = line.rsplit_once(" in ")?;
    let of = |word: &str| numbers_before(counts, ',', word);
    Some(Tally { passed: of("passed"), failed: of("failed") + of("error") + of("errors") })
}

fn without_colour(text: &str) -> String {
    let mut pieces = text.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| {
        plain + piece.split_once('m').map_or(piece, |(_code, rest)| rest)
    })
}

#[cfg(test)]
mod tests {
    use super::{Runner, Tally, count};

    #[track_caller]
    fn check(runner: Runner, printed: &str, passed: u64, failed: u64) {
        assert_eq!(count(runner, printed, true), Tally { passed, failed });
    }

    #[test]
    fn a_summary_of_nextest_is_read() {
        let summary = "     Summary [   0.1s] 9 tests run: 7 passed (1 slow, 2 flaky), 0 skipped\n";
        check(Runner::Nextest, summary, 7, 0);
        let bad = "Summary [ 1s] 4/9 tests run: 1 passed, 1 failed, 1 timed out, 1 exec failed\n";
        check(Runner::Nextest, bad, 1, 3);
        let colour = "\u{1b}[31;1m Summary\u{1b}[0m [ 1s] \u{1b}[1m2\u{1b}[0m tests run: \
                      \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped";
        check(Runner::Nextest, colour, 2, 0);
    }

    #[test]
    fn every_binary_of_cargo_test_counts() {
        let printed = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                       test result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        check(Runner::Libtest, printed, 4, 2);
    }

    #[test]
    fn errors_of_pytest_have_failed_and_what_it_skipped_has_not_passed() {
        check(Runner::Pytest, "..F.\n1 failed, 3 passed, 2 skipped, 2 errors in 0.12s\n", 3, 3);
        check(Runner::Pytest, "....\n4 passed in 1.20s\n", 4, 0);
    }

    #[test]
    fn what_unittest_skipped_has_not_passed() {
        check(Runner::Unittest, "...\nRan 9 tests in 0.1s\n\nOK\n", 9, 0);
        let bad = "Ran 9 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)\n";
        check(Runner::Unittest, bad, 5, 3);
    }

    #[test]
    fn what_printed_no_count_counts_for_nothing() {
        check(Runner::Nextest, "error: could not compile\n", 0, 0);
        check(Runner::Unittest, "", 0, 0);
    }
}
