//! How a delivery leaves this worker: acked, given back, put off, buried.

use std::time::Duration;

use nsbridge_protocol::ErrorCode;
use nsbridge_queue::Delivery;

use crate::dead;
use crate::intake::{Accepted, Rejected};
use crate::registry::Held;
use crate::verdict::{After, Settlement};
use crate::worker::Shared;

/// How long a worker rests when its key service cannot answer.
pub(crate) const KEY_PAUSE: Duration = Duration::from_secs(5);

/// Settles what a run was given for, after its last frame was confirmed.
///
/// Rule R11: only what is still ours is settled. A copy that the broker took away comes back, here
/// or elsewhere, and meets a job that is done or a client that has its reply.
pub(crate) async fn finish(
    shared: &Shared,
    holds: Vec<Held>,
    settlement: Settlement,
    request: &Accepted,
) {
    let ours: Vec<Held> = holds.into_iter().filter(Held::is_ours).collect();
    let Some(first) = ours.first() else {
        tracing::info!(request = %request.job.id, "a job ended without a delivery to settle");
        return;
    };
    let settlement = match settlement {
        Settlement::Retry => match try_later(shared, &first.delivery, request).await {
            Ok(()) => Settlement::Ack,
            Err(error) => {
                tracing::warn!(request = %request.job.id, %error, "no retry, giving it back");
                Settlement::Requeue
            }
        },
        other => other,
    };
    for held in ours {
        settle(held, settlement, request).await;
    }
}

/// Publishes a copy that comes back later; or buries the request if it failed as often as it may.
async fn try_later(
    shared: &Shared,
    delivery: &Delivery,
    request: &Accepted,
) -> nsbridge_queue::Result<()> {
    if dead::retry(&shared.publish, &shared.model, delivery, request.deadline).await? {
        return Ok(());
    }
    let code = ErrorCode::ModelFailed;
    let message = "the model failed on this request, every time it was tried".to_owned();
    let reply = Some(request.reply());
    let rejected = Rejected { code, message, reply, again_until: None };
    refused(shared, delivery, &rejected).await.map(drop)
}

/// Rules R1, R2 and R3: a word to the client, then another try where that can help, or the dead
/// letter; ack.
pub(crate) async fn refuse(shared: &Shared, delivery: Delivery, rejected: Rejected) -> After {
    let (code, deliveries) = (rejected.code, delivery.deliveries);
    let bytes = delivery.message.body.len();
    let again = match refused(shared, &delivery, &rejected).await {
        Ok(again) => again,
        Err(error) => {
            tracing::warn!(%code, %error, "a request could not be dead-lettered, giving it back");
            let _ = delivery.requeue().await;
            return After::Rest(Duration::from_secs(1));
        }
    };
    let what =
        if again { "a request waits for another try" } else { "a request was dead-lettered" };
    tracing::warn!(%code, deliveries, bytes, "{what}");
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
) -> nsbridge_queue::Result<bool> {
    let (pool, model) = (&shared.publish, &shared.model);
    dead::tell(pool, &shared.name, rejected).await?;
    if let Some(until) = rejected.again_until
        && dead::retry(pool, model, delivery, until).await?
    {
        return Ok(true);
    }
    dead::bury(pool, model, delivery, rejected.code).await.map(|()| false)
}

pub(crate) async fn put_off(delivery: Delivery, error: &nsbridge_crypto::KeyError) -> After {
    tracing::warn!(%error, "resting until keys can be had");
    let _ = delivery.requeue().await;
    After::Rest(KEY_PAUSE)
}

pub(crate) async fn settle(held: Held, settlement: Settlement, request: &Accepted) {
    let settled = match settlement {
        Settlement::Ack | Settlement::Retry => held.delivery.ack().await,
        Settlement::Requeue => held.delivery.requeue().await,
    };
    match settled {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!(request = %request.job.id, "the delivery was not ours any more");
        }
        Err(error) => {
            tracing::warn!(request = %request.job.id, %error, "the delivery will come back");
        }
    }
}
