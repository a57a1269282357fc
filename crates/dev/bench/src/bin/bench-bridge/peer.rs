//! Peers that do the same work, each used as its documentation shows.

use anyhow::Result;

use crate::runpod::Runpod;
use crate::script::Script;
use crate::{PIECE, REQUESTS, STREAMS, raw};
use nsbridge_bench::report::{median, percentile};

/// Peer with its measurements.
pub(crate) struct Peer {
    /// Suffix of its row names; empty for the first peer.
    pub(crate) suffix: &'static str,
    about: [&'static str; 2],
    /// Number of chunks per stream in a round, enough for some seconds.
    chunks_of_stream: usize,
    system: System,
    pub(crate) chunks: Figures,
    pub(crate) first: Figures,
    pub(crate) slowest: Figures,
}

enum System {
    Lapin(String),
    Script(Script),
    Runpod(Runpod),
    /// Reason why the peer is missing or failed.
    Missing(String),
}

/// Values of a peer, and the ratios to ours in the same round.
#[derive(Default)]
pub(crate) struct Figures {
    values: Vec<f64>,
    ratios: Vec<f64>,
}

impl Figures {
    /// Adds the values of a round and their ratio to ours.
    pub(crate) fn add(&mut self, values: &[f64], ratio: f64) {
        self.values.extend(values);
        self.ratios.push(ratio);
    }

    pub(crate) fn value(&mut self, of: impl FnOnce(&mut [f64]) -> f64) -> Option<f64> {
        (!self.values.is_empty()).then(|| of(&mut self.values))
    }

    pub(crate) fn ratio(&mut self) -> Option<f64> {
        (!self.ratios.is_empty()).then(|| median(&mut self.ratios))
    }
}

impl Peer {
    /// Starts all peers. Peers that cannot start are included as [`System::Missing`].
    pub(crate) async fn all(url: &str) -> Vec<Self> {
        let lapin = [
            "lapin 4.12 alone: plain bodies of the same size, same windows and acks",
            "lapin 4.12 alone: one plain request and reply over the same kinds of queues",
        ];
        let runpod = [
            "runpod 1.12: a handler that yields, each yield posted to a local API in this process",
            "runpod 1.12: until the first yield is posted to a local API in this process",
        ];
        let faststream = [
            "FastStream 0.7: a subscriber publishes each chunk to the reply queue, confirmed",
            "FastStream 0.7: quorum queue in, exclusive queue out",
        ];
        let celery = [
            "Celery 5.7, rpc backend, prefork: has no streaming, so as many small results",
            "Celery 5.7, rpc backend, prefork: quorum queue in, the whole result out",
        ];
        vec![
            Self::new("", lapin, crate::FRAMES, Ok(System::Lapin(url.to_owned()))),
            Self::new(".vs_runpod", runpod, 200, Runpod::start().await.map(System::Runpod)),
            Self::new(".vs_faststream", faststream, 400, script("faststream", url).await),
            Self::new(".vs_celery", celery, 100, script("celery", url).await),
        ]
    }

    fn new(
        suffix: &'static str,
        about: [&'static str; 2],
        chunks_of_stream: usize,
        system: Result<System>,
    ) -> Self {
        let system = system.unwrap_or_else(|error| System::missing(&error));
        let [chunks, first, slowest] = [Figures::default(), Figures::default(), Figures::default()];
        Self { suffix, about, chunks_of_stream, system, chunks, first, slowest }
    }

    /// Measures a throughput round; `ours` is our rate in the same round.
    pub(crate) async fn measure_chunks(&mut self, ours: f64) {
        match self.system.chunks_per_s(self.chunks_of_stream).await {
            Ok(rate) => {
                self.chunks.add(&[rate], ours / rate);
            }
            Err(error) => self.give_up(&error),
        }
    }

    /// Measures a latency round; `ours` is our times in the same round.
    pub(crate) async fn measure_first(&mut self, ours: &mut [f64]) {
        match self.system.first_ms().await {
            Ok(mut times) => {
                for (figures, share) in [(&mut self.first, 0.5), (&mut self.slowest, 0.99)] {
                    let ratio = percentile(&mut times, share) / percentile(ours, share);
                    figures.add(&times, ratio);
                }
            }
            Err(error) => self.give_up(&error),
        }
    }

    pub(crate) fn about_chunks(&self) -> String {
        self.about(0)
    }

    pub(crate) fn about_first(&self) -> String {
        self.about(1)
    }

    pub(crate) async fn stop(self) {
        match self.system {
            System::Script(script) => script.stop().await,
            System::Runpod(runpod) => runpod.stop().await,
            System::Lapin(_) | System::Missing(_) => {}
        }
    }

    fn about(&self, which: usize) -> String {
        match &self.system {
            System::Missing(why) => format!("{}; not measured: {why}", self.about[which]),
            _ => self.about[which].to_owned(),
        }
    }

    /// Marks the peer as missing after an error and discards its values, because a partial
    /// measurement is not comparable.
    fn give_up(&mut self, error: &anyhow::Error) {
        if !matches!(self.system, System::Missing(_)) {
            eprintln!("{}: {error:#}", self.about[0]);
            self.system = System::missing(error);
            [self.chunks, self.first, self.slowest] =
                [Figures::default(), Figures::default(), Figures::default()];
        }
    }
}

impl System {
    fn missing(error: &anyhow::Error) -> Self {
        Self::Missing(format!("{error:#}"))
    }

    async fn chunks_per_s(&mut self, chunks: usize) -> Result<f64> {
        match self {
            Self::Lapin(url) => raw::frames_per_s(url, STREAMS, chunks).await,
            Self::Script(script) => script.chunks_per_s(STREAMS, chunks, PIECE).await,
            Self::Runpod(runpod) => runpod.chunks_per_s(STREAMS, chunks, PIECE).await,
            Self::Missing(why) => anyhow::bail!("{why}"),
        }
    }

    async fn first_ms(&mut self) -> Result<Vec<f64>> {
        match self {
            Self::Lapin(url) => raw::round_trip_ms(url, REQUESTS).await,
            Self::Script(script) => script.first_ms(REQUESTS, PIECE).await,
            Self::Runpod(runpod) => runpod.first_ms(REQUESTS, PIECE).await,
            Self::Missing(why) => anyhow::bail!("{why}"),
        }
    }
}

async fn script(name: &str, url: &str) -> Result<System> {
    Script::start(&format!("{name}_peer.py"), url).await.map(System::Script)
}
