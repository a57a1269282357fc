//! `nsbridge demo`, the first command that a new user runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::place::{Process, model, nsbridge, output};

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

#[test]
fn the_demo_answers_the_clients_of_openais_api() {
    let mut demo = nsbridge(&["demo", "--serve", "127.0.0.1:0"]);
    let mut demo = Process(demo.spawn().unwrap());
    let mut said = BufReader::new(demo.0.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    let address = first.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap();
    let body = r#"{"model": "tale-7m", "prompt": "Once a bear", "max_tokens": 4}"#;
    let mut gateway = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    gateway.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    gateway.read_to_string(&mut answer).unwrap();
    let (_, answer) = answer.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert!(!answer["choices"][0]["text"].as_str().unwrap().is_empty());
    demo.signal("-INT");
    assert_eq!(demo.code(), Some(0));
}
