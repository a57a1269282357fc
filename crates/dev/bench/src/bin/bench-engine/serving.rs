//! Benchmark of concurrent requests, and of a prompt with a cached prefix.

use anyhow::Result;
use nsbridge_bench::report::{Row, median};

use crate::engine::Question;
use crate::rounds::{Group, Measured};

/// Numbers of concurrent requests.
const STREAMS: [usize; 4] = [1, 4, 16, 64];
const PROMPT: usize = 32;
const TOKENS: usize = 16;
const PREFIX: usize = 1000;
const ROUNDS: usize = 2;

/// Returns the questions to each engine, with the names of their rows.
fn questions() -> Vec<(Question, Vec<(String, Kind)>)> {
    let mut questions: Vec<_> = STREAMS
        .into_iter()
        .map(|streams| {
            let question = Question::Serve { streams, prompt: PROMPT, tokens: TOKENS };
            let rows = vec![
                (format!("ttft_{streams}"), Kind::Seconds),
                (format!("tpot_{streams}"), Kind::Seconds),
                (format!("served_{streams}"), Kind::Rate(streams * TOKENS)),
            ];
            (question, rows)
        })
        .collect();
    let rows = ["prefix_cold", "prefix_warm"].map(|name| (name.to_owned(), Kind::Seconds));
    questions.push((Question::Prefix { tokens: PREFIX }, rows.into()));
    questions
}

/// Interpretation of a number in an answer.
#[derive(Clone, Copy)]
enum Kind {
    Seconds,
    /// Rate of this number of tokens in the answered seconds.
    Rate(usize),
}

/// Asks all engines in turns. Returns the rows of ours beside each peer.
pub(crate) fn measure(group: &mut Group, name: &str) -> Result<Vec<Row>> {
    let questions = questions();
    // Answers of all rounds, by question and engine.
    let engines = 1 + group.peers.len();
    let mut answers = vec![vec![Vec::new(); engines]; questions.len()];
    let warm_up = Question::Serve { streams: 1, prompt: 8, tokens: 2 };
    for round in 0..ROUNDS {
        for ((question, _), answers) in questions.iter().zip(&mut answers) {
            let all = std::iter::once(&mut group.ours).chain(&mut group.peers);
            for (Measured { engine, .. }, answers) in all.zip(answers) {
                let skipped =
                    matches!(question, Question::Prefix { .. }) && engine.suffix == ".vs_openvino";
                if skipped || (round == 0 && engine.ask(warm_up)?.is_none()) {
                    continue;
                }
                let Some(answer) = engine.ask(*question)? else { continue };
                eprintln!("round {round}: {}: {question:?}: {answer:.3?}", engine.about);
                answers.push(answer);
            }
        }
    }
    let mut rows = Vec::new();
    for ((_, names), answers) in questions.iter().zip(&answers) {
        for (at, (what, kind)) in names.iter().enumerate() {
            let values = |of: &[Vec<f64>]| {
                of.iter()
                    .filter_map(|answer| answer.get(at))
                    .map(|seconds| kind.value(*seconds))
                    .collect::<Vec<_>>()
            };
            for (peer, theirs) in group.peers.iter().zip(&answers[1..]) {
                let (mut mine, mut theirs) = (values(&answers[0]), values(theirs));
                if theirs.is_empty() {
                    continue;
                }
                let mut ratios: Vec<f64> = mine
                    .iter()
                    .zip(&theirs)
                    .map(|(mine, theirs)| kind.ratio(*mine, *theirs))
                    .collect();
                rows.push(Row {
                    name: format!("engine.{what}.{name}{}", peer.engine.suffix),
                    value: median(&mut mine),
                    unit: kind.unit(),
                    better: kind.better(),
                    peer: Some(peer.engine.says()),
                    peer_value: Some(median(&mut theirs)),
                    ratio: Some(median(&mut ratios)),
                });
            }
        }
    }
    Ok(rows)
}

impl Kind {
    fn value(self, seconds: f64) -> f64 {
        match self {
            Self::Seconds => seconds,
            Self::Rate(tokens) => tokens as f64 / seconds,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Rate(_) => "tokens/s",
        }
    }

    fn better(self) -> &'static str {
        match self {
            Self::Seconds => "lower",
            Self::Rate(_) => "higher",
        }
    }

    /// Returns the ratio of ours to the peer's, above 1 if ours is better.
    fn ratio(self, mine: f64, theirs: f64) -> f64 {
        match self {
            Self::Seconds => theirs / mine,
            Self::Rate(_) => mine / theirs,
        }
    }
}
