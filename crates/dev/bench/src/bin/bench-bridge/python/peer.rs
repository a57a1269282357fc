//! Peers that serve one generator, each used as its documentation shows.

use anyhow::Result;
use nsbridge_bench::report::percentile;

use super::served::Served;
use super::{EVERY_MS, PIECES, TIMED};
use crate::ours::{Frames, System as Ours};
use crate::peer::Figures;
use crate::runpod::Runpod;
use crate::stamp::Stamped;
use crate::{PIECE, REQUESTS};

/// Peer with its measurements.
pub(super) struct Peer {
    /// Suffix of its row names; empty for the Rust handler.
    pub(super) suffix: &'static str,
    about: [&'static str; 3],
    /// Number of pieces in a round of the rate.
    pieces: usize,
    system: System,
    pub(super) rate: Figures,
    /// Times to the first piece: the median's ratios, and those of the 99th percentile.
    first: [Figures; 2],
    /// Times of all pieces, likewise.
    piece: [Figures; 2],
}

enum System {
    Rust(Box<Ours>),
    Runpod(Runpod),
    Served(Box<Served>),
    /// Reason why the peer is missing or failed.
    Missing(String),
}

impl Peer {
    /// Starts the peers in Python. Peers that cannot start are included with the reason.
    pub(super) async fn all() -> Vec<Self> {
        let runpod = [
            "runpod 1.12: a handler that yields, each yield posted to a local API in this process",
            "runpod 1.12: until the first yield is posted to a local API in this process",
            "runpod 1.12: from a yield until it is posted to a local API in this process",
        ];
        let litserve = [
            "LitServe 0.2: a LitAPI that yields, as one stream of HTTP over loopback",
            "LitServe 0.2: until the first yield arrives by HTTP over loopback",
            "LitServe 0.2: from a yield until it arrives by HTTP over loopback",
        ];
        let bentoml = [
            "BentoML 1.4: an asynchronous generator, as one stream of HTTP over loopback",
            "BentoML 1.4: until the first yield arrives by HTTP over loopback",
            "BentoML 1.4: from a yield until it arrives by HTTP over loopback",
        ];
        vec![
            Self::new(".vs_runpod", runpod, 1_000, Runpod::start().await.map(System::Runpod)),
            Self::new(
                ".vs_litserve",
                litserve,
                PIECES,
                Served::litserve().await.map(System::served),
            ),
            Self::new(".vs_bentoml", bentoml, PIECES, Served::bentoml().await.map(System::served)),
        ]
    }

    /// Starts a worker with the Rust handler.
    pub(super) async fn rust(url: &str, frames: Frames) -> Result<Self> {
        let about = [
            "the Rust handler in the same worker: a loop that emits",
            "the Rust handler in the same worker: until the first piece",
            "the Rust handler in the same worker: from its emit to the client",
        ];
        let system = Ours::start_with::<Stamped>(url, (), frames).await?;
        Ok(Self::new("", about, PIECES, Ok(System::Rust(Box::new(system)))))
    }

    fn new(
        suffix: &'static str,
        about: [&'static str; 3],
        pieces: usize,
        system: Result<System>,
    ) -> Self {
        let system = system.unwrap_or_else(|error| System::missing(&error));
        let rate = Figures::default();
        let [first, piece] = Default::default();
        Self { suffix, about, pieces, system, rate, first, piece }
    }

    /// Measures a round of the rate; `ours` is our rate in the same round.
    pub(super) async fn measure_rate(&mut self, ours: f64) {
        match self.system.pieces_per_s(self.pieces).await {
            Ok(rate) => self.rate.add(&[rate], ours / rate),
            Err(error) => self.give_up(&error),
        }
    }

    /// Measures a round of the times; `firsts` and `pieces` are our times in the same round. Returns
    /// the median time of a piece.
    pub(super) async fn measure_times(
        &mut self,
        firsts: &mut [f64],
        pieces: &mut [f64],
    ) -> Option<f64> {
        match self.system.times().await {
            Ok((mut theirs, mut of_pieces)) => {
                for (i, share) in [(0, 0.5), (1, 0.99)] {
                    let ratio = percentile(&mut theirs, share) / percentile(firsts, share);
                    self.first[i].add(&theirs, ratio);
                    let ratio = percentile(&mut of_pieces, share) / percentile(pieces, share);
                    self.piece[i].add(&of_pieces, ratio);
                }
                Some(percentile(&mut of_pieces, 0.5))
            }
            Err(error) => {
                self.give_up(&error);
                None
            }
        }
    }

    /// Returns the times of a group of rows.
    pub(super) fn times(&mut self, what: &str, share: f64) -> &mut Figures {
        let both = if what == "ttft_added" { &mut self.first } else { &mut self.piece };
        &mut both[usize::from(share > 0.9)]
    }

    pub(super) fn about(&self, which: usize) -> String {
        match &self.system {
            System::Missing(why) => format!("{}; not measured: {why}", self.about[which]),
            _ => self.about[which].to_owned(),
        }
    }

    pub(super) async fn stop(self) {
        match self.system {
            System::Rust(ours) => drop(ours.stop().await),
            System::Runpod(runpod) => runpod.stop().await,
            System::Served(served) => served.stop().await,
            System::Missing(_) => {}
        }
    }

    /// Marks the peer as missing after an error and discards its values.
    fn give_up(&mut self, error: &anyhow::Error) {
        if !matches!(self.system, System::Missing(_)) {
            eprintln!("{}: {error:#}", self.about[0]);
            self.system = System::missing(error);
            self.rate = Figures::default();
            [self.first, self.piece] = Default::default();
        }
    }
}

impl System {
    fn served(served: Served) -> Self {
        Self::Served(Box::new(served))
    }

    fn missing(error: &anyhow::Error) -> Self {
        Self::Missing(format!("{error:#}"))
    }

    async fn pieces_per_s(&mut self, pieces: usize) -> Result<f64> {
        match self {
            Self::Rust(ours) => ours.pieces_per_s(pieces).await,
            Self::Runpod(runpod) => runpod.chunks_per_s(1, pieces, PIECE).await,
            Self::Served(served) => served.pieces_per_s(pieces, PIECE).await,
            Self::Missing(why) => anyhow::bail!("{why}"),
        }
    }

    /// Returns the times to the first piece of some requests, and those of the pieces of one.
    async fn times(&mut self) -> Result<(Vec<f64>, Vec<f64>)> {
        Ok(match self {
            Self::Rust(ours) => {
                (ours.first_piece_ms(REQUESTS).await?, ours.piece_ms(TIMED, EVERY_MS).await?)
            }
            Self::Runpod(runpod) => (
                runpod.first_ms(REQUESTS, PIECE).await?,
                runpod.piece_ms(TIMED, PIECE, EVERY_MS).await?,
            ),
            Self::Served(served) => (
                served.first_ms(REQUESTS, PIECE).await?,
                served.piece_ms(TIMED, PIECE, EVERY_MS).await?,
            ),
            Self::Missing(why) => anyhow::bail!("{why}"),
        })
    }
}
