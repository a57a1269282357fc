//! Life of a batch: one task takes it from state to state, also after a restart of the gateway.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use nsbridge_base::Backoff;
use nsbridge_base::random::random;
use nsbridge_gateway_replies::{Kind, Unstored};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::finish::finish;
use super::line::{self, Outcome};
use super::validate::validate;
use crate::archive::batch::{LineError, Status};
use crate::archive::{Archive, Batch};
use crate::state::App;

/// Back-off after failures of the store.
const STORE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Continues the batches that the last process left without an end, and returns their number.
pub(crate) fn resume(app: &Arc<App>) -> usize {
    let Some(archive) = &app.archive else { return 0 };
    let batches = archive.unfinished();
    for batch in &batches {
        spawn(app, archive, batch);
    }
    batches.len()
}

/// Starts the task of a batch.
pub(super) fn spawn(app: &Arc<App>, archive: &Arc<Archive>, batch: &Arc<Batch>) {
    archive.tasks.spawn(drive(app.clone(), archive.clone(), batch.clone()));
}

async fn drive(app: Arc<App>, archive: Arc<Archive>, batch: Arc<Batch>) {
    let mut pauses = STORE_RETRY.pauses();
    while !batch.status().is_end() {
        let step = async {
            match batch.status() {
                Status::Validating => validated(&app, &archive, &batch).await,
                Status::InProgress => worked(&app, &archive, &batch).await,
                _ => finish(&app, &archive, &batch).await,
            }
        };
        let done = tokio::select! {
            biased;
            // The next process continues.
            () = app.draining.cancelled() => return,
            done = step => done,
        };
        if done.is_err() {
            tokio::select! {
                () = app.draining.cancelled() => return,
                () = sleep(pauses.next(random())) => {}
            }
        } else {
            pauses.reset();
        }
    }
    let status = batch.status().as_str();
    tracing::info!(batch = %batch.name(), status, "a batch has ended");
}

/// Checks the input.
async fn validated(app: &Arc<App>, archive: &Archive, batch: &Arc<Batch>) -> Result<(), Unstored> {
    let record = batch.record();
    let lines = archive.lines(record.input, app.settings.max_body);
    let checked = match app.access.holder(&record.key) {
        Ok(caller) => {
            let (app, endpoint) = (app.clone(), record.endpoint);
            let most = archive.limits.max_requests;
            archive
                .with_store(move |_| validate(lines, endpoint, most, &app.models, &caller))
                .await?
        }
        Err(denied) => Err(vec![LineError {
            code: "invalid_api_key".to_owned(),
            line: None,
            message: denied.to_string(),
            param: None,
        }]),
    };
    let change = |record: &mut crate::archive::BatchRecord| {
        if record.status != Status::Validating {
            return false;
        }
        match checked {
            Ok(valid) => {
                (record.total, record.model) = (valid.lines, valid.model);
                record.enter(Status::InProgress);
            }
            Err(errors) => {
                record.errors = errors;
                record.enter(Status::Failed);
            }
        }
        true
    };
    archive.change(batch, Vec::new(), change).await.map(drop)
}

/// Runs the lines without a result, until all have one, the batch is canceled, or its time is over.
async fn worked(
    app: &Arc<App>,
    archive: &Arc<Archive>,
    batch: &Arc<Batch>,
) -> Result<(), Unstored> {
    let done = Arc::new(results(archive, batch).await?);
    let left = batch.record().deadline().duration_since(SystemTime::now());
    let deadline = Instant::now() + left.unwrap_or_default();
    let mut running = JoinSet::new();
    let late = tokio::select! {
        biased;
        () = batch.stop.cancelled() => false,
        () = sleep_until(deadline) => true,
        log = run_lines(app, archive, batch, &done, &mut running) => { log?; false }
    };
    // Replies in progress are canceled when nothing reads them.
    running.shutdown().await;
    let change = |record: &mut crate::archive::BatchRecord| {
        let replies = record.status == Status::InProgress;
        if replies {
            record.late = late;
            record.enter(Status::Finalizing);
        }
        replies
    };
    archive.change(batch, Vec::new(), change).await.map(drop)
}

/// Returns the numbers of the lines that have a result, and counts them.
async fn results(archive: &Archive, batch: &Batch) -> Result<HashSet<u64>, Unstored> {
    let id = batch.id;
    let (done, completed) = archive
        .with_store(move |store| {
            let (mut done, mut completed) = (HashSet::new(), 0);
            store.each_part(Kind::Batch, id, |number, stored| {
                if let Some(outcome) = Outcome::of_stored(stored) {
                    done.insert(number);
                    completed += u64::from(outcome.is_ok);
                }
            })?;
            Ok((done, completed))
        })
        .await?;
    batch.completed.store(completed, Ordering::Relaxed);
    batch.failed.store(done.len() as u64 - completed, Ordering::Relaxed);
    Ok(done)
}

async fn run_lines(
    app: &Arc<App>,
    archive: &Arc<Archive>,
    batch: &Arc<Batch>,
    done: &Arc<HashSet<u64>>,
    running: &mut JoinSet<()>,
) -> Result<(), Unstored> {
    let (record, longest) = (batch.record(), app.settings.max_body);
    let mut lines = archive.lines(record.input, longest);
    loop {
        while running.len() >= archive.limits.lines {
            let _ = running.join_next().await;
        }
        let mut room = archive.room_for_line(&record.tenant, record.input, longest).await?;
        let done = done.clone();
        let (reader, line) = archive
            .with_store(move |_| {
                let mut line = lines.next()?;
                while line.as_ref().is_some_and(|line| done.contains(&line.number)) {
                    line = lines.next()?;
                }
                Ok((lines, line))
            })
            .await?;
        lines = reader;
        let Some(line) = line else { break };
        room.fit(line.text.as_ref().map_or(0, Vec::len));
        running.spawn(line::run(app.clone(), archive.clone(), batch.clone(), line, room));
    }
    while running.join_next().await.is_some() {}
    Ok(())
}
