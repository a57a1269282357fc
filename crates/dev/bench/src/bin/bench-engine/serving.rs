//! Benchmark of concurrent requests, and of a prompt with a cached prefix.

use std::ops::Range;

use anyhow::Result;
use nsbridge_bench::report::{Row, median};

use crate::engine::Question;
use crate::rounds::{Group, Measured};

/// Numbers of concurrent requests.
const STREAMS: [usize; 4] = [1, 4, 16, 64];
const PROMPT: usize = 32;
const TOKENS: usize = 16;
const PREFIX: usize = 1000;

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

/// Answers of each engine of a group, by question, engine and round.
pub(crate) struct Serving {
    questions: Vec<(Question, Vec<(String, Kind)>)>,
    answers: Vec<Vec<Vec<Vec<f64>>>>,
}

impl Serving {
    pub(crate) fn new(group: &Group) -> Self {
        let questions = questions();
        let answers = vec![vec![Vec::new(); 1 + group.peers.len()]; questions.len()];
        Self { questions, answers }
    }

    /// Asks all engines in these rounds, each question once and before the next. The number of a round
    /// decides which engine is first.
    pub(crate) fn measure(&mut self, group: &mut Group, rounds: Range<usize>) -> Result<()> {
        warm_up(group)?;
        for round in rounds {
            self.ask_each(group, round, |_| 1)?;
        }
        Ok(())
    }

    /// Asks both builds of a comparison in one of its turns. The answers to a short question differ
    /// more, so it is asked more often than the longest.
    pub(crate) fn measure_turn(&mut self, group: &mut Group, turn: usize) -> Result<()> {
        warm_up(group)?;
        self.ask_each(group, turn, |question| match question {
            Question::Serve { streams: 64, .. } => 1,
            _ => 4,
        })
    }

    /// Asks each question `times` times in a round.
    fn ask_each(
        &mut self,
        group: &mut Group,
        round: usize,
        times: impl Fn(&Question) -> usize,
    ) -> Result<()> {
        for ((question, _), answers) in self.questions.iter().zip(&mut self.answers) {
            let is_prefix = matches!(question, Question::Prefix { .. });
            for time in 0..times(question) {
                for (place, Measured { engine, .. }) in group.in_turn(round + time) {
                    if is_prefix && engine.suffix == ".vs_openvino" {
                        continue;
                    }
                    answers[place].extend(engine.ask(*question)?);
                }
                let last: Vec<_> = answers.iter().map(|rounds| rounds.last()).collect();
                eprintln!("round {round}: {question:?}: ours, then the peers: {last:.3?}");
            }
        }
        Ok(())
    }

    /// Returns the rows of ours beside each peer.
    pub(crate) fn rows(&self, group: &Group, name: &str) -> Vec<Row> {
        let mut rows = Vec::new();
        for ((_, names), answers) in self.questions.iter().zip(&self.answers) {
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
                    let ratio = |(mine, theirs): (&f64, &f64)| kind.ratio(*mine, *theirs);
                    let mut ratios: Vec<f64> = mine.iter().zip(&theirs).map(ratio).collect();
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
        rows
    }
}

/// Loads the handler of each engine.
fn warm_up(group: &mut Group) -> Result<()> {
    for (_, Measured { engine, .. }) in group.in_turn(0) {
        engine.ask(Question::Serve { streams: 1, prompt: 8, tokens: 2 })?;
    }
    Ok(())
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
