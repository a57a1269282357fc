//! `nsbridge demo`, the first command that a new user runs.

use serde_json::Value;

use crate::place::{model, output};

#[test]
fn the_same_seed_tells_the_same_story() {
    let tell = || output(&["demo", "--seed", "7", "--max-tokens", "40", "クマが海辺に行って"]);
    let (first, story, figures) = tell();
    assert!(first.status.success(), "{figures}");
    assert!(story.chars().count() > 20, "{story}");
    assert_eq!(tell().1, story);
    for figure in ["40 tokens", "tokens/s", "first after", "bytes sealed"] {
        assert!(figures.contains(figure), "{figures}");
    }
    // Without the draft model the text is the same.
    let (_, lone, figures) = output(&[
        "demo",
        "--seed",
        "7",
        "--max-tokens",
        "40",
        "--model",
        model().to_str().unwrap(),
        "クマが海辺に行って",
    ]);
    assert_eq!(lone, story);
    assert!(!figures.contains("drafted"), "{figures}");
    let (_, other, _) =
        output(&["demo", "--seed", "8", "--max-tokens", "40", "クマが海辺に行って"]);
    assert_ne!(other, story);
}

#[test]
fn json_is_one_object_per_line_and_a_summary_at_the_end() {
    let arguments = ["demo", "--seed", "7", "--max-tokens", "20", "--json", "Once a bear"];
    let (_, lines, _) = output(&arguments);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, pieces) = lines.split_last().unwrap();
    let text: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert!(pieces.iter().all(|piece| piece["type"] == "piece"));
    assert_eq!(
        (summary["type"].as_str(), summary["text"].as_str()),
        (Some("summary"), Some(&*text))
    );
    assert_eq!(summary["tokens"].as_u64(), Some(pieces.len() as u64));
    for figure in ["ttft_ms", "tokens_per_s", "sealed_bytes"] {
        assert!(summary[figure].as_f64().unwrap() > 0.0, "{figure}");
    }
}
