//! Run record: counts the runs of a job that began and did not return, to detect poison messages
//! (rule R1).
//!
//! The broker counts how often a message was redelivered, but not why, and a worker that dies
//! cannot report it. Therefore each run of a redelivered message is entered before it begins, and
//! struck when the handler has returned. The remaining entries are runs whose worker died. The
//! record is a queue of its own in the broker with one message per entry: a publish enters a run, a
//! `basic.get` strikes it (docs/decisions/0013-run-record.md).

use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_base::random::random;
use nsbridge_protocol::topology::run_record;
use nsbridge_queue::{Confirmation, Error, Message, Result};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::request::admission::AdmittedRequest;
use crate::request::context::WorkerContext;

/// Share of one run in the record of its job.
pub(crate) struct RunRecord<'a> {
    worker: &'a WorkerContext,
    queue: String,
    request: &'a AdmittedRequest,
    /// Number of entries that the record may have of this run. More than one after a publish whose
    /// confirm was lost. Locked while an entry is made or struck.
    entries: Mutex<u32>,
    /// True once the handler has returned.
    returned: AtomicBool,
}

impl<'a> RunRecord<'a> {
    pub(crate) fn of(worker: &'a WorkerContext, request: &'a AdmittedRequest) -> Self {
        let number = request.reply_root.run_record(&request.reply_to);
        Self {
            worker,
            queue: run_record(&worker.model, number),
            request,
            entries: Mutex::new(0),
            returned: AtomicBool::new(false),
        }
    }

    /// Returns the number of runs of this message that began and did not return, as far as it is
    /// known. Waits for `record_wait`, so that live workers that were only cut off can strike theirs.
    ///
    /// The number never exceeds the earlier deliveries of this message by the broker's own count. So
    /// a first delivery has none, and the entries of other messages of the job (the original of a
    /// renewed copy, a copy that an attacker published) count only up to that number. If the record
    /// cannot be read, each earlier delivery but the first counts as a run.
    pub(crate) async fn unreturned(&self) -> u32 {
        let deliveries = u32::try_from(self.request.earlier_deliveries).unwrap_or(u32::MAX);
        if deliveries == 0 {
            return 0;
        }
        let (began, wait) = (Instant::now(), self.worker.timing.record_wait);
        loop {
            match self.declare().await {
                Ok(entries) if entries == 0 || began.elapsed() >= wait => {
                    return entries.min(deliveries);
                }
                Ok(_) => {}
                Err(error) if began.elapsed() >= wait => {
                    let (id, queue) = (self.request.job_key.id, &self.queue);
                    tracing::warn!(request = %id, %queue, %error, "the record of a request's runs cannot be read, its deliveries count: allow workers to configure and read `nsbridge.<model>.runs.*`");
                    return deliveries - 1;
                }
                Err(_) => {}
            }
            sleep(self.worker.timing.record_poll).await;
        }
    }

    /// Waits until the record has no entries. Then the workers of all earlier runs live.
    pub(crate) async fn cleared(&self) {
        loop {
            sleep(self.worker.timing.suspect_poll).await;
            if matches!(self.declare().await, Ok(0)) {
                return;
            }
        }
    }

    /// Enters the run of a redelivered message, and returns when the broker has confirmed the entry.
    /// Does nothing if the run has an entry.
    ///
    /// A first delivery needs no entry: if its run ends its worker, the next run is entered. A
    /// record that cannot be written does not keep the request from running.
    pub(crate) async fn enter(&self) {
        let mut entries = self.entries.lock().await;
        if *entries > 0 {
            return;
        }
        let (began, mut pauses) = (Instant::now(), self.worker.timing.record_retry.pauses());
        while let Err(error) = self.try_enter(&mut entries).await {
            if began.elapsed() >= self.worker.timing.record_enter_limit {
                let (id, queue) = (self.request.job_key.id, &self.queue);
                tracing::warn!(request = %id, %queue, %error, "a run begins without an entry in its request's record");
                return;
            }
            sleep(pauses.next(random())).await;
        }
    }

    /// Marks the handler as returned, so that the run does not count any more.
    pub(crate) fn returned(&self) {
        self.returned.store(true, Ordering::Relaxed);
    }

    /// Strikes the run as soon as the broker can be reached, because its worker lives.
    pub(crate) async fn withdraw(&self) {
        let mut pauses = self.worker.timing.record_retry.pauses();
        while let Err(error) = self.strike().await {
            tracing::debug!(queue = %self.queue, %error, "a run could not be struck, trying again");
            sleep(pauses.next(random())).await;
        }
    }

    /// Closes the run's share: strikes a run that returned, and deletes the record of a request
    /// that is `over`. After a failure the entry remains and counts.
    pub(crate) async fn close(&self, over: bool) {
        let closing = async {
            if over && (self.request.earlier_deliveries > 0 || *self.entries.lock().await > 0) {
                let connection = self.worker.consume.try_connection().await?;
                connection.delete_run_record(&self.queue).await
            } else if self.returned.load(Ordering::Relaxed) {
                self.strike().await
            } else {
                Ok(())
            }
        };
        let failure = match timeout(self.worker.timing.record_close_limit, closing).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let (id, queue) = (self.request.job_key.id, &self.queue);
        tracing::warn!(request = %id, %queue, error = failure, "a run stays in its request's record");
    }

    async fn declare(&self) -> Result<u32> {
        self.worker.consume.try_connection().await?.declare_run_record(&self.queue).await
    }

    async fn try_enter(&self, entries: &mut u32) -> Result<()> {
        let mut entry = Message::new(Vec::new());
        entry.properties.persistent = true;
        entry.properties.message_id = Some(self.request.job_key.id.to_string());
        let publisher = self.worker.publish.take().await?;
        // Counted before the broker answers, because without an answer the entry may exist.
        *entries += 1;
        let confirmed = publisher.publish("", &self.queue, entry).await?.await?;
        self.worker.publish.give_back(publisher);
        if confirmed == Confirmation::Ack {
            return Ok(());
        }
        *entries -= 1;
        // Another worker deleted the queue in between, or it was never declared.
        self.declare().await?;
        Err(Error::NoQueue { queue: self.queue.clone() })
    }

    async fn strike(&self) -> Result<()> {
        let mut entries = self.entries.lock().await;
        while *entries > 0 {
            let connection = self.worker.consume.try_connection().await?;
            connection.strike_run_record(&self.queue).await?;
            *entries -= 1;
        }
        Ok(())
    }
}
