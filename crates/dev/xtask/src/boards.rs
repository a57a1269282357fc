//! Checks of the Grafana dashboards in `deploy/grafana`.
//!
//! The boards are edited in Grafana and exported. The lint checks that a board asks for no metric that
//! was renamed, and for no share below a time that is no border of a bucket.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::alerts;
use crate::cargo::root;

/// Folder of the boards.
const FOLDER: &str = "deploy/grafana";

/// Checks the queries of all boards.
///
/// # Errors
///
/// Returns an error if a query asks for a metric or a bucket that does not exist.
pub(crate) fn run() -> Result<()> {
    check(&queries()?)
}

/// Writes a file of recording rules with every query, whose syntax promtool can check.
///
/// # Errors
///
/// Returns an error if the file cannot be written.
pub(crate) fn rules() -> Result<PathBuf> {
    let queries = queries()?.into_iter().map(|query| query.replace("$__rate_interval", "5m"));
    let rules = queries
        .map(|query| query.replace("$__range", "1h"))
        .enumerate()
        .map(|(number, query)| json!({ "record": format!("board:query:{number}"), "expr": query }));
    let rules: Vec<Value> = rules.collect();
    let groups = json!({ "groups": [{ "name": "boards", "rules": rules }] });
    let path = root().join("target/boards.rules.yaml");
    fs::create_dir_all(root().join("target"))?;
    // YAML is a superset of JSON.
    fs::write(&path, groups.to_string())?;
    Ok(path)
}

/// Checks that all metrics exist, and that shares below a time are shares below a bucket's border.
fn check(queries: &[String]) -> Result<()> {
    let (metrics, text) = (alerts::metrics()?, queries.join("\n"));
    let unknown = alerts::unknown(&text, &metrics);
    ensure!(
        unknown.is_empty(),
        "the boards ask for metrics that do not exist: {}",
        unknown.join(", ")
    );
    let borders = alerts::borders()?;
    let asked = text.split("le=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let wrong: BTreeSet<&str> = asked.filter(|border| !borders.contains(*border)).collect();
    ensure!(wrong.is_empty(), "the boards ask for borders that no bucket has: {wrong:?}");
    Ok(())
}

/// Returns the boards.
fn boards() -> Result<Vec<Value>> {
    let mut boards = Vec::new();
    for entry in fs::read_dir(root().join(FOLDER))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let board = serde_json::from_str(&text);
        boards.push(board.with_context(|| format!("reading {}", path.display()))?);
    }
    ensure!(boards.len() > 3, "only {} boards were found in {FOLDER}", boards.len());
    Ok(boards)
}

/// Returns the queries of all panels.
fn queries() -> Result<Vec<String>> {
    let boards = boards()?;
    let items = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let panels = boards.iter().flat_map(|board| items(board, "panels"));
    let targets = panels.flat_map(|panel| items(&panel, "targets"));
    let queries: Vec<String> =
        targets.filter_map(|target| Some(target["expr"].as_str()?.to_owned())).collect();
    ensure!(queries.len() > 50, "only {} queries were found in {FOLDER}", queries.len());
    Ok(queries)
}

#[cfg(test)]
mod tests {
    use super::{boards, check, queries};

    #[test]
    fn the_boards_ask_for_metrics_and_buckets_that_exist() {
        check(&queries().unwrap()).unwrap();
    }

    #[test]
    fn a_metric_or_a_border_that_does_not_exist_is_refused() {
        for (of, by, said) in [
            ("nsbridge_slots", "nsbridge_slot", "nsbridge_slot"),
            ("le=\"2.5\"", "le=\"2.4\"", "2.4"),
        ] {
            let queries: Vec<String> =
                queries().unwrap().iter().map(|query| query.replace(of, by)).collect();
            assert!(check(&queries).unwrap_err().to_string().contains(said));
        }
    }

    #[test]
    fn panels_do_not_overlap() {
        for board in boards().unwrap() {
            let mut taken = std::collections::BTreeSet::new();
            for panel in board["panels"].as_array().unwrap() {
                let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
                assert!(place("x") + place("w") <= 24);
                for x in place("x")..place("x") + place("w") {
                    for y in place("y")..place("y") + place("h") {
                        assert!(taken.insert((x, y)), "{} at {x}, {y}", panel["title"]);
                    }
                }
            }
        }
    }
}
