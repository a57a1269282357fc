//! Cold start of a worker: finds its models, and reports progress while the handler loads them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use nsbridge_handler::source::LoadProgress;
use nsbridge_handler::{Model, Models};
use nsbridge_protocol::Revision;
use nsbridge_store::{Opened, Store, StoreError};
use tokio::time::sleep;

use crate::config::ModelConfig;
use crate::observability::metrics::{Metrics, Phase};

/// Interval of the log lines during a long load.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Update interval of the metrics during a load.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Name of the model whose revision is the worker's, if there are several models.
const TARGET: &str = "target";

/// Models that were found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Models for the handler.
    pub(crate) models: Models,
    /// Revision that this worker serves, if its model has one.
    pub(crate) revision: Option<Revision>,
}

/// Finds the models that a configuration names. Their loads report to `progress`.
///
/// # Errors
///
/// Returns the error of the first model that does not exist or is not valid.
pub(crate) async fn find(
    store: &Store,
    models: &BTreeMap<String, ModelConfig>,
    metrics: &Metrics,
    progress: &LoadProgress,
) -> Result<Found, StoreError> {
    let started = Instant::now();
    let mut found = Vec::new();
    for (name, config) in models {
        let opened = store.model(config.wanted()).await?;
        say_found(name, &opened);
        found.push((name.clone(), opened.model.tracked(progress)));
    }
    metrics.phase(Phase::Find, started.elapsed());
    let target = found.iter().find(|(name, _)| name == TARGET);
    let target = target.or(if found.len() == 1 { found.first() } else { None });
    let revision = target.and_then(|(_, model)| model.revision()?.parse().ok());
    Ok(Found { models: found.into_iter().collect(), revision })
}

/// Reports the progress of a load until the future is dropped.
pub(crate) async fn tell(store: &Store, metrics: &Metrics, progress: &LoadProgress) -> Infallible {
    let started = Instant::now();
    let (mut said, mut before) = (started, 0);
    loop {
        sleep(COUNT_EVERY).await;
        metrics.store(store.counts());
        let (from_store, from_cache) =
            (store.counts().from_store.get(), store.counts().from_cache.get());
        progress.arrived(from_store + from_cache);
        if said.elapsed() < SAY_EVERY {
            continue;
        }
        let rate = (from_store + from_cache - before) as f64 / said.elapsed().as_secs_f64() / 1e6;
        let (loaded, total) = (progress.loaded(), progress.total());
        let percent = percent(progress);
        let seconds_left = seconds_left(started.elapsed(), loaded, total);
        tracing::info!(
            percent,
            seconds_left,
            from_store_mb = from_store / 1_000_000,
            from_cache_mb = from_cache / 1_000_000,
            mb_per_s = rate.round(),
            "loading for {:.0} s",
            started.elapsed().as_secs_f64()
        );
        (said, before) = (Instant::now(), from_store + from_cache);
    }
}

/// Returns how far a load is, in percent; `None` for a handler that reads plain files.
pub(crate) fn percent(progress: &LoadProgress) -> Option<u64> {
    (100 * progress.loaded()).checked_div(progress.total())
}

/// Returns the time that a load still takes at its mean rate, in seconds; `None` if nothing is loaded yet.
fn seconds_left(took: Duration, loaded: u64, total: u64) -> Option<u64> {
    let share = total.saturating_sub(loaded) as f64 / loaded as f64;
    (loaded > 0).then_some((took.as_secs_f64() * share) as u64)
}

fn say_found(name: &str, opened: &Opened) {
    let place = opened.model.place();
    let mb = size(&opened.model) / 1_000_000;
    if let Some(manifest) = &opened.manifest {
        let files = manifest.files.len();
        tracing::info!(model = name, place, revision = manifest.revision, files, mb, "found");
    } else {
        tracing::info!(model = name, place, mb, "found, without a manifest");
    }
}

/// Returns the size of all files of a model, in bytes.
fn size(model: &Model) -> u64 {
    model.source().files().iter().map(|file| file.size).sum()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use nsbridge_checkpoint::{Checkpoint, Order};
    use nsbridge_handler::source::LoadProgress;
    use nsbridge_store::{Location, Store, StoreConfig, Wanted};

    use super::{find, seconds_left};
    use crate::observability::metrics::Metrics;

    fn bundled() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/tale-1m")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_load_of_a_model_that_was_found_reports_its_progress() {
        let (store, progress) =
            (Store::open(&StoreConfig::default()).unwrap(), LoadProgress::default());
        let location = Location::Folder(bundled());
        let models = [("target".to_owned(), Wanted::from(location).into())].into();
        let metrics = Metrics::new(&"tale-1m".parse().unwrap());
        let found = find(&store, &models, &metrics, &progress).await.unwrap();
        let load = tokio::task::spawn_blocking(move || {
            let checkpoint = Checkpoint::open(found.models.require("target").unwrap()).unwrap();
            let weights = checkpoint.load(&Order::everything()).unwrap();
            let sizes: Vec<u64> = checkpoint
                .tensors()
                .iter()
                .map(|tensor| weights.tensor(&tensor.name).unwrap().contiguous().len() as u64)
                .collect();
            sizes.iter().sum::<u64>()
        });
        let bytes = load.await.unwrap();
        assert!(bytes > 1_000_000, "{bytes}");
        assert_eq!((progress.loaded(), progress.total()), (bytes, bytes));
    }

    #[test]
    fn bytes_that_arrive_before_a_load_begins_are_none_of_it() {
        let progress = LoadProgress::default();
        progress.arrived(500);
        assert_eq!((progress.loaded(), progress.total()), (0, 0));
    }

    #[test]
    fn the_time_left_comes_from_the_mean_rate() {
        assert_eq!(seconds_left(Duration::from_secs(10), 0, 100), None);
        assert_eq!(seconds_left(Duration::from_secs(10), 25, 100), Some(30));
        assert_eq!(seconds_left(Duration::from_secs(10), 100, 100), Some(0));
    }
}
