//! The record of a request's runs: the evidence for rule R1.
//!
//! The broker counts how often a message came back, not why. A worker that dies cannot tell either,
//! so each run of a redelivered request is entered before it begins, and struck when the handler
//! has returned. What is left are runs whose worker died. The record is a queue of its own in the
//! broker, one message for each entry (docs/decisions/run-record.md).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nsbridge_protocol::topology::run_record;
use nsbridge_queue::{Confirmed, Error, Message, Result};
use tokio::time::{Instant, sleep, timeout};

use crate::intake::Accepted;
use crate::worker::Shared;

/// Time in which a worker that only lost its connection is back to strike its runs.
const BACK_WITHIN: Duration = Duration::from_secs(1);

/// Time between two looks at a record.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time between two tries to write to a record.
const PAUSE: Duration = Duration::from_millis(100);

/// Time that striking may take: the request's message waits for it.
const STRIKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The part of one run in the record of its request.
pub(crate) struct RunRecord<'a> {
    shared: &'a Shared,
    queue: String,
    request: &'a Accepted,
    /// Whether the record may have an entry of this run.
    entered: AtomicBool,
    /// Whether the handler has returned.
    returned: AtomicBool,
}

impl<'a> RunRecord<'a> {
    pub(crate) fn of(shared: &'a Shared, request: &'a Accepted) -> Self {
        let number = request.reply_root.run_record(&request.reply_to);
        Self {
            shared,
            queue: run_record(&shared.model, number),
            request,
            entered: AtomicBool::new(false),
            returned: AtomicBool::new(false),
        }
    }

    /// Returns how many runs of a redelivered request began and did not return, as far as can be
    /// known. Waits a moment for workers that live, and were only cut off, to strike theirs.
    ///
    /// Where the record cannot be read, each earlier delivery but the first counts as a run.
    pub(crate) async fn unreturned(&self) -> u32 {
        if !self.request.redelivered {
            return 0;
        }
        let began = Instant::now();
        loop {
            match self.declare().await {
                Ok(entries) if entries == 0 || began.elapsed() >= BACK_WITHIN => return entries,
                Ok(_) => sleep(LOOK_EVERY).await,
                Err(error) if began.elapsed() >= BACK_WITHIN => {
                    let (id, queue) = (self.request.job.id, &self.queue);
                    tracing::warn!(request = %id, %queue, %error, "the record of a request's runs cannot be read, its deliveries count: allow workers to configure and read `nsbridge.<model>.runs.*`");
                    let runs = self.request.deliveries.saturating_sub(1);
                    return u32::try_from(runs).unwrap_or(u32::MAX);
                }
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Enters the run; on return the broker has confirmed the entry. Only redelivered requests
    /// have a record: a first run that ends its worker is followed by one that is entered.
    pub(crate) async fn enter(&self) {
        if self.entered.swap(true, Ordering::Relaxed) {
            return;
        }
        while let Err(error) = self.try_enter().await {
            let (id, queue) = (self.request.job.id, &self.queue);
            tracing::warn!(request = %id, %queue, %error, "a run could not be recorded, trying again");
            sleep(PAUSE).await;
        }
    }

    /// The handler has returned: the run does not count any more.
    pub(crate) fn returned(&self) {
        self.returned.store(true, Ordering::Relaxed);
    }

    /// Strikes the run as soon as the broker can be reached: the worker lives.
    pub(crate) async fn withdraw(&self) {
        while let Err(error) = self.try_strike().await {
            tracing::debug!(queue = %self.queue, %error, "a run could not be struck, trying again");
            sleep(PAUSE).await;
        }
    }

    /// Closes the run's part: strikes a run that returned, and deletes the record of a request that
    /// is `over`. A failure leaves an entry that counts.
    pub(crate) async fn close(&self, over: bool) {
        let entered = self.entered.load(Ordering::Relaxed);
        let closing = async {
            if over && (entered || self.request.redelivered) {
                let connection = self.shared.consume.try_connection().await?;
                connection.delete_run_record(&self.queue).await
            } else if self.returned.load(Ordering::Relaxed) {
                self.try_strike().await
            } else {
                Ok(())
            }
        };
        let failure = match timeout(STRIKE_TIMEOUT, closing).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let (id, queue) = (self.request.job.id, &self.queue);
        tracing::warn!(request = %id, %queue, error = failure, "a run stays in its request's record");
    }

    async fn declare(&self) -> Result<u32> {
        self.shared.consume.try_connection().await?.declare_run_record(&self.queue).await
    }

    async fn try_enter(&self) -> Result<()> {
        let mut entry = Message::new(Vec::new());
        entry.properties.persistent = true;
        entry.properties.message_id = Some(self.request.job.id.to_string());
        let publisher = self.shared.publish.take().await?;
        let confirmed = publisher.publish("", &self.queue, entry.clone()).await?.await?;
        self.shared.publish.give_back(publisher);
        if confirmed == Confirmed::Taken {
            return Ok(());
        }
        // Struck by another worker in between, or never declared.
        self.declare().await?;
        Err(Error::NoQueue { queue: self.queue.clone() })
    }

    async fn try_strike(&self) -> Result<()> {
        if !self.entered.load(Ordering::Relaxed) {
            return Ok(());
        }
        let connection = self.shared.consume.try_connection().await?;
        connection.strike_run_record(&self.queue).await?;
        self.entered.store(false, Ordering::Relaxed);
        Ok(())
    }
}
