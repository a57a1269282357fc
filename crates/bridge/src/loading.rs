//! Cold start of a worker: finds its models, and reports progress while the handler loads them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use nsbridge_handler::Models;
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

/// Finds the models that a configuration names.
///
/// # Errors
///
/// Returns the error of the first model that does not exist or is not valid.
pub(crate) async fn find(
    store: &Store,
    models: &BTreeMap<String, ModelConfig>,
    metrics: &Metrics,
) -> Result<Found, StoreError> {
    let started = Instant::now();
    let mut found = Vec::new();
    for (name, config) in models {
        let opened = store.model(config.wanted()).await?;
        say_found(name, &opened);
        found.push((name.clone(), opened.model));
    }
    metrics.phase(Phase::Find, started.elapsed());
    let target = found.iter().find(|(name, _)| name == TARGET);
    let target = target.or(if found.len() == 1 { found.first() } else { None });
    let revision = target.and_then(|(_, model)| model.revision()?.parse().ok());
    Ok(Found { models: found.into_iter().collect(), revision })
}

/// Reports the progress of a load until the future is dropped.
pub(crate) async fn tell(store: &Store, metrics: &Metrics) -> Infallible {
    let started = Instant::now();
    let (mut said, mut before) = (started, 0);
    loop {
        sleep(COUNT_EVERY).await;
        metrics.store(store.counts());
        if said.elapsed() < SAY_EVERY {
            continue;
        }
        let (from_store, from_cache) =
            (store.counts().from_store.get(), store.counts().from_cache.get());
        let rate = (from_store + from_cache - before) as f64 / said.elapsed().as_secs_f64() / 1e6;
        tracing::info!(
            from_store_mb = from_store / 1_000_000,
            from_cache_mb = from_cache / 1_000_000,
            mb_per_s = rate.round(),
            "loading for {:.0} s",
            started.elapsed().as_secs_f64()
        );
        (said, before) = (Instant::now(), from_store + from_cache);
    }
}

fn say_found(name: &str, opened: &Opened) {
    let place = opened.model.place();
    if let Some(manifest) = &opened.manifest {
        let (files, mb) = (manifest.files.len(), manifest.size() / 1_000_000);
        tracing::info!(model = name, place, revision = manifest.revision, files, mb, "found");
    } else {
        tracing::info!(model = name, place, "found, without a manifest");
    }
}
