//! Tests of the exported metrics, from the first moment on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Method;
use nsbridge_client::Usage;
use nsbridge_gateway_replies::{Observer as _, Outcome};

use super::{Metrics, RefusedFiles, names};
use crate::catalog::{Model, Models, Task};

fn metrics() -> Metrics {
    let tale = Model { queue: Some("q-tale".parse().unwrap()), ..Model::default() };
    let vectors = Model { task: Task::Embed, ..Model::default() };
    let models = BTreeMap::from([("tale".to_owned(), tale), ("vectors".to_owned(), vectors)]);
    Metrics::new(&Models::new(models, None).unwrap(), &RefusedFiles::default())
}

/// Returns the value of the series with this name and these labels.
#[track_caller]
fn check(metrics: &Metrics, series: &str, expected: &str) {
    let text = metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    assert_eq!(line, Some(expected), "{series} in\n{text}");
}

fn series(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect()
}

#[test]
fn the_series_of_replies_are_there_before_anything_happened() {
    let metrics = metrics();
    let before = metrics.text();
    let meter = metrics.begin("completion 3", &"q-tale".parse().unwrap());
    meter.piece();
    meter.end(Outcome::Done(Usage::new(3, 5)));
    metrics.begin("embedding", &"vectors".parse().unwrap()).end(Outcome::Failed);
    drop(metrics.begin("chat", &"q-tale".parse().unwrap()));
    metrics.refused("rate_limit_exceeded");
    metrics.refused("a code that no list has");
    let after = metrics.text();
    let sorted = |text| {
        let mut series = series(text);
        series.sort_unstable();
        series.join("\n")
    };
    assert_eq!(sorted(&before), sorted(&after));
    for end in ["cancelled", "done", "failed"] {
        check(&metrics, &format!("nsbridge_gateway_replies_total{{end=\"{end}\"}}"), "1");
    }
    check(&metrics, "nsbridge_gateway_replies_running", "0");
    let tokens = |kind| {
        format!(
            "gen_ai_client_token_usage_sum{{model=\"tale\",operation=\"completion\",type=\"{kind}\"}}"
        )
    };
    check(&metrics, &tokens("input"), "3.0");
    check(&metrics, &tokens("output"), "5.0");
    let labels = "{model=\"tale\",operation=\"completion\"}";
    for name in ["time_to_first_chunk", "duration"] {
        check(&metrics, &format!("gen_ai_client_operation_{name}_seconds_count{labels}"), "1");
    }
    for code in ["rate_limit_exceeded", "other"] {
        check(
            &metrics,
            &format!("nsbridge_gateway_requests_refused_total{{code=\"{code}\"}}"),
            "1",
        );
    }
}

#[test]
fn labels_have_no_text_of_clients() {
    let metrics = metrics();
    metrics.begin("SECRET", &"q-secret".parse().unwrap()).end(Outcome::Done(Usage::default()));
    metrics.refused("SECRET");
    let method = Method::from_bytes(b"SECRET").unwrap();
    metrics.responded(&method, None, 404, Duration::from_millis(1));
    let text = metrics.text();
    assert!(!text.to_lowercase().contains("secret"), "{text}");
    let labels = "{method=\"_OTHER\",route=\"other\",status=\"404\"}";
    check(&metrics, &format!("http_server_request_duration_seconds_count{labels}"), "1");
}

#[test]
fn a_stream_is_open_until_it_is_dropped() {
    let metrics = metrics();
    let open = metrics.stream_opened();
    check(&metrics, "nsbridge_gateway_streams_open", "1");
    drop(open);
    check(&metrics, "nsbridge_gateway_streams_open", "0");
}

#[test]
fn every_code_of_an_error_is_counted_under_its_own_name() {
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.ends_with("metrics/tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // The quotation mark may stand on the next line.
            for part in text.split(".coded(").skip(1) {
                let Some(code) = part.trim_start().strip_prefix('"') else { continue };
                let code = code.split('"').next().unwrap();
                assert!(names::CODES.contains(&code), "{code} of {}", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found} codes were found");
}
