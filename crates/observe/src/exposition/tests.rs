//! Tests of the parser, with pages as workers, Prometheus clients and attackers write them.

use proptest::prelude::*;

use super::{MOST_LABELS, MOST_SAMPLES, Sample, is_whole, samples};

fn parsed(text: &str) -> Vec<Sample<'_>> {
    samples(text).collect::<anyhow::Result<_>>().unwrap()
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = samples(text).collect::<anyhow::Result<Vec<_>>>().unwrap_err();
    assert!(error.to_string().contains(expected), "{error:#}");
}

#[test]
fn a_page_of_openmetrics_is_read() {
    let text = "# HELP a_b Help.\n# TYPE a_b counter\n# UNIT a_b seconds\n\
                a_b_total{model=\"tale\",error_type=\"\"} 3 # {id=\"a b\"} 1.5 1764081167\n\
                wait_seconds_bucket{le=\"+Inf\"} 7 1764081167.25\nup 1.5e-3\n# EOF\n";
    let samples = parsed(text);
    let figures: Vec<_> = samples.iter().map(|sample| (sample.name, sample.value)).collect();
    assert_eq!(figures, [("a_b_total", 3.0), ("wait_seconds_bucket", 7.0), ("up", 0.0015)]);
    assert_eq!(samples[0].label("model"), Some("tale"));
    assert_eq!(samples[0].label("error_type"), Some(""));
    assert_eq!(samples[0].label("id"), None, "a label of the exemplar");
    assert_eq!(samples[1].label("le"), Some("+Inf"));
    assert!(is_whole(text) && !is_whole(&text[..text.len() - 3]) && !is_whole(""));
}

#[test]
fn a_page_of_prometheus_is_read() {
    let samples = parsed("a:b{ x = \"1\" , y=\"2\", } +Inf\r\n\n# a comment\nc\t-2\t17\nd NaN\n");
    assert_eq!((samples[0].name, samples[0].value), ("a:b", f64::INFINITY));
    assert_eq!((samples[0].label("x"), samples[0].label("y")), (Some("1"), Some("2")));
    assert_eq!((samples[1].name, samples[1].value), ("c", -2.0));
    assert!(samples[2].value.is_nan());
}

#[test]
fn escapes_in_labels_are_undone() {
    let samples = parsed("a{x=\"C:\\\\d \\\"e\\\" } \\n, # f\",y=\"\\\\\"} 1\n");
    assert_eq!(samples[0].label("x"), Some("C:\\d \"e\" } \n, # f"));
    assert_eq!(samples[0].label("y"), Some("\\"));
}

#[test]
fn other_lines_are_refused_with_their_number() {
    for line in [
        "a",
        "a ",
        "a1",
        "1a 1",
        "a one",
        "a 1 2 3",
        "a 1 x",
        "a{x=\"1\"}",
        "a{x=\"1\"}1",
        "a{x=\"1\" 1",
        "a{x=\"1} 1",
        "a{x=1} 1",
        "a{x=\"1\"y=\"2\"} 1",
        "a{x:y=\"1\"} 1",
        "a{=\"1\"} 1",
        "a{,} 1",
        "a{x=\"\\t\"} 1",
        "a{x=\"\\",
        "a 1 # x",
        "a 1 # {x=\"1\"}",
        "<html>",
        " a 1",
    ] {
        refused(&format!("b 1\n# c\n{line}\n"), "its line 3 is not a sample");
    }
}

#[test]
fn the_numbers_of_samples_and_labels_are_bounded() {
    let page = "a 1\n".repeat(MOST_SAMPLES);
    assert_eq!(parsed(&page).len(), MOST_SAMPLES);
    refused(&(page + "a 1\n"), "more than 50000 samples");
    let labels = |count| format!("a{{{}}} 1\n", "x=\"1\",".repeat(count));
    assert_eq!(parsed(&labels(MOST_LABELS)).len(), 1);
    refused(&labels(MOST_LABELS + 1), "its line 1");
}

/// Returns a line as a client library writes it.
fn written(name: &str, labels: &[(String, String)], value: f64) -> String {
    let escaped = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        text.replace('\n', "\\n")
    };
    let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{name}{{{}}} {value}\n", labels.collect::<Vec<_>>().join(","))
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
        for sample in samples(&text) {
            drop(sample);
        }
    }

    /// Texts of the parser's own signs reach more of its branches than random ones.
    #[test]
    fn any_text_of_the_signs_of_the_format_is_read_or_refused(
        text in "([ab0_:{}=\",\\\\#\n \tn+-]|\" # \"|=\"|NaN|\\\\n){0,60}",
    ) {
        for sample in samples(&text) {
            drop(sample);
        }
    }

    #[test]
    fn samples_come_back_as_they_were_written(
        name in "[a-zA-Z_:][a-zA-Z0-9_:]{0,20}",
        labels in prop::collection::vec(("[a-zA-Z_][a-zA-Z0-9_]{0,8}", "(?s).{0,12}"), 0..5),
        value in prop::num::f64::ANY,
    ) {
        let line = written(&name, &labels, value);
        let samples = parsed(&line);
        prop_assert_eq!(samples.len(), 1);
        prop_assert_eq!(samples[0].name, name);
        prop_assert!(samples[0].value == value || (value.is_nan() && samples[0].value.is_nan()));
        for (known, value) in &samples[0].labels {
            prop_assert!(labels.iter().any(|(name, text)| name == known && *text == **value));
        }
        prop_assert_eq!(samples[0].labels.len(), labels.len());
    }
}
