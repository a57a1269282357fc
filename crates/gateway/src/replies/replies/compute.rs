//! Computation of a reply: its request is published, and its pieces are read and noted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use nsbridge_client::{Reply, Request, ResumePoint, TraceParent};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::settle::{self, end, settle};
use super::{Entry, Replies, replicas};
use crate::callers::access::Reservation;
use crate::replies::reply_log::{Change, Ending, RawPiece};
use crate::replies::store::Record;
use crate::text::error::{ApiError, Result};

impl Replies {
    /// Submits the request of an entry, and reads its reply, in a task: a client that leaves in the
    /// meantime does not leave a half of it behind. Returns when the broker has the request.
    pub(super) async fn submit(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        trace: Option<TraceParent>,
        reservation: Option<Reservation>,
        patience: Option<Duration>,
    ) -> Result<()> {
        let (told, submitted) = oneshot::channel();
        let (replies, entry) = (self.clone(), entry.clone());
        self.driving.spawn(async move {
            let (began, meter) =
                (Instant::now(), replies.metrics.reply(&entry.record.kind, &entry.record.model));
            let published = tokio::select! {
                published = replies.publish(&entry, trace, patience) => published,
                () = entry.log.cancelled() => Err(ApiError::cancelled()),
            };
            let tokens = match published {
                Ok(reply) => {
                    // The caller may be gone.
                    let _ = told.send(Ok(()));
                    let note = |change: Change<'_>| {
                        match &change {
                            Change::Piece { .. } => meter.piece(),
                            Change::Restarted { .. } => replies.metrics.restarted(),
                            Change::Ended(_) => {}
                        }
                        replies.note(&entry, &change);
                    };
                    entry.log.drive(reply, note).await;
                    let settled = reservation.map(|reservation| settle(&entry, reservation));
                    settled.inspect(|tokens| replies.metrics.settled(*tokens)).unwrap_or_default()
                }
                Err(error) => {
                    replies.end(&entry, &Ending::Failed(error.clone()));
                    drop(reservation);
                    let _ = told.send(Err(error));
                    0
                }
            };
            meter.end(end(&entry));
            settle::told(&entry, &replies.metrics, began.into_std(), tokens);
        });
        submitted.await.unwrap_or_else(|_| Err(ApiError::internal("the reply was not begun")))
    }

    /// Publishes the request of an entry.
    async fn publish(
        &self,
        entry: &Entry,
        trace: Option<TraceParent>,
        patience: Option<Duration>,
    ) -> Result<Reply<RawPiece>> {
        let Record { model, tenant, input, id, seed, created_at, expires_at, .. } = &entry.record;
        let mut request = Request::new(model.clone(), tenant.clone()).input(input).id(*id);
        request.trace = trace;
        let request = entry.record.class.set(request);
        let (pieces, fingerprint) = entry.log.pieces();
        let clients = entry.record.clients;
        let published = async {
            if clients == 0 {
                let left = expires_at.duration_since(SystemTime::now()).unwrap_or_default();
                let request = request.seed(*seed).timeout(left);
                return self.client.submit::<RawPiece>(request).await;
            }
            self.metrics.reattached();
            let bytes = |piece: &Arc<RawPiece>| piece.json.get().as_bytes().to_vec();
            let pieces = pieces.iter().map(bytes).collect();
            let point = ResumePoint::new(*id, *seed, *created_at, *expires_at)
                .pieces(pieces, fingerprint)
                .clients(clients);
            self.client.reattach::<RawPiece>(request, point).await
        };
        Ok(match patience {
            Some(patience) => {
                timeout(patience, published).await.map_err(|_| ApiError::no_broker())??
            }
            None => published.await?,
        })
    }

    pub(super) fn end(&self, entry: &Entry, ending: &Ending) {
        entry.log.end(ending, |change| self.note(entry, &change));
    }

    /// Notes a change of a reply in the stores.
    fn note(&self, entry: &Entry, change: &Change<'_>) {
        if matches!(change, Change::Ended(_)) {
            *entry.ended.lock() = Some(Instant::now());
        }
        if entry.removed.load(Ordering::SeqCst) {
            return;
        }
        // Another process, or a client that comes back, continues a reply that was interrupted.
        if let Some(store) = self.store.as_ref().filter(|_| !entry.is_interrupted_by(change)) {
            store.note(entry.record.id, change);
        }
        if let Some(shared) = self.shared.as_ref().filter(|_| !entry.record.of_batch) {
            replicas::note(shared, entry, change);
        }
    }
}
