//! Strict parser of metrics in Prometheus's text format and in OpenMetrics.

use std::borrow::Cow;

use anyhow::{Context as _, Result, ensure};

/// Maximum number of samples of a page.
pub(crate) const MOST_SAMPLES: usize = 50_000;

/// Maximum number of labels of a sample.
const MOST_LABELS: usize = 32;

/// Sample of a page, without its timestamp and exemplar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    pub(crate) name: &'a str,
    labels: Labels<'a>,
    pub(crate) value: f64,
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

impl Sample<'_> {
    /// Returns the value of a label.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }
}

/// Parses a page.
///
/// The items are samples in their order. An error names the number of its line and quotes nothing
/// of it.
pub(crate) fn samples(text: &str) -> impl Iterator<Item = Result<Sample<'_>>> {
    let lines = text.lines().zip(1_usize..);
    let lines = lines.filter(|(line, _)| !line.trim_ascii().is_empty() && !line.starts_with('#'));
    lines.enumerate().map(|(count, (line, number))| {
        ensure!(count < MOST_SAMPLES, "it has more than {MOST_SAMPLES} samples");
        sample(line).with_context(|| format!("its line {number} is not a sample of a metric"))
    })
}

/// Returns true if the last line ends an OpenMetrics page, which was therefore not cut.
pub(crate) fn is_whole(text: &str) -> bool {
    text.lines().next_back() == Some("# EOF")
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, rest) = name(line, true)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let (figures, exemplar) = match rest.split_once(" # ") {
        Some((figures, exemplar)) => (figures, Some(exemplar)),
        None => (rest, None),
    };
    if let Some(exemplar) = exemplar {
        let (_, rest) = self::labels(exemplar.trim_ascii_start().strip_prefix('{')?)?;
        figure(rest)?;
    }
    Some(Sample { name, labels, value: figure(figures)? })
}

/// Parses a value after a blank, and the timestamp that may follow it.
fn figure(text: &str) -> Option<f64> {
    let mut words = text.strip_prefix([' ', '\t'])?.split_ascii_whitespace();
    let value = words.next()?.parse().ok()?;
    if let Some(timestamp) = words.next() {
        timestamp.parse::<f64>().ok()?;
    }
    words.next().is_none().then_some(value)
}

/// Parses the labels after the opening brace. Returns them and the text after the closing brace.
fn labels(mut rest: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        if labels.len() == MOST_LABELS {
            return None;
        }
        let (name, after) = name(rest, false)?;
        let after = after.trim_ascii_start().strip_prefix('=')?;
        let (value, after) = quoted(after.trim_ascii_start().strip_prefix('"')?)?;
        labels.push((name, value));
        let after = after.trim_ascii_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after,
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
}

/// Parses a name: letters, digits that are not first, underscores, and colons in metrics.
fn name(text: &str, of_metric: bool) -> Option<(&str, &str)> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (of_metric && c == ':');
    let end = text.find(|c| !fits(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let first = name.chars().next()?;
    (!first.is_ascii_digit()).then_some((name, rest))
}

/// Parses a label's value after its opening quote. Returns it and the text after the closing quote.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut value = Cow::Borrowed("");
    let mut rest = text;
    loop {
        let (plain, after) = rest.split_at(rest.find(['"', '\\'])?);
        value = if value.is_empty() { Cow::Borrowed(plain) } else { value + plain };
        let escape = match after.strip_prefix('"') {
            Some(after) => return Some((value, after)),
            None => after.strip_prefix('\\')?,
        };
        let mut chars = escape.chars();
        value.to_mut().push(match chars.next()? {
            'n' => '\n',
            same @ ('"' | '\\') => same,
            _ => return None,
        });
        rest = chars.as_str();
    }
}

#[cfg(test)]
mod tests;
