//! Computation of a reply: its request is published, and its pieces are read and noted.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_client::{Reply, Request, ResumePoint, TraceParent};
use nsbridge_gateway_access::Reservation;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::settle::{self, settle};
use super::{Entry, Replies};
use crate::failure::{Failure, Result};
use crate::record::Record;
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Change, RawPiece};

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
                (Instant::now(), replies.observer.begin(&entry.record.kind, &entry.record.model));
            // In a box of its own: 4 KiB that a task would keep for as long as its reply is computed.
            let publishing = Box::pin(replies.publish(&entry, trace, patience));
            let published = tokio::select! {
                published = publishing => published,
                () = entry.log.cancelled() => Err(Failure::cancelled()),
            };
            let mut was_given_up = false;
            let tokens = match published {
                Ok(mut reply) => {
                    // The caller may be gone.
                    let _ = told.send(Ok(()));
                    let (id, model) = (entry.record.id, &entry.record.model);
                    let (until, notice) =
                        (|| entry.log.waits_until(), || entry.log.tell_starting());
                    let given_up = replies.workers.given_up(id, model, until, notice);
                    let mut given_up = pin!(given_up);
                    loop {
                        let change = tokio::select! {
                            change = entry.log.receive(&mut reply) => change,
                            failure = &mut given_up => {
                                was_given_up = true;
                                reply.cancel();
                                entry.log.end_with(ReplyEnd::Failed(failure))
                            }
                        };
                        match &change {
                            Change::Piece { .. } => meter.piece(),
                            Change::Restarted { .. } => replies.observer.restarted(),
                            Change::Interrupted | Change::Ended(_) => {}
                        }
                        replies.note(&entry, &change);
                        if change.is_last() {
                            break;
                        }
                    }
                    let settled = reservation.map(|reservation| settle(&entry, reservation));
                    settled.inspect(|tokens| replies.observer.settled(*tokens)).unwrap_or_default()
                }
                Err(error) => {
                    replies.end(&entry, ReplyEnd::Failed(error.clone()));
                    drop(reservation);
                    let _ = told.send(Err(error));
                    0
                }
            };
            meter.end(settle::outcome(&entry));
            settle::log_end(&entry, replies.observer.as_ref(), began.into_std(), tokens);
            if was_given_up {
                // A retry must be a new request. A continued one could not cancel the copy of this one,
                // which waits in the queue: it does not know the reply root.
                drop(replies.remove(&entry));
            }
        });
        submitted.await.unwrap_or_else(|_| Err(Failure::internal("the reply was not begun")))
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
        let request = request.priority(entry.record.class);
        let (pieces, fingerprint) = entry.log.pieces();
        let clients = entry.record.clients;
        let published = async {
            if clients == 0 {
                let left = expires_at.duration_since(SystemTime::now()).unwrap_or_default();
                let request = request.seed(*seed).timeout(left);
                return self.client.submit::<RawPiece>(request).await;
            }
            self.observer.reattached();
            let bytes = |piece: &Arc<RawPiece>| piece.json.get().as_bytes().to_vec();
            let pieces = pieces.iter().map(bytes).collect();
            let point = ResumePoint::new(*id, *seed, *created_at, *expires_at)
                .pieces(pieces, fingerprint)
                .clients(clients);
            self.client.reattach::<RawPiece>(request, point).await
        };
        Ok(match patience {
            Some(patience) => {
                timeout(patience, published).await.map_err(|_| Failure::no_broker())??
            }
            None => published.await?,
        })
    }

    pub(super) fn end(&self, entry: &Entry, end: ReplyEnd) {
        let change = entry.log.end_with(end);
        self.note(entry, &change);
    }

    /// Notes a change of a reply in the stores, and then tells its readers.
    fn note(&self, entry: &Entry, change: &Change) {
        if change.is_last() {
            *entry.ended.lock() = Some(Instant::now());
        }
        let is_removed = entry.removal.lock();
        if !*is_removed {
            self.stores().for_each(|store| store.note(&entry.record, &entry.log, change));
        }
        drop(is_removed);
        entry.log.publish();
    }
}
