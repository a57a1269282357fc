//! Subscription to the bulk queue, which takes no more deliveries than slots are free.

use nsbridge_protocol::Priority;
use nsbridge_queue::{Consumer, Delivery, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Link;
use crate::request::in_flight::{Credit, OwnedDelivery};

/// Subscription to the model's bulk queue, on a channel of its own.
///
/// The channel of a dying connection hands nothing to that of the interactive requests, because
/// their queues differ. The prefetch is the number of slots that no request needs. A larger one would
/// keep requests here that other workers could run, and a preempted request would return to the
/// worker that gave it up.
pub(super) struct BulkSubscriber(pub(super) Link);

/// Prefetch of the running subscription, and the deliveries that count towards it.
struct Flow {
    prefetch: usize,
    unsettled: watch::Sender<usize>,
}

impl Flow {
    /// Creates the flow of a paused subscription.
    fn paused() -> Self {
        Self { prefetch: 0, unsettled: watch::Sender::new(0) }
    }

    /// Returns the number of deliveries that the broker may still send.
    fn open(&self) -> usize {
        self.prefetch.saturating_sub(*self.unsettled.borrow())
    }
}

/// Least number of free slots since a moment.
struct Lasting {
    since: Instant,
    least: isize,
}

impl Lasting {
    /// Begins now, with this many free slots.
    fn from(free: isize) -> Self {
        Self { since: Instant::now(), least: free }
    }
}

impl BulkSubscriber {
    pub(super) async fn run(self) {
        let taking = async {
            let mut pauses = self.0.worker.timing.session_retry.pauses();
            loop {
                self.take(self.0.subscribe(Priority::Bulk, &mut pauses).await).await;
                self.0.restore(&mut pauses).await;
            }
        };
        self.0.until_over(taking).await;
    }

    /// Takes deliveries until the channel is gone.
    async fn take(&self, mut consumer: Consumer) {
        let gone = self.0.lost.child_token();
        if let Err(error) = self.flow(&mut consumer, &gone).await {
            tracing::warn!(%error, "the bulk subscription ended");
        }
        gone.cancel();
    }

    /// Follows the free slots: less of them pause the subscription at once, more of them enlarge it
    /// once they have lasted.
    async fn flow(&self, consumer: &mut Consumer, gone: &CancellationToken) -> Result<()> {
        let (linger, publishing) = (self.0.worker.timing.bulk_linger, &self.0.worker.publishing);
        let mut room = self.0.worker.slots.room();
        let mut flow = Flow::paused();
        let mut lasting = Lasting::from(*room.borrow_and_update());
        loop {
            let mut unsettled = flow.unsettled.subscribe();
            let publishes = publishing.works();
            let room_now = *room.borrow_and_update();
            let (free, open) = (if publishes { room_now } else { room_now.min(0) }, flow.open());
            lasting.least = lasting.least.min(free);
            let is_too_much = free < 0 || free.unsigned_abs() < open || !publishes;
            if flow.prefetch > 0 && is_too_much {
                self.pause(consumer, &mut flow, gone).await?;
                continue;
            }
            tokio::select! {
                biased;
                Ok(()) = room.changed() => {}
                Ok(()) = unsettled.changed() => {}
                () = publishing.changed(publishes) => {}
                next = consumer.recv() => {
                    let Some(delivery) = next else { return Ok(()) };
                    let credit = Credit::of(&flow.unsettled);
                    self.start(delivery, gone, Some(credit));
                }
                () = sleep_until(lasting.since + linger), if free > open.cast_signed() => {
                    if lasting.least > open.cast_signed() {
                        self.pause(consumer, &mut flow, gone).await?;
                        // Deliveries that were in transit have taken slots meanwhile.
                        let free = lasting.least.min(*room.borrow_and_update());
                        flow = self.resume(consumer, free).await?;
                    }
                    lasting = Lasting::from(*room.borrow_and_update());
                }
            }
        }
    }

    /// Resumes the subscription for this many deliveries, if there are any.
    async fn resume(&self, consumer: &Consumer, free: isize) -> Result<Flow> {
        let Some(prefetch) = u16::try_from(free).ok().filter(|free| *free > 0) else {
            return Ok(Flow::paused());
        };
        consumer.resume_with(prefetch).await?;
        Ok(Flow { prefetch: prefetch.into(), ..Flow::paused() })
    }

    /// Pauses the subscription. Deliveries that were in transit wait for a slot.
    async fn pause(
        &self,
        consumer: &mut Consumer,
        flow: &mut Flow,
        gone: &CancellationToken,
    ) -> Result<()> {
        consumer.pause().await?;
        while let Some(delivery) = consumer.try_recv() {
            self.start(delivery, gone, None);
        }
        *flow = Flow::paused();
        Ok(())
    }

    fn start(&self, delivery: Delivery, gone: &CancellationToken, credit: Option<Credit>) {
        let (priority, gone) = (Priority::Bulk, gone.clone());
        self.0.start(OwnedDelivery { delivery, priority, gone, _credit: credit });
    }
}
