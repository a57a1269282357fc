//! `nsbridge simulate`: its table, its plots, and what it refuses.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::place::output;

/// Trace of a request a second for ten minutes, with a burst of a hundred at its end.
fn trace() -> String {
    let steady = (0..600).map(|at_s| format!("{at_s},1000,300\n"));
    let burst = (0..100).map(|_| "600,1000,300\n".to_owned());
    ["at_s,input_tokens,output_tokens\n".to_owned()]
        .into_iter()
        .chain(steady)
        .chain(burst)
        .collect()
}

struct Folder(TempDir);

impl Folder {
    fn with(name: &str, text: &str) -> (Self, String) {
        let folder = Self(TempDir::new().unwrap());
        let path = folder.path(name);
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn policies_are_compared_on_a_trace() {
    let (folder, trace) = Folder::with("trace.csv", &trace());
    let plots = folder.path("plots");
    let (ended, out, err) = output(&["simulate", &trace, "--plots", &plots]);
    assert!(ended.status.success(), "{err}");
    assert!(out.starts_with("trace, boot 180 s: 700 requests in 0.17 h, 1000 tokens"), "{out}");
    assert_eq!(out.lines().filter(|line| line.starts_with("| ")).count(), 1 + 7, "{out}");
    let plotted = fs::read_dir(&plots).unwrap().count();
    assert_eq!(plotted, 1 + 7);

    let (_, out, _) = output(&["simulate", &trace, "--json"]);
    let all: Value = serde_json::from_str(&out).unwrap();
    let of = |name: &str| {
        let policies = all["policies"].as_array().unwrap();
        policies.iter().find(|policy| policy["name"] == name).unwrap().clone()
    };
    let (fixed, ours) = (of("fixed, 15 on demand"), of("backlog of 15 s"));
    assert!(ours["cost"].as_f64() < fixed["cost"].as_f64(), "{ours} {fixed}");
    assert_eq!(fixed["unfinished"], 0);

    let (_, slow, _) = output(&["simulate", &trace, "--json", "--boot-s", "900"]);
    let slow: Value = serde_json::from_str(&slow).unwrap();
    let wait = |all: &Value| all["policies"][5]["wait_s"]["p95_s"].as_f64().unwrap();
    assert!(wait(&slow) > wait(&all), "a longer boot is a longer wait: {slow} {all}");
}

#[test]
fn the_default_configuration_is_one_that_can_be_changed() {
    let (_, config, _) = output(&["simulate", "--print-config"]);
    let (folder, path) = Folder::with("policies.toml", &config);
    let trace = folder.path("trace.csv");
    fs::write(&trace, self::trace()).unwrap();
    let (_, by_default, _) = output(&["simulate", &trace]);
    let (_, by_file, err) = output(&["simulate", &trace, "--config", &path]);
    assert_eq!(by_file, by_default, "{err}");
}

#[test]
fn wrong_input_is_told_in_a_sentence() {
    let (folder, config) = Folder::with("policies.toml", "[cluster]\nboots_s = 9\n");
    let trace = folder.path("trace.csv");
    fs::write(&trace, "at_s,input_tokens,output_tokens\n0,10,20\n1,ten,20\n").unwrap();
    for (arguments, parts) in [
        (vec![&*trace], ["trace.csv", "line 3"]),
        (vec!["absent.csv"], ["absent.csv", "No such file"]),
        (vec!["--config", &config], ["policies.toml", "boots_s"]),
        (vec!["--boot-s=-1"], ["boot_s", "-1"]),
    ] {
        let (ended, _, err) = output(&[&["simulate"], &arguments[..]].concat());
        assert_eq!(ended.status.code(), Some(1), "{err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}
