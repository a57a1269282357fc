//! Rounds over the engines of one model, in turns.

use anyhow::{Context, Result};
use nsbridge_bench::report::median;

use crate::bandwidth::Bandwidth;
use crate::engine::{Engine, Question};

/// Questions of a round, in the order of [`Seen`]'s times: a decode step of one stream; a step of four
/// tokens, as a draft of three tokens needs it; a decode step of sixteen streams; a prompt of 256
/// tokens. `rounds` is the number of steps that an answer has.
const fn questions(rounds: [usize; 4]) -> [Question; 4] {
    [
        Question::Steps { sequences: 1, tokens: 1, rounds: rounds[0] },
        Question::Steps { sequences: 1, tokens: 4, rounds: rounds[1] },
        Question::Steps { sequences: 16, tokens: 1, rounds: rounds[2] },
        Question::Steps { sequences: 1, tokens: 256, rounds: rounds[3] },
    ]
}

/// Questions of a round that asks each of them once.
const ROUND_QUESTIONS: [Question; 4] = questions([24, 16, 8, 3]);

/// Questions of a block, and the number of blocks of a round.
const BLOCK_QUESTIONS: [Question; 4] = questions([8, 4, 3, 1]);
const BLOCKS: usize = 6;

/// Questions of a block for a model whose steps take less than a millisecond. The first steps of an
/// answer find other data in the caches, and a sleeping thread.
const SHORT_OF_SMALL: [Question; 4] = questions([200, 100, 75, 25]);

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

    /// Runs a warm-up and this number of rounds. If the number is even, each engine is as often the
    /// first of a round as the last.
    pub(crate) fn measure(&mut self, rounds: usize, bandwidth: Option<&Bandwidth>) -> Result<()> {
        for round in 0..=rounds {
            let bandwidth = bandwidth.map_or(0.0, Bandwidth::measure);
            let mut times = self.no_times();
            self.ask_each(ROUND_QUESTIONS, round, &mut times)?;
            self.take(&times, bandwidth, round > 0);
        }
        Ok(())
    }

    /// Runs one round in blocks of short questions, after a warm-up. A phase of the machine that
    /// lasts longer than a block meets all engines.
    pub(crate) fn measure_in_blocks(&mut self, is_small: bool) -> Result<()> {
        let questions = if is_small { SHORT_OF_SMALL } else { BLOCK_QUESTIONS };
        self.ask_each(questions, 0, &mut self.no_times())?;
        let mut times = self.no_times();
        for block in 0..BLOCKS {
            self.ask_each(questions, block, &mut times)?;
        }
        self.take(&times, 0.0, true);
        Ok(())
    }

    fn no_times(&self) -> Vec<[Vec<f64>; 4]> {
        vec![Default::default(); 1 + self.peers.len()]
    }

    /// Asks each question of every engine before the next question, and adds the times by engine.
    fn ask_each(
        &mut self,
        questions: [Question; 4],
        round: usize,
        times: &mut [[Vec<f64>; 4]],
    ) -> Result<()> {
        for (at, question) in questions.into_iter().enumerate() {
            for (place, measured) in self.in_turn(round) {
                times[place][at].extend(measured.engine.ask(question)?.into_iter().flatten());
            }
        }
        Ok(())
    }

    /// Takes the medians of the times of a round, or only prints them if it is not kept.
    fn take(&mut self, times: &[[Vec<f64>; 4]], bandwidth: f64, kept: bool) {
        for (place, measured) in self.in_turn(0) {
            if times[place].iter().any(Vec::is_empty) {
                // A partial measurement is not comparable, so the values are discarded.
                measured.rounds.clear();
                continue;
            }
            let [one, four, streams, prompt] = times[place].clone().map(|mut all| median(&mut all));
            let seen = Seen {
                decode: 1.0 / one,
                prefill: 256.0 / prompt,
                verify_cost: four / one,
                streams: 16.0 / streams,
                bandwidth,
            };
            eprintln!(
                "{}{}: {seen:.2?}",
                if kept { "" } else { "warm-up: " },
                measured.engine.about
            );
            if kept {
                measured.rounds.push(seen);
            }
        }
    }

    /// Returns the engines of a round with their places in the group, in reverse order in each
    /// second round: the first one often finds other data in the processor's caches than the last.
    pub(crate) fn in_turn(&mut self, round: usize) -> Vec<(usize, &mut Measured)> {
        let all = std::iter::once(&mut self.ours).chain(&mut self.peers);
        let mut all: Vec<_> = all.enumerate().collect();
        if round % 2 == 1 {
            all.reverse();
        }
        all
    }

    /// Replaces each process by a new one, and keeps the rounds. `start` is called when the old
    /// processes have ended, because the memory may not suffice for both.
    pub(crate) fn start_again(
        &mut self,
        start: impl FnOnce() -> Result<(Engine, Vec<Engine>)>,
    ) -> Result<()> {
        for (_, measured) in self.in_turn(0) {
            measured.engine.refuse("it is started again".to_owned());
        }
        let (ours, peers) = start()?;
        self.ours.engine = ours;
        for (measured, engine) in self.peers.iter_mut().zip(peers) {
            measured.engine = engine;
        }
        Ok(())
    }
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
