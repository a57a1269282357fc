//! Queues, workers and gateways on one screen, from their metrics and the broker.
//!
//! [`Top`] has the sources. It shows their figures on the terminal, or returns them once. The command is
//! `nsbridge top`.

mod problems;
mod queues;
mod rates;
mod screen;
mod snapshot;
mod source;
mod state;
mod view;

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use hyper::Uri;
pub use nsbridge_observe::address::{management as management_address, page as page_address};
use nsbridge_observe::{Http, Management, address};
use nsbridge_protocol::ModelName;
use ratatui::text::Line;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::queues::Queues;
use self::snapshot::{Snapshot, time};
use self::source::Source;
use self::state::{State, Watched};
use self::view::{Look, Sort, body, header};

/// Minimum time over which rates are computed.
const WINDOW: Duration = Duration::from_secs(10);

/// Width of the text of `--once`, in columns. Lines are only as long as they need to be.
const WIDTH: usize = 200;

/// Sources of figures, and the state that takes their readings.
#[derive(Debug)]
pub struct Top {
    state: State,
    sources: Vec<Source>,
    interval: Duration,
}

/// Figures of all sources, as text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Figures {
    /// Text for people, or JSON.
    pub text: String,
    /// False if a source could not be read.
    pub is_whole: bool,
}

impl Top {
    /// Creates the sources: the queues of models, the management API, which is asked as the user of the
    /// broker's URL, and pages of metrics. Each is read once in an interval.
    ///
    /// # Errors
    ///
    /// Returns an error if an address cannot be used.
    pub fn new(
        broker: &str,
        models: Vec<ModelName>,
        management: Option<Uri>,
        metrics: Vec<Uri>,
        interval: Duration,
    ) -> Result<Self> {
        let window = WINDOW.max(interval);
        let (mut watched, mut sources) = (Vec::new(), Vec::new());
        let broker_shown = address::without_login(broker);
        let uses_broker = !models.is_empty() || management.is_some();
        if !models.is_empty() {
            sources.push(Source::Queues(Queues::new(broker, &models)?));
            watched.push(Watched::new(format!("the broker {broker_shown}"), models, window));
        }
        if let Some(uri) = management {
            let name = format!("the management API {uri}");
            sources.push(Source::Management(Management::new(uri, broker)?));
            watched.push(Watched::new(name, Vec::new(), window));
        }
        for uri in metrics {
            watched.push(Watched::new(address::host(&uri), Vec::new(), window));
            sources.push(Source::Page(Http::new(&uri)?, uri));
        }
        let state = State::new(uses_broker.then_some(broker_shown), watched);
        Ok(Self { state, sources, interval })
    }

    /// Reads all sources twice, so that there are rates, and returns the figures.
    ///
    /// # Errors
    ///
    /// Returns an error if the figures cannot be written as JSON.
    pub async fn read_twice(mut self, as_json: bool) -> Result<Figures> {
        for pause in [Duration::ZERO, self.interval] {
            tokio::time::sleep(pause).await;
            let reports = self.sources.iter_mut().enumerate();
            let reports = reports.map(|(number, source)| source.report(number, None));
            for report in join_all(reports).await {
                self.state.take(report);
            }
        }
        let snapshot = self.state.snapshot(Instant::now(), time());
        let text = match as_json {
            true => format!("{}\n", serde_json::to_string(&snapshot)?),
            false => text(&snapshot),
        };
        Ok(Figures { text, is_whole: !self.state.has_faults() })
    }

    /// Shows the figures on the terminal until a key or the token ends it.
    ///
    /// # Errors
    ///
    /// Returns an error if the terminal fails or a task of a source has panicked.
    pub async fn watch(self, ended: CancellationToken, colored: bool) -> Result<()> {
        let (sender, reports) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        for (number, source) in self.sources.into_iter().enumerate() {
            tasks.spawn(source.watch(number, self.interval, sender.clone()));
        }
        screen::run(self.state, reports, tasks, ended, colored).await
    }
}

/// Returns the figures as the screen shows them, as text.
fn text(snapshot: &Snapshot) -> String {
    let look = Look { width: WIDTH, sort: Sort::default(), all_problems: true, colored: false };
    let mut lines = header(snapshot, look, "");
    lines.extend(body(snapshot, look));
    lines.iter().map(|line: &Line<'_>| format!("{line}\n")).collect()
}
