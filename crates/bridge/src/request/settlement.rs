//! Settlement of deliveries: ack or requeue.
//!
//! Nothing is rejected (`basic.reject`): a retry or a dead letter is a copy that is published and
//! confirmed, after which the original is acked.
//!
//! | delivery | decided in | settled by |
//! |---|---|---|
//! | had a run | [`Disposition::of`], or `lifecycle.rs` if it had no call | [`finish`] |
//! | must not run | `admission::open` | [`refuse`], [`defer`] |
//! | near the broker's delivery limit | [`renew`] | [`renew`] |
//! | duplicate of a job that runs or is done here | `InFlight::register` | [`settle`] |
//! | dropped: drain before the start, lost channel, panic | `Drop` of `Delivery` | requeued |

use std::time::Duration;

use nsbridge_protocol::topology::{RENEW_DELIVERIES, RETRY_TIERS};
use nsbridge_protocol::{ErrorCode, Priority, Revision};
use nsbridge_queue::Error;
use tokio::time::sleep;

use crate::observability::metrics::Outcome;
use crate::request::admission::{AdmittedRequest, Again, Deferred, Rejection, epoch, remaining};
use crate::request::context::WorkerContext;
use crate::request::delivery_trace::DeliveryTrace;
use crate::request::disposition::{Disposition, WorkerAction};
use crate::request::in_flight::{JobIdentity, OwnedDelivery};
use crate::request::republish::{self, Retry};

/// Way in which a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Ack,
    Requeue,
}

/// Number of tries of a request whose revision no worker serves: after 1 s and after 10 s.
const UNSERVED_TRIES: usize = 2;

/// Maximum number of renewed copies of a request. After these the broker's delivery limit applies.
const MOST_RENEWED: u16 = 8;

/// Acks or requeues the deliveries of a run that has ended, as its disposition says.
///
/// Returns the outcome of the request if the settlement decides it (a retry or a dead letter), else
/// `None`.
///
/// Only deliveries that are still ours are settled (rule R11). A message that the broker took back
/// is redelivered, here or elsewhere, and meets a job that is done or a client that has its reply.
pub(crate) async fn finish(
    worker: &WorkerContext,
    deliveries: Vec<OwnedDelivery>,
    disposition: &Disposition,
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> Option<Outcome> {
    let ours: Vec<OwnedDelivery> = deliveries.into_iter().filter(OwnedDelivery::is_held).collect();
    let Some(first) = ours.first() else {
        tracing::info!(request = %request.job_key.id, "a job ended without a delivery to settle");
        return None;
    };
    let (settlement, outcome) = match disposition {
        Disposition::Completed(_) | Disposition::Failed(_) | Disposition::Undelivered(_) => {
            (Settlement::Ack, None)
        }
        Disposition::HandedOff => (hand_over(worker, &ours, request, trace).await, None),
        Disposition::Broken | Disposition::Unsealed => (Settlement::Requeue, None),
        Disposition::RetryLater => match retry_later(worker, first, request, trace).await {
            Ok(outcome) => (Settlement::Ack, Some(outcome)),
            Err(error) => {
                tracing::warn!(request = %request.job_key.id, %error, "no retry, giving it back");
                (Settlement::Requeue, Some(Outcome::Moved))
            }
        },
        Disposition::Poison(runs) => match poison(worker, first, *runs, request, trace).await {
            Ok(outcome) => (Settlement::Ack, Some(outcome)),
            Err(error) => {
                tracing::warn!(request = %request.job_key.id, %error, "no dead letter, giving it back");
                (Settlement::Requeue, Some(Outcome::Moved))
            }
        },
    };
    for owned in ours {
        settle(owned, settlement, request, trace).await;
    }
    outcome
}

/// Returns the settlement of a request that another worker continues. A requeue returns it to the
/// head of its queue, and counts as a delivery. Preemptions have no limit, so a bulk request that
/// nears the broker's delivery limit is published as a new copy. Its count begins at 0, because its
/// run has ended in an orderly way.
async fn hand_over(
    worker: &WorkerContext,
    ours: &[OwnedDelivery],
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> Settlement {
    let (pool, model) = (&worker.publish, &worker.model);
    let near = |owned: &&OwnedDelivery| {
        owned.priority == Priority::Bulk
            && owned.delivery.earlier_deliveries + 1 >= RENEW_DELIVERIES
    };
    let Some(owned) = ours.iter().find(near).filter(|_| !pool.is_blocked()) else {
        return Settlement::Requeue;
    };
    match republish::renew(pool, model, owned, request.deadline, trace).await {
        Ok(true) => Settlement::Ack,
        Ok(false) => Settlement::Requeue,
        Err(error) => {
            let id = request.job_key.id;
            tracing::warn!(request = %id, %error, "a message could not be renewed");
            Settlement::Requeue
        }
    }
}

/// Publishes a copy that is delivered later, or dead-letters the request if it has no tries left.
async fn retry_later(
    worker: &WorkerContext,
    owned: &OwnedDelivery,
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> nsbridge_queue::Result<Outcome> {
    let (pool, model) = (&worker.publish, &worker.model);
    match republish::retry(pool, model, owned, request.deadline, trace).await? {
        Retry::Waits => return Ok(Outcome::Retried),
        Retry::Over => {}
        // The request has tries left. It must not become a dead letter because others fill the
        // queue.
        Retry::Full => return Err(retry_queue_full(worker).await),
    }
    let message = "the model failed on this request, every time it was tried".to_owned();
    fail_for_good(worker, owned, (ErrorCode::ModelFailed, message), request, trace).await
}

/// Dead-letters a request that ends its workers (rule R1).
async fn poison(
    worker: &WorkerContext,
    owned: &OwnedDelivery,
    runs: u32,
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> nsbridge_queue::Result<Outcome> {
    let code = ErrorCode::Poison;
    let message = format!("{runs} workers ended while they ran it");
    let outcome = fail_for_good(worker, owned, (code, message), request, trace).await?;
    let (id, deliveries) = (request.job_key.id, request.earlier_deliveries);
    tracing::warn!(request = %id, %code, runs, deliveries, "a request was dead-lettered");
    Ok(outcome)
}

/// Sends the client of an opened request its final error, and publishes the dead letter.
async fn fail_for_good(
    worker: &WorkerContext,
    owned: &OwnedDelivery,
    (code, message): (ErrorCode, String),
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> nsbridge_queue::Result<Outcome> {
    let reply = Some(request.reply());
    let rejection = Rejection { code, message, reply, again: None };
    replace_refused(worker, owned, &rejection, trace).await.map(|_| Outcome::Failed(code))
}

/// Publishes a copy in place of a message that has nearly reached the broker's delivery limit.
/// Returns `None` if that was done and the message is settled. A job that runs or is done here
/// keeps its message.
///
/// Recorded runs still count afterwards, because the record belongs to the job and not to the
/// message, but only up to the deliveries of the new message (`RunRecord::unreturned`).
pub(crate) async fn renew(
    worker: &WorkerContext,
    job: &JobIdentity,
    owned: OwnedDelivery,
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> Option<OwnedDelivery> {
    let (pool, model, delivery) = (&worker.publish, &worker.model, &owned.delivery);
    let due =
        request.earlier_deliveries >= RENEW_DELIVERIES && epoch(&delivery.message) < MOST_RENEWED;
    if !due || worker.in_flight.knows(job) || pool.is_blocked() {
        return Some(owned);
    }
    let renewed = tokio::select! {
        renewed = republish::renew(pool, model, &owned, request.deadline, trace) => renewed,
        () = owned.gone.cancelled() => return Some(owned),
        _ = worker.drain.begun() => return Some(owned),
    };
    match renewed {
        Ok(true) => {}
        Ok(false) => return Some(owned),
        Err(error) => {
            tracing::warn!(request = %request.job_key.id, %error, "a message could not be renewed");
            return Some(owned);
        }
    }
    let (id, deliveries) = (request.job_key.id, request.earlier_deliveries);
    tracing::info!(request = %id, deliveries, "a copy was published in place of a request's message");
    settle(owned, Settlement::Ack, request, trace).await;
    trace.ended(Outcome::Moved);
    None
}

/// Refuses a request (rules R2 and R3): notifies its client, publishes a copy for another try where
/// one can help, else the dead letter, and acks.
pub(crate) async fn refuse(
    worker: &WorkerContext,
    owned: OwnedDelivery,
    rejection: Rejection,
    trace: &DeliveryTrace,
) -> WorkerAction {
    let delivery = &owned.delivery;
    let (code, deliveries) = (rejection.code, delivery.earlier_deliveries);
    let bytes = delivery.oversized.unwrap_or(delivery.message.body.len() as u64);
    // From the request's own header, which may be unverified.
    let request = rejection.reply.as_ref().map(|reply| tracing::field::display(reply.request));
    let again = match replace_refused(worker, &owned, &rejection, trace).await {
        Ok(again) => again,
        Err(error) => {
            tracing::warn!(request, %code, %error, "a request could not be dead-lettered, giving it back");
            let _ = owned.delivery.requeue().await;
            trace.ended(Outcome::Moved);
            return WorkerAction::Pause(worker.timing.dead_letter_pause);
        }
    };
    trace.ended(if again { Outcome::Retried } else { Outcome::Failed(code) });
    let what =
        if again { "a request waits for another try" } else { "a request was dead-lettered" };
    tracing::warn!(request, %code, deliveries, bytes, "{what}");
    if let Err(error) = owned.delivery.ack().await {
        tracing::warn!(%error, "a refused request will come back");
    }
    WorkerAction::Continue
}

/// Publishes the replacement of a refused delivery. Returns true if it is a copy for another try,
/// false if it is the dead letter.
async fn replace_refused(
    worker: &WorkerContext,
    owned: &OwnedDelivery,
    rejection: &Rejection,
    trace: &DeliveryTrace,
) -> nsbridge_queue::Result<bool> {
    let (pool, model) = (&worker.publish, &worker.model);
    if let Some(again) = &rejection.again
        && retry_refused(worker, owned, again, rejection, trace).await?
    {
        return Ok(true);
    }
    let from =
        republish::RefusingWorker { worker: &worker.name, revision: worker.revision.as_ref() };
    republish::notify_client(pool, &from, rejection).await?;
    republish::dead_letter(pool, model, owned, rejection.code, trace).await.map(|()| false)
}

/// Publishes a copy for another try, if one can help, and sends the client the reason (rules R3 and
/// R12).
///
/// The request waits for a pinned revision that a worker serves now until its deadline. For a
/// revision that no worker serves it waits only for the shorter delays, in which such a worker may
/// start or come back.
async fn retry_refused(
    worker: &WorkerContext,
    owned: &OwnedDelivery,
    again: &Again,
    rejection: &Rejection,
    trace: &DeliveryTrace,
) -> nsbridge_queue::Result<bool> {
    let (pool, model, until) = (&worker.publish, &worker.model, again.until);
    let served = match &again.pinned {
        Some(revision) => is_served(worker, revision).await,
        None => None,
    };
    if served == Some(true) {
        let first = epoch(&owned.delivery.message) == 0;
        let pause = if first {
            Duration::ZERO
        } else {
            worker.timing.served_revision_pause.min(remaining(until) / 4)
        };
        let waits = republish::wait(pool, model, owned, until, pause, trace).await?;
        if waits {
            republish::hint_client(pool, rejection).await?;
        }
        return Ok(waits);
    }
    let tries = if served == Some(false) { UNSERVED_TRIES } else { RETRY_TIERS.len() };
    if !republish::may_retry(owned, until, tries) {
        return Ok(false);
    }
    republish::hint_client(pool, rejection).await?;
    match republish::retry(pool, model, owned, until, trace).await? {
        Retry::Waits => Ok(true),
        Retry::Over => Ok(false),
        Retry::Full if again.pinned.is_some() => Err(retry_queue_full(worker).await),
        // Nothing of this request is verified. Requeued, it would be redelivered at once, and such
        // requests could hold up those that can be opened. A dead letter holds up nothing.
        Retry::Full => Ok(false),
    }
}

/// Waits here instead of in the full retry queue, and returns the error. Requeued without the wait,
/// the request would be redelivered at once until it reached the broker's delivery limit.
async fn retry_queue_full(worker: &WorkerContext) -> Error {
    tokio::select! {
        () = sleep(worker.timing.full_retry_queue_pause) => {}
        _ = worker.drain.begun() => {}
    }
    Error::Lost { reason: "its retry queue is full".to_owned() }
}

/// Returns true if a worker of this revision exists; `None` if the broker could not be queried.
async fn is_served(worker: &WorkerContext, revision: &Revision) -> Option<bool> {
    let asked = republish::is_served(&worker.publish, &worker.model, revision).await;
    asked
        .inspect_err(|error| {
            tracing::warn!(%revision, %error, "cannot ask for workers of a revision: allow workers to write to `nsbridge.control`");
        })
        .ok()
}

/// Puts a request off while the key service is busy (rule R3). The worker pauses and the request
/// waits as a copy, because a requeued message would be redelivered at once.
pub(crate) async fn defer(
    worker: &WorkerContext,
    owned: OwnedDelivery,
    deferred: &Deferred,
    trace: &DeliveryTrace,
) -> WorkerAction {
    let pause = worker.intake.back_off();
    let (error, rest_s) = (&deferred.error, pause.as_secs_f64());
    tracing::warn!(%error, rest_s, "taking nothing until keys can be had");
    trace.metrics().key_pause();
    let (pool, model) = (&worker.publish, &worker.model);
    let copied = match deferred.until {
        Some(until) => republish::wait(pool, model, &owned, until, pause, trace).await,
        None => Ok(false),
    };
    let settled = match copied {
        Ok(true) => owned.delivery.ack().await,
        Ok(false) => owned.delivery.requeue().await,
        Err(error) => {
            tracing::warn!(%error, "a request could not be put off, giving it back");
            owned.delivery.requeue().await
        }
    };
    if let Err(error) = settled {
        tracing::warn!(%error, "a request that was put off will come back");
    }
    trace.ended(Outcome::Moved);
    WorkerAction::Continue
}

/// Acks or requeues a delivery. An ack of a delivery that the broker has taken back is not a success:
/// it is counted and logged, and the message comes back.
pub(crate) async fn settle(
    owned: OwnedDelivery,
    settlement: Settlement,
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) {
    let settled = match settlement {
        Settlement::Ack => owned.delivery.ack().await,
        Settlement::Requeue => owned.delivery.requeue().await,
    };
    match settled {
        Ok(true) => {}
        Ok(false) => {
            trace.metrics().stale_ack();
            tracing::warn!(request = %request.job_key.id, "the delivery was not ours any more");
        }
        Err(error) => {
            tracing::warn!(request = %request.job_key.id, %error, "the delivery will come back");
        }
    }
}
