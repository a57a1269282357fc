//! How a delivery leaves this worker: acked, given back, put off, buried.

use std::time::Duration;

use nsbridge_protocol::ErrorCode;
use nsbridge_queue::Delivery;

use crate::dead;
use crate::intake::{Accepted, Later, Rejected};
use crate::metrics::Outcome;
use crate::registry::Held;
use crate::verdict::{After, Settlement};
use crate::visit::Visit;
use crate::worker::Shared;

/// How long a worker rests when it cannot seal.
pub(crate) const SEAL_PAUSE: Duration = Duration::from_secs(5);

/// Settles what a run was given for, after its last frame was confirmed.
///
/// Tells how the request ended, where that was not known before.
///
/// Rule R11: only what is still ours is settled. A copy that the broker took away comes back, here
/// or elsewhere, and meets a job that is done or a client that has its reply.
pub(crate) async fn finish(
    shared: &Shared,
    holds: Vec<Held>,
    settlement: Settlement,
    request: &Accepted,
    visit: &Visit,
) -> Option<Outcome> {
    let ours: Vec<Held> = holds.into_iter().filter(Held::is_ours).collect();
    let Some(first) = ours.first() else {
        tracing::info!(request = %request.job.id, "a job ended without a delivery to settle");
        return None;
    };
    let (ack, outcome) = match settlement {
        Settlement::Ack => (true, None),
        Settlement::Requeue => (false, None),
        Settlement::Retry => match try_later(shared, &first.delivery, request, visit).await {
            Ok(outcome) => (true, Some(outcome)),
            Err(error) => {
                tracing::warn!(request = %request.job.id, %error, "no retry, giving it back");
                (false, Some(Outcome::Moved))
            }
        },
    };
    for held in ours {
        settle(held, ack, request, visit).await;
    }
    outcome
}

/// Publishes a copy that comes back later; or buries the request if it failed as often as it may.
async fn try_later(
    shared: &Shared,
    delivery: &Delivery,
    request: &Accepted,
    visit: &Visit,
) -> nsbridge_queue::Result<Outcome> {
    if dead::retry(&shared.publish, &shared.model, delivery, request.deadline, visit).await? {
        return Ok(Outcome::Retried);
    }
    let code = ErrorCode::ModelFailed;
    let message = "the model failed on this request, every time it was tried".to_owned();
    let reply = Some(request.reply());
    let rejected = Rejected { code, message, reply, again_until: None };
    refused(shared, delivery, &rejected, visit).await.map(|_| Outcome::Failed(code))
}

/// Rules R1, R2 and R3: a word to the client, then another try where that can help, or the dead
/// letter; ack.
pub(crate) async fn refuse(
    shared: &Shared,
    delivery: Delivery,
    rejected: Rejected,
    visit: &Visit,
) -> After {
    let (code, deliveries) = (rejected.code, delivery.deliveries);
    let bytes = delivery.message.body.len();
    // As its own head says, which nobody may have verified.
    let request = rejected.reply.as_ref().map(|reply| tracing::field::display(reply.request));
    let again = match refused(shared, &delivery, &rejected, visit).await {
        Ok(again) => again,
        Err(error) => {
            tracing::warn!(request, %code, %error, "a request could not be dead-lettered, giving it back");
            let _ = delivery.requeue().await;
            visit.ended(Outcome::Moved);
            return After::Rest(Duration::from_secs(1));
        }
    };
    visit.ended(if again { Outcome::Retried } else { Outcome::Failed(code) });
    let what =
        if again { "a request waits for another try" } else { "a request was dead-lettered" };
    tracing::warn!(request, %code, deliveries, bytes, "{what}");
    if let Err(error) = delivery.ack().await {
        tracing::warn!(%error, "a refused request will come back");
    }
    After::Next
}

/// Publishes what takes the delivery's place; whether that is a copy to be tried again.
async fn refused(
    shared: &Shared,
    delivery: &Delivery,
    rejected: &Rejected,
    visit: &Visit,
) -> nsbridge_queue::Result<bool> {
    let (pool, model) = (&shared.publish, &shared.model);
    if let Some(until) = rejected.again_until
        && dead::may_retry(delivery, until)
    {
        dead::tell_why(pool, rejected).await?;
        if dead::retry(pool, model, delivery, until, visit).await? {
            return Ok(true);
        }
    }
    let from = dead::Sender { worker: &shared.name, revision: shared.revision.as_ref() };
    dead::tell(pool, &from, rejected).await?;
    dead::bury(pool, model, delivery, rejected.code, visit).await.map(|()| false)
}

/// Rule R3: the key service cannot answer. The worker rests, and the request comes back without
/// blame: as a copy, since each time that a delivery is given back counts towards its poison.
pub(crate) async fn put_off(
    shared: &Shared,
    delivery: Delivery,
    later: &Later,
    visit: &Visit,
) -> After {
    let pause = shared.rest.back_off();
    let (error, rest_s) = (&later.error, pause.as_secs_f64());
    tracing::warn!(%error, rest_s, "taking nothing until keys can be had");
    visit.metrics().key_pause();
    let (pool, model) = (&shared.publish, &shared.model);
    let copied = match later.until {
        Some(until) => dead::wait(pool, model, &delivery, until, pause, visit).await,
        None => Ok(false),
    };
    let settled = match copied {
        Ok(true) => delivery.ack().await,
        Ok(false) => delivery.requeue().await,
        Err(error) => {
            tracing::warn!(%error, "a request could not be put off, giving it back");
            delivery.requeue().await
        }
    };
    if let Err(error) = settled {
        tracing::warn!(%error, "a request that was put off will come back");
    }
    visit.ended(Outcome::Moved);
    After::Next
}

/// Acks a delivery, or gives it back.
pub(crate) async fn settle(held: Held, ack: bool, request: &Accepted, visit: &Visit) {
    let settled = if ack { held.delivery.ack().await } else { held.delivery.requeue().await };
    match settled {
        Ok(true) => {}
        Ok(false) => {
            visit.metrics().stale_ack();
            tracing::warn!(request = %request.job.id, "the delivery was not ours any more");
        }
        Err(error) => {
            tracing::warn!(request = %request.job.id, %error, "the delivery will come back");
        }
    }
}
