//! Metrics that workers and gateways have, and the check that the alert rules ask for no other.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::cargo::root;

/// File with the rules.
const RULES: &str = "deploy/prometheus/alerts.yaml";

/// Manual, whose section "Alerts" has an action for each rule.
const MANUAL: &str = "docs/operating.md";

/// Files with the names of metrics, and the prefix of names that are not OpenTelemetry's.
const NAMES: [(&str, &str); 3] = [
    ("crates/bridge/src/observability/metrics/names.rs", "nsbridge_"),
    ("crates/gateway/src/metrics/names.rs", "nsbridge_gateway_"),
    ("crates/scaler/src/metrics/names.rs", "nsbridge_scaler_"),
];

/// Files with the names of the bundled handler's metrics.
const HANDLER: [&str; 1] = ["crates/handlers/llama/src/engine/counts.rs"];

/// Prefixes of the names of our metrics.
const OURS: [&str; 4] = ["nsbridge_", "gen_ai_", "http_server_", "messaging_"];

/// Suffixes that Prometheus and the units add to a name.
const SUFFIXES: [&str; 5] = ["_bucket", "_count", "_sum", "_total", "_seconds"];

/// Checks the rules.
///
/// # Errors
///
/// Returns an error that lists the names that no metric has, or the alerts that the manual does not
/// name.
pub(crate) fn check() -> Result<()> {
    let rules = read(RULES)?;
    let untold = untold(&rules, &read(MANUAL)?);
    ensure!(
        untold.is_empty(),
        "the section \"Alerts\" of {MANUAL} does not name {}",
        untold.join(", ")
    );
    let unknown = unknown(&rules, &metrics()?);
    ensure!(
        unknown.is_empty(),
        "{RULES} asks for metrics that do not exist: {}",
        unknown.join(", ")
    );
    Ok(())
}

/// Returns the alerts that the section "Alerts" of the manual does not name.
fn untold<'a>(rules: &'a str, manual: &str) -> Vec<&'a str> {
    let section = manual.split("\n## ").find(|section| section.starts_with("Alerts\n"));
    let section = section.unwrap_or_default();
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.filter(|name| !section.contains(&format!("`{name}`"))).collect()
}

/// Returns the metrics of workers, of the bundled handler and of gateways.
///
/// # Errors
///
/// Returns an error if a file of names cannot be read.
pub(crate) fn metrics() -> Result<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    for (path, prefix) in NAMES {
        known.extend(names(&read(path)?, prefix));
    }
    for path in HANDLER {
        // The quoted words are names and helps; a help has spaces.
        let text = read(path)?;
        let quoted = text.split('"').skip(1).step_by(2);
        let words = quoted.filter(|word| word.chars().all(|c| c == '_' || c.is_ascii_lowercase()));
        known.extend(words.map(|word| format!("nsbridge_handler_{word}")));
    }
    Ok(known)
}

/// Returns the borders of all buckets as Prometheus writes them.
///
/// # Errors
///
/// Returns an error if a file of names cannot be read.
pub(crate) fn borders() -> Result<BTreeSet<String>> {
    let mut borders = BTreeSet::new();
    for (path, _) in NAMES {
        let text = read(path)?;
        let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'));
        let numbers = words.filter(|word| word.contains('.') && word.len() > 1);
        borders.extend(numbers.map(|word| word.replace('_', "")));
    }
    Ok(borders)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("reading {path}"))
}

/// Returns the metrics that a file of names defines, as Prometheus writes them.
fn names(text: &str, prefix: &str) -> Vec<String> {
    let definitions = text.lines().filter_map(|line| line.trim().split_once(" = \""));
    let constants = definitions.filter(|(id, _)| id.chars().all(|c| c == '_' || c.is_uppercase()));
    let names = constants.filter_map(|(_, rest)| rest.strip_suffix("\","));
    names
        .map(
            |name| {
                if name.contains('.') { name.replace('.', "_") } else { prefix.to_owned() + name }
            },
        )
        .collect()
}

/// Returns the names in rules or queries that no metric has.
pub(crate) fn unknown(rules: &str, known: &BTreeSet<String>) -> Vec<String> {
    let words = rules.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let asked: BTreeSet<&str> = words
        .filter(|word| OURS.iter().any(|prefix| word.starts_with(prefix)))
        // Labels of the conventions.
        .filter(|word| !["gen_ai_provider_name", "gen_ai_request_model"].contains(word))
        .collect();
    asked.into_iter().filter(|name| !is_known(name, known)).map(str::to_owned).collect()
}

fn is_known(name: &str, known: &BTreeSet<String>) -> bool {
    known.contains(name)
        || SUFFIXES
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .any(|shorter| is_known(shorter, known))
}

#[cfg(test)]
mod tests {
    use super::{check, names, unknown, untold};

    #[test]
    fn the_rules_of_this_project_ask_for_metrics_that_exist() {
        check().unwrap();
    }

    #[test]
    fn an_alert_that_the_manual_does_not_name_is_told() {
        let rules = "    - alert: Slow\n    - alert: Stuck\n";
        let manual = "# Manual\n`Stuck`\n\n## Alerts\n| `Slow` | wait |\n\n## Others\n`Stuck`\n";
        assert_eq!(untold(rules, manual), ["Stuck"]);
    }

    #[test]
    fn a_name_that_no_metric_has_is_told() {
        let text =
            "    SLOTS = \"slots\",\n    FIRST = \"gen_ai.server.first\",\n        \"Help\";";
        let known = names(text, "nsbridge_").into_iter().collect();
        let rules = "rate(gen_ai_server_first_seconds_bucket[5m]) > nsbridge_slots_total";
        assert!(unknown(rules, &known).is_empty());
        assert_eq!(unknown("nsbridge_slot > 0", &known), ["nsbridge_slot"]);
        assert_eq!(unknown("gen_ai_server_firsts", &known), ["gen_ai_server_firsts"]);
    }
}
