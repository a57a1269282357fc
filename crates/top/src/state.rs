//! Newest readings of all sources, and the figures that follow from them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nsbridge_observe::{Count, Counters, Queue, Use, model_of};
use nsbridge_protocol::ModelName;

use super::problems;
use super::rates::Window;
use super::snapshot::{Gateway, Model, Snapshot, Total, Worker};
use super::source::{Fault, Health, Reading, Report};

/// State of a process that cannot be read.
const UNREACHABLE: &str = "unreachable";

/// Source as its figures are shown.
#[derive(Debug)]
pub(super) struct Watched {
    name: String,
    /// Models whose queues the source reads by name.
    models: Vec<ModelName>,
    readings: Window<Reading>,
    fault: Option<(Fault, Instant)>,
}

impl Watched {
    pub(super) fn new(name: String, models: Vec<ModelName>, window: Duration) -> Self {
        Self { name, models, readings: Window::new(window), fault: None }
    }

    /// Returns the newest reading, unless the source cannot be read.
    fn fresh(&self) -> Option<&Reading> {
        self.readings.newest().filter(|_| self.fault.is_none())
    }

    fn pairs<'a, T: 'a>(
        &'a self,
        of: fn(&Reading) -> Option<&T>,
    ) -> impl Iterator<Item = (&'a T, &'a T)> {
        self.readings.pairs().filter_map(move |(before, now)| Some((of(before)?, of(now)?)))
    }
}

/// All sources.
#[derive(Debug)]
pub(super) struct State {
    broker: Option<String>,
    sources: Vec<Watched>,
}

impl State {
    pub(super) fn new(broker: Option<String>, sources: Vec<Watched>) -> Self {
        Self { broker, sources }
    }

    /// Takes the result of a reading.
    pub(super) fn take(&mut self, report: Report) {
        let Some(source) = self.sources.get_mut(report.source) else { return };
        match report.read {
            Ok(reading) => {
                let known = source.readings.newest().map(std::mem::discriminant);
                // Another process has taken over the address.
                if known.is_some_and(|known| known != std::mem::discriminant(&reading)) {
                    source.readings.clear();
                }
                source.readings.add(report.at, reading);
                source.fault = None;
            }
            Err(fault) => source.fault = Some((fault, report.at)),
        }
    }

    /// Returns true if a source could not be read.
    pub(super) fn has_faults(&self) -> bool {
        self.sources.iter().any(|source| source.fault.is_some())
    }

    /// Returns the figures of this moment. `time` is what they show as the time.
    pub(super) fn snapshot(&self, now: Instant, time: String) -> Snapshot {
        let mut snapshot = Snapshot { time, broker: self.broker.clone(), ..Snapshot::default() };
        let mut of_workers = Vec::new();
        for source in &self.sources {
            if let Some((fault, at)) = &source.fault {
                let since = now.saturating_duration_since(*at);
                snapshot.problems.push(problems::of_source(&source.name, fault, since));
            }
            match source.readings.newest() {
                Some(Reading::Worker(page, health)) => {
                    let restarted =
                        source.pairs(counters).any(|(before, now)| now.went_down(before));
                    snapshot.workers.push(worker(source, page, *health));
                    if source.fault.is_none() {
                        let seconds = source.readings.seconds().unwrap_or_default();
                        let name = &source.name;
                        let said = problems::of_worker(name, page, *health, restarted, seconds);
                        of_workers.extend(said);
                    }
                }
                Some(Reading::Gateway(page)) => snapshot.gateways.push(gateway(source, page)),
                Some(Reading::Queues(_)) | None => {}
            }
        }
        let (models, of_models) = self.models();
        snapshot.models = models;
        snapshot.problems.extend(of_models);
        snapshot.problems.extend(of_workers);
        snapshot.problems.extend(problems::of_fingerprints(self.fresh_workers()));
        snapshot.total = total(&snapshot.workers);
        snapshot
    }

    fn fresh_workers(&self) -> impl Iterator<Item = &nsbridge_observe::Worker> {
        self.sources.iter().filter_map(|source| match source.fresh()? {
            Reading::Worker(worker, _) => Some(&**worker),
            Reading::Gateway(_) | Reading::Queues(_) => None,
        })
    }

    /// Returns the models and the sentences about them. The figures of workers come first, so that
    /// those of the broker replace them.
    fn models(&self) -> (Vec<Model>, Vec<String>) {
        let mut models = BTreeMap::<String, Model>::new();
        let mut said = Vec::new();
        let mut seconds = 0.0_f64;
        for source in &self.sources {
            if let Some(Reading::Worker(worker, _)) = source.fresh() {
                let row = models.entry(worker.model.clone()).or_default();
                let before = source.readings.oldest().and_then(of_worker);
                add_worker(row, worker, before);
                seconds = seconds.max(source.readings.seconds().unwrap_or_default());
            }
        }
        for source in &self.sources {
            let Some(Reading::Queues(queues)) = source.fresh() else { continue };
            let before = source.readings.oldest().and_then(of_queues);
            seconds = seconds.max(source.readings.seconds().unwrap_or_default());
            let levels = levels(queues);
            let before = before.map(|queues| self::levels(queues)).unwrap_or_default();
            for (model, level) in &levels {
                let row = models.entry((*model).to_owned()).or_default();
                replace(row, level, before.get(model));
            }
            let missing = source.models.iter().filter(|model| !levels.contains_key(model.as_str()));
            for model in missing {
                models.entry(model.to_string()).or_default();
                said.push(problems::no_queue(model.as_str()));
            }
        }
        let named = |(name, model)| Model { model: name, ..model };
        let models: Vec<_> = models.into_iter().map(named).collect();
        said.extend(models.iter().flat_map(|model| problems::of_model(model, seconds)));
        (models, said)
    }
}

fn of_worker(reading: &Reading) -> Option<&nsbridge_observe::Worker> {
    if let Reading::Worker(worker, _) = reading { Some(worker) } else { None }
}

fn of_queues(reading: &Reading) -> Option<&Vec<Queue>> {
    if let Reading::Queues(queues) = reading { Some(queues) } else { None }
}

fn counters(reading: &Reading) -> Option<&Counters> {
    match reading {
        Reading::Worker(worker, _) => Some(&worker.counters),
        Reading::Gateway(gateway) => Some(&gateway.counters),
        Reading::Queues(_) => None,
    }
}

/// Growth of a process's counters over the window, and the seconds that it took.
struct Growth {
    counters: Counters,
    seconds: f64,
}

impl Growth {
    /// Returns the growth, if the process can be read and was read twice.
    fn of(source: &Watched) -> Option<Self> {
        source.fresh()?;
        let seconds = source.readings.seconds()?;
        let mut grown = Counters::default();
        for (before, now) in source.pairs(counters) {
            grown.add_all(&now.growth(before));
        }
        Some(Self { counters: grown, seconds })
    }

    fn rate(&self, count: Count) -> Option<f64> {
        self.counters.of(count).map(|grown| grown / self.seconds)
    }

    /// Returns the share of a count in the sum of itself and of another.
    fn share(&self, of: Count, rest: f64) -> Option<f64> {
        let count = self.counters.of(of)?;
        (count + rest > 0.0).then(|| count / (count + rest))
    }
}

fn worker(source: &Watched, page: &nsbridge_observe::Worker, health: Option<Health>) -> Worker {
    let row = Worker {
        address: source.name.clone(),
        model: page.model.clone(),
        version: page.version.clone(),
        revision: page.revision.clone(),
        ..Worker::default()
    };
    if source.fault.is_some() {
        return Worker { state: UNREACHABLE, ..row };
    }
    let row = Worker {
        state: health.map_or("", state),
        running: Some(whole(page.running)),
        slots: Some(whole(page.slots)),
        ..row
    };
    let Some(grown) = Growth::of(source) else { return row };
    let tokens: f64 = source.pairs(of_worker).map(|(before, now)| now.tokens_since(before)).sum();
    let of = |count| grown.counters.of(count).unwrap_or_default();
    Worker {
        tokens_per_s: Some(tokens / grown.seconds),
        requests_per_s: grown.rate(Count::Requests),
        errors_per_s: grown.rate(Count::Errors),
        first_token_p50_s: grown.counters.first_token.quantile(0.5),
        first_token_p95_s: grown.counters.first_token.quantile(0.95),
        drafts_accepted: grown.share(Count::Accepted, of(Count::Drafted) - of(Count::Accepted)),
        prefix_cache_hits: grown.share(Count::CacheHits, of(Count::CacheMisses)),
        ..row
    }
}

fn gateway(source: &Watched, page: &nsbridge_observe::Gateway) -> Gateway {
    let row = Gateway { address: source.name.clone(), ..Gateway::default() };
    if source.fault.is_some() {
        return Gateway { state: UNREACHABLE, ..row };
    }
    let row = Gateway {
        state: "serves",
        running: Some(whole(page.running)),
        streams: Some(whole(page.streams)),
        ..row
    };
    let Some(grown) = Growth::of(source) else { return row };
    Gateway {
        requests_per_s: grown.rate(Count::Requests).or(Some(0.0)),
        refused_per_s: grown.rate(Count::Errors),
        failed_per_s: grown.rate(Count::Failed),
        reattached_per_s: grown.rate(Count::Reattached),
        first_token_p50_s: grown.counters.first_token.quantile(0.5),
        first_token_p95_s: grown.counters.first_token.quantile(0.95),
        ..row
    }
}

fn state(health: Health) -> &'static str {
    match health {
        Health { draining: true, .. } => "draining",
        Health { loaded: false, .. } => "loading",
        Health { handler_ok: false, .. } => "unwell",
        Health { calls_ok: false, .. } => "stuck",
        Health { consuming: false, .. } => "not taking",
        Health { ready: true, .. } => "ready",
        Health { .. } => "not ready",
    }
}

/// Returns the sums over workers; `None` if no worker has the figure.
fn total(workers: &[Worker]) -> Total {
    let sum = |of: fn(&Worker) -> Option<f64>| {
        workers.iter().filter_map(of).reduce(|sum, next| sum + next)
    };
    Total {
        tokens_per_s: sum(|worker| worker.tokens_per_s),
        requests_per_s: sum(|worker| worker.requests_per_s),
        errors_per_s: sum(|worker| worker.errors_per_s),
    }
}

/// Adds the figures of a worker to those of its model. All workers report the levels of the queues.
fn add_worker(
    row: &mut Model,
    worker: &nsbridge_observe::Worker,
    before: Option<&nsbridge_observe::Worker>,
) {
    row.in_work = Some(row.in_work.unwrap_or_default() + whole(worker.running));
    let level =
        |worker: &nsbridge_observe::Worker, queue| worker.queues.get(queue).copied().map(whole);
    let dead = level(worker, "dead");
    let new = before.and_then(|before| level(before, "dead"));
    let new = dead.zip(new).map(|(now, before)| now.saturating_sub(before));
    row.ready = row.ready.max(level(worker, "requests"));
    row.bulk = row.bulk.max(level(worker, "bulk"));
    row.dead = row.dead.max(dead);
    row.dead_new = row.dead_new.max(new);
}

/// Returns the levels of the queues of each model.
fn levels(queues: &[Queue]) -> BTreeMap<&str, Model> {
    let mut models = BTreeMap::<&str, Model>::new();
    for queue in queues {
        let Some((model, of)) = model_of(&queue.name) else { continue };
        let row = models.entry(model).or_default();
        let add = |to: &mut Option<u64>, more| *to = Some(to.unwrap_or_default() + more);
        match of {
            Use::Requests => {
                row.ready = Some(queue.ready);
                row.consumers = Some(queue.consumers);
            }
            Use::Bulk => row.bulk = Some(queue.ready),
            Use::Retry => add(&mut row.retry, queue.ready),
            Use::Dead => row.dead = Some(queue.ready),
        }
        if matches!(of, Use::Requests | Use::Bulk) {
            if let Some(unacked) = queue.unacked {
                add(&mut row.in_work, unacked);
            }
            let sum = |to: &mut Option<f64>, more: Option<f64>| {
                *to = to.zip(more).map(|(sum, more)| sum + more).or(*to).or(more);
            };
            sum(&mut row.published_per_s, queue.published);
            sum(&mut row.settled_per_s, queue.settled);
        }
    }
    models
}

/// Replaces the figures of a model that the broker knows.
fn replace(row: &mut Model, level: &Model, before: Option<&Model>) {
    let new = level.dead.zip(before.and_then(|before| before.dead));
    *row = Model {
        model: String::new(),
        ready: level.ready.or(row.ready),
        bulk: level.bulk.or(row.bulk),
        in_work: level.in_work.or(row.in_work),
        consumers: level.consumers.or(row.consumers),
        retry: level.retry.or(row.retry),
        dead: level.dead.or(row.dead),
        dead_new: new.map(|(now, before)| now.saturating_sub(before)).or(row.dead_new),
        published_per_s: level.published_per_s.or(row.published_per_s),
        settled_per_s: level.settled_per_s.or(row.settled_per_s),
    };
}

/// Returns a gauge as a number of things.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a value out of range becomes the nearest one"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests;
