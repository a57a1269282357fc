//! Rounds over the engines of one model, in turns.

use anyhow::{Context, Result};
use nsbridge_bench::report::median;

use crate::bandwidth::Bandwidth;
use crate::engine::{Engine, Question};

/// Number of rounds; in each, ours and then every peer.
const ROUNDS: usize = 5;

/// Minimum cosine similarity of the logits of two engines. Formats of eight bits differ by one or
/// two thousandths; another model, or a wrong rotary embedding, is far below.
const ALIKE: f64 = 0.98;

/// Measurements of an engine in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Decode speed of one stream, in tokens per second.
    pub(crate) decode: f64,
    /// Prefill speed of a prompt of 256 tokens, in tokens per second.
    pub(crate) prefill: f64,
    /// Duration of a step of four tokens, relative to a step of one token.
    pub(crate) verify_cost: f64,
    /// Decode speed of sixteen streams together, in tokens per second.
    pub(crate) streams: f64,
    /// Read bandwidth of the machine in this round, in bytes per second; 0 if not measured.
    pub(crate) bandwidth: f64,
}

pub(crate) struct Measured {
    pub(crate) engine: Engine,
    pub(crate) rounds: Vec<Seen>,
}

/// Engines with the same model.
pub(crate) struct Group {
    pub(crate) ours: Measured,
    pub(crate) peers: Vec<Measured>,
}

impl Group {
    pub(crate) fn new(ours: Engine, peers: Vec<Engine>) -> Self {
        let measured = |engine| Measured { engine, rounds: Vec::new() };
        Self { ours: measured(ours), peers: peers.into_iter().map(measured).collect() }
    }

    /// Excludes peers whose logits differ from ours.
    pub(crate) fn compare_logits(&mut self) -> Result<()> {
        let ours = self.ours.engine.ask(Question::Logits)?.context("ours has logits")?;
        for peer in &mut self.peers {
            let Some(theirs) = peer.engine.ask(Question::Logits)? else { continue };
            let alike = cosine(&ours, &theirs);
            eprintln!("logits of {}: cosine {alike:.5}", peer.engine.about);
            if ours.len() != theirs.len() || alike.is_nan() || alike < ALIKE {
                peer.engine.refuse(format!("its logits are others, the cosine is {alike:.3}"));
            }
        }
        Ok(())
    }

    /// Runs all rounds.
    pub(crate) fn measure(&mut self, bandwidth: Option<&Bandwidth>) -> Result<()> {
        for round in 0..=ROUNDS {
            let bandwidth = bandwidth.map_or(0.0, Bandwidth::measure);
            for measured in std::iter::once(&mut self.ours).chain(&mut self.peers) {
                let Some(seen) = look(&mut measured.engine, bandwidth)? else {
                    // A partial measurement is not comparable, so the values are discarded.
                    measured.rounds.clear();
                    continue;
                };
                eprintln!("round {round}: {}: {seen:.2?}", measured.engine.about);
                // The first round is a warm-up.
                if round > 0 {
                    measured.rounds.push(seen);
                }
            }
        }
        Ok(())
    }
}

fn look(engine: &mut Engine, bandwidth: f64) -> Result<Option<Seen>> {
    let mut seconds = |sequences, tokens, rounds| {
        let answer = engine.ask(Question::Steps { sequences, tokens, rounds })?;
        anyhow::Ok(answer.map(|mut times| median(&mut times)))
    };
    let Some(one) = seconds(1, 1, 24)? else { return Ok(None) };
    let Some(four) = seconds(1, 4, 16)? else { return Ok(None) };
    let Some(streams) = seconds(16, 1, 8)? else { return Ok(None) };
    let Some(prompt) = seconds(1, 256, 3)? else { return Ok(None) };
    Ok(Some(Seen {
        decode: 1.0 / one,
        prefill: 256.0 / prompt,
        verify_cost: four / one,
        streams: 16.0 / streams,
        bandwidth,
    }))
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
