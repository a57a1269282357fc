//! How a delivery leaves this worker: acked, given back, put off, buried.

use std::time::Duration;

use nsbridge_protocol::ErrorCode;
use nsbridge_queue::Delivery;

use crate::dead;
use crate::intake::{Accepted, Rejected};
use crate::verdict::{After, Settlement};
use crate::worker::Shared;

/// How long a worker rests when its key service cannot answer.
pub(crate) const KEY_PAUSE: Duration = Duration::from_secs(5);

/// Settles the message after its last frame was confirmed.
pub(crate) async fn finish(
    shared: &Shared,
    delivery: Delivery,
    settlement: Settlement,
    request: &Accepted,
) {
    let settlement = match settlement {
        Settlement::Retry => match try_later(shared, &delivery, request).await {
            Ok(()) => Settlement::Retry,
            Err(error) => {
                tracing::warn!(request = %request.job.id, %error, "no retry, giving it back");
                Settlement::Requeue
            }
        },
        other => other,
    };
    settle(delivery, settlement, request).await;
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
    let rejected = Rejected { code, message, reply: Some(request.reply()) };
    tell_and_bury(shared, delivery, &rejected).await
}

/// A word to the client, then the dead letter: a failure in between repeats a word rather than a
/// dead letter.
async fn tell_and_bury(
    shared: &Shared,
    delivery: &Delivery,
    rejected: &Rejected,
) -> nsbridge_queue::Result<()> {
    dead::tell(&shared.publish, &shared.name, rejected).await?;
    dead::bury(&shared.publish, &shared.model, delivery, rejected.code).await
}

/// Rules R1 and R2: a word to the client, a dead letter, ack.
pub(crate) async fn refuse(shared: &Shared, delivery: Delivery, rejected: Rejected) -> After {
    let (code, deliveries) = (rejected.code, delivery.deliveries);
    let bytes = delivery.message.body.len();
    if let Err(error) = tell_and_bury(shared, &delivery, &rejected).await {
        tracing::warn!(%code, %error, "a request could not be dead-lettered, giving it back");
        let _ = delivery.requeue().await;
        return After::Rest(Duration::from_secs(1));
    }
    tracing::warn!(%code, deliveries, bytes, "a request was dead-lettered");
    if let Err(error) = delivery.ack().await {
        tracing::warn!(%error, "a refused request will come back");
    }
    After::Next
}

pub(crate) async fn put_off(delivery: Delivery, error: &nsbridge_crypto::KeyError) -> After {
    tracing::warn!(%error, "resting until keys can be had");
    let _ = delivery.requeue().await;
    After::Rest(KEY_PAUSE)
}

pub(crate) async fn settle(delivery: Delivery, settlement: Settlement, request: &Accepted) {
    let settled = match settlement {
        Settlement::Ack | Settlement::Retry => delivery.ack().await,
        Settlement::Requeue => delivery.requeue().await,
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
