//! `cargo xtask boards`: Grafana dashboards, written from `boards/boards.toml`.
//!
//! The lint compares `deploy/grafana` with what this module writes, so a board cannot ask for a
//! metric that was renamed, or for a share below a time that is no border of a bucket.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::alerts;
use crate::cargo::root;

/// Folder of the boards.
const FOLDER: &str = "deploy/grafana";

/// Columns of a board.
const COLUMNS: u32 = 24;

/// Description of all boards.
const LIST: &str = include_str!("boards/boards.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    board: Vec<Board>,
}

/// Dashboard of Grafana.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Board {
    /// Name of the file, and the identifier in Grafana after `nsbridge-`.
    name: String,
    title: String,
    /// Variables that the queries use: name, and the query of its values.
    variables: Vec<(String, String)>,
    row: Vec<Row>,
}

/// Panels under a title.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: String,
    panel: Vec<Panel>,
}

/// Panel of a board.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    about: String,
    kind: Kind,
    unit: String,
    /// Width in columns.
    width: u32,
    /// Queries, each with the legend of its series.
    queries: Vec<(String, String)>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Lines over time.
    Lines,
    /// Lines that are added up.
    Stacked,
    /// One number.
    Number,
    /// Share of a service level, red below 95 % and green from 99 %.
    Level,
    /// Buckets of a histogram over time.
    Buckets,
    /// Current values by their labels.
    Table,
}

impl Kind {
    fn height(self) -> u32 {
        match self {
            Self::Number | Self::Level => 4,
            _ => 8,
        }
    }
}

/// Writes the boards, or compares them with the files.
///
/// # Errors
///
/// Returns an error if a query asks for a metric or a bucket that does not exist, or if a file
/// differs and `write` is false.
pub(crate) fn run(write: bool) -> Result<()> {
    let boards = boards()?;
    check(&boards)?;
    let folder = root().join(FOLDER);
    let mut changed = Vec::new();
    for board in &boards {
        let path = folder.join(format!("{}.json", board.name));
        let text = serde_json::to_string_pretty(&json(board))? + "\n";
        if fs::read_to_string(&path).ok().as_deref() == Some(text.as_str()) {
            continue;
        }
        if write {
            fs::create_dir_all(&folder)?;
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        } else {
            changed.push(&*board.name);
        }
    }
    ensure!(
        changed.is_empty(),
        "{FOLDER} differs in {}: run `cargo xtask boards`",
        changed.join(", ")
    );
    Ok(())
}

/// Writes a file of recording rules with every query, whose syntax promtool can check.
///
/// # Errors
///
/// Returns an error if the file cannot be written.
pub(crate) fn rules() -> Result<PathBuf> {
    let boards = boards()?;
    let queries = queries(&boards).map(|query| query.replace("$__rate_interval", "5m"));
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
fn check(boards: &[Board]) -> Result<()> {
    let metrics = alerts::metrics()?;
    let text: String = queries(boards).collect::<Vec<_>>().join("\n");
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

fn boards() -> Result<Vec<Board>> {
    Ok(toml::from_str::<List>(LIST).context("reading boards.toml")?.board)
}

fn queries(boards: &[Board]) -> impl Iterator<Item = &str> {
    let panels = boards.iter().flat_map(|board| &board.row).flat_map(|row| &row.panel);
    panels.flat_map(|panel| &panel.queries).map(|(query, _)| &**query)
}

/// Returns a board in Grafana's form.
fn json(board: &Board) -> Value {
    let (mut panels, mut y) = (Vec::new(), 0);
    for Row { title, panel: row } in &board.row {
        panels.push(json!({
            "type": "row", "title": title, "collapsed": false, "panels": [],
            "id": panels.len() + 1, "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
        }));
        y += 1;
        let (mut x, mut height) = (0, 0);
        for panel in row {
            if x + panel.width > COLUMNS {
                (x, y, height) = (0, y + height, 0);
            }
            let mut one = shown(panel);
            one["id"] = (panels.len() + 1).into();
            one["gridPos"] = json!({ "x": x, "y": y, "w": panel.width, "h": panel.kind.height() });
            panels.push(one);
            x += panel.width;
            height = height.max(panel.kind.height());
        }
        y += height;
    }
    let source = json!({ "type": "prometheus", "uid": "${source}" });
    let mut variables = vec![json!({
        "name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus",
    })];
    variables.extend(board.variables.iter().map(|(name, query)| {
        json!({
            "name": name, "label": name, "type": "query", "datasource": source,
            "query": { "query": query, "refId": name }, "refresh": 2, "sort": 1,
            "multi": true, "includeAll": true,
            "current": { "text": "All", "value": "$__all" },
        })
    }));
    json!({
        "uid": format!("nsbridge-{}", board.name),
        "title": format!("nsbridge: {}", board.title),
        "tags": ["nsbridge"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": { "from": "now-1h", "to": "now" },
        "graphTooltip": 1,
        "links": [{
            "type": "dashboards", "title": "nsbridge", "tags": ["nsbridge"], "asDropdown": false,
            "includeVars": true, "keepTime": true,
        }],
        "templating": { "list": variables },
        "panels": panels,
    })
}

fn shown(panel: &Panel) -> Value {
    let kind = match panel.kind {
        Kind::Lines | Kind::Stacked => "timeseries",
        Kind::Number | Kind::Level => "stat",
        Kind::Buckets => "heatmap",
        Kind::Table => "table",
    };
    let instant = matches!(panel.kind, Kind::Table | Kind::Number | Kind::Level);
    let format = match panel.kind {
        Kind::Buckets => "heatmap",
        Kind::Table => "table",
        _ => "time_series",
    };
    let targets = panel.queries.iter().zip('A'..).map(|((query, legend), id)| {
        json!({
            "refId": id.to_string(), "expr": query, "legendFormat": legend,
            "instant": instant, "range": !instant, "format": format,
        })
    });
    let mut defaults = json!({ "unit": panel.unit, "min": 0 });
    let mut options = json!({});
    match panel.kind {
        Kind::Lines | Kind::Stacked => {
            let stacked = panel.kind == Kind::Stacked;
            defaults["custom"] = json!({
                "fillOpacity": if stacked { 30 } else { 8 }, "lineWidth": 1, "showPoints": "never",
                "stacking": { "mode": if stacked { "normal" } else { "none" } },
            });
            options = json!({
                "tooltip": { "mode": "multi", "sort": "desc" },
                "legend": { "displayMode": "list", "placement": "bottom" },
            });
        }
        Kind::Number => {
            options = json!({ "reduceOptions": { "calcs": ["lastNotNull"] }, "colorMode": "none" });
        }
        Kind::Level => {
            defaults["max"] = 1.into();
            defaults["thresholds"] = json!({ "mode": "absolute", "steps": [
                { "value": null, "color": "red" },
                { "value": 0.95, "color": "orange" },
                { "value": 0.99, "color": "green" },
            ]});
            options = json!({
                "reduceOptions": { "calcs": ["lastNotNull"] }, "colorMode": "background",
                "graphMode": "none",
            });
        }
        Kind::Buckets => {
            options = json!({ "calculate": false, "yAxis": { "unit": panel.unit } });
        }
        Kind::Table => {}
    }
    json!({
        "type": kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": { "type": "prometheus", "uid": "${source}" },
        "targets": targets.collect::<Vec<_>>(),
        "fieldConfig": { "defaults": defaults, "overrides": [] },
        "options": options,
    })
}

#[cfg(test)]
mod tests {
    use super::{boards, check, json};

    #[test]
    fn the_boards_ask_for_metrics_and_buckets_that_exist() {
        check(&boards().unwrap()).unwrap();
    }

    #[test]
    fn a_metric_or_a_border_that_does_not_exist_is_refused() {
        for (of, by, said) in [
            ("nsbridge_slots", "nsbridge_slot", "nsbridge_slot"),
            ("le=\"2.5\"", "le=\"2.4\"", "2.4"),
        ] {
            let mut boards = boards().unwrap();
            let panels = boards.iter_mut().flat_map(|board| &mut board.row);
            for panel in panels.flat_map(|row| &mut row.panel) {
                panel.queries.iter_mut().for_each(|(query, _)| *query = query.replace(of, by));
            }
            assert!(check(&boards).unwrap_err().to_string().contains(said));
        }
    }

    #[test]
    fn panels_do_not_overlap() {
        for board in boards().unwrap() {
            let board = json(&board);
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
