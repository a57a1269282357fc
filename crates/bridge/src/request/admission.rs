//! Admission: decrypts a delivery and checks whether the request may run (rule R2).

use std::time::{Duration, SystemTime};

use nsbridge_crypto::{
    JobKey, Key, KeyError, KeyProvider, Provider, ReplyRoot, RequestFrame, RequestHead,
};
use nsbridge_protocol::topology::{self, MAX_TIME_TO_FINISH, header};
use nsbridge_protocol::{
    AttemptNo, ErrorCode, KeyId, ModelName, Request, RequestId, Revision, Tenant,
};
use nsbridge_queue::{Delivery, Message};
use serde_json::value::RawValue;

use crate::clock::{at_ms, now_ms};
use crate::request::in_flight::JobIdentity;

/// Maximum difference between the clocks of client and worker, in ms.
const CLOCK_TOLERANCE_MS: u64 = 60_000;

/// Request that may run.
pub(crate) struct AdmittedRequest {
    pub(crate) job_key: JobKey,
    /// Key commitment, which binds the copy to its key.
    pub(crate) commitment: [u8; 32],
    pub(crate) attempt: AttemptNo,
    /// Number of earlier deliveries of this message, counted by the broker (rule A1).
    pub(crate) earlier_deliveries: u64,
    /// True for a later attempt: an earlier one may have sent pieces. The broker has redelivered the
    /// message, or it is not the first copy of its request (a retry, a renewal, a copy of the client).
    pub(crate) is_later: bool,
    /// Provider of its key.
    pub(crate) provider: Provider,
    pub(crate) reply_to: String,
    pub(crate) reply_root: ReplyRoot,
    pub(crate) tenant: Tenant,
    /// True if its key belongs to this tenant alone.
    pub(crate) tenant_proven: bool,
    /// Id of the key that sealed it.
    pub(crate) key_id: KeyId,
    pub(crate) seed: u64,
    pub(crate) submitted_at: SystemTime,
    pub(crate) deadline: SystemTime,
}

impl AdmittedRequest {
    /// Returns the time since the request was sealed, by this machine's clock.
    pub(crate) fn age(&self) -> Duration {
        self.submitted_at.elapsed().unwrap_or_default()
    }

    /// Returns the identity that other deliveries are compared with.
    pub(crate) fn identity(&self) -> JobIdentity {
        let (commitment, reply_to) = (self.commitment, self.reply_to.clone());
        JobIdentity { key: self.job_key, commitment, reply_to }
    }

    /// Returns the address for a refusal of the request.
    pub(crate) fn reply(&self) -> ReplyTo {
        ReplyTo {
            queue: self.reply_to.clone(),
            request: self.job_key.id,
            root: Some(self.reply_root.clone()),
            attempt: self.attempt,
        }
    }
}

/// Request that may not run, with the reason and the address of its client.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) code: ErrorCode,
    /// Sentence for the client. It is sent sealed if a reply root is known, else not at all.
    pub(crate) message: String,
    pub(crate) reply: Option<ReplyTo>,
    /// Conditions of another try; `None` if none can help.
    pub(crate) again: Option<Again>,
}

impl Rejection {
    /// Creates a rejection for good.
    fn new(code: ErrorCode, message: String, reply: Option<ReplyTo>) -> Self {
        Self { code, message, reply, again: None }
    }
}

/// Conditions of another try of a rejected request (rules R3 and R12).
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) until: SystemTime,
    /// Pinned revision, which another worker may serve; `None` if the request waits for a key.
    pub(crate) pinned: Option<Revision>,
}

/// Reply queue and reply key for the refusal of a request.
#[derive(Clone, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) queue: String,
    pub(crate) request: RequestId,
    /// Root of the reply keys; with `None` only an unsealed hint can be sent.
    pub(crate) root: Option<ReplyRoot>,
    pub(crate) attempt: AttemptNo,
}

/// Reason why a delivery is not run: rejected for good or for now, or deferred.
#[derive(Debug)]
pub(crate) enum NotAdmitted {
    /// The request is rejected.
    Rejected(Rejection),
    /// The key service is busy: the request is put off, and the worker pauses.
    Deferred(Deferred),
}

/// Request that cannot be opened now because the key service is busy.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) error: KeyError,
    /// Time until which a copy may wait; `None` if the header's times are not valid.
    pub(crate) until: Option<SystemTime>,
}

/// Opens a delivery and checks it in the order of rule R2.
pub(crate) async fn open(
    delivery: &Delivery,
    model: &ModelName,
    revision: Option<&Revision>,
    keys: &dyn KeyProvider,
) -> Result<(AdmittedRequest, Vec<u8>), NotAdmitted> {
    let message = &delivery.message;
    let attempt = attempt(message, delivery.earlier_deliveries);
    if let Some(bytes) = delivery.oversized {
        return Err(oversized(message, bytes, attempt));
    }
    let frame = RequestFrame::parse(&message.body)
        .map_err(|error| reject(error.code(), error.to_string(), None))?;
    let reply = message.properties.reply_to.clone().map(|queue| ReplyTo {
        queue,
        request: frame.head().id,
        root: None,
        attempt,
    });
    let key = open_key(&frame, keys, reply.as_ref()).await?;
    // Anyone who sees a request can publish a changed copy of it, or publish it to another queue.
    // Such a copy gets no refusal sealed under the request's own key, because that would end an
    // intact reply.
    let opened = match frame.open(&key) {
        Ok(opened) => opened,
        Err(error) => return Err(reject(error.code(), error.to_string(), reply)),
    };
    let Some(reply) = reply else {
        let message = "it names no queue for its reply".to_owned();
        return Err(reject(ErrorCode::Malformed, message, None));
    };
    if opened.head.model != *model {
        let message = format!("this queue serves {model}, the request is for another model");
        return Err(reject(ErrorCode::WrongModel, message, Some(reply)));
    }
    let reply = ReplyTo { root: Some(opened.reply_root.clone()), ..reply };
    let vouched = message.properties.expiration.is_some();
    let (created, expires) = (opened.head.created_at_ms, opened.head.expires_at_ms);
    let deadline_ms = match deadline(now_ms(), created, expires, vouched) {
        Ok(deadline) => deadline,
        Err((code, message)) => return Err(reject(code, message.to_owned(), Some(reply))),
    };
    let request: Request<Box<RawValue>> = match serde_json::from_slice(&opened.content) {
        Ok(request) => request,
        // This sentence is sent sealed, so only the client reads it.
        Err(error) => {
            let message = format!("the request is not {{seed, input}}: {error}");
            return Err(reject(ErrorCode::BadInput, message, Some(reply)));
        }
    };
    if let Some(rejection) = pinned_elsewhere(&request, revision, at_ms(deadline_ms), &reply) {
        return Err(NotAdmitted::Rejected(rejection));
    }
    let opened = AdmittedRequest {
        job_key: opened.job_key,
        commitment: frame.commitment(),
        attempt,
        earlier_deliveries: delivery.earlier_deliveries,
        is_later: delivery.redelivered || attempt.is_retry(),
        provider: frame.provider(),
        reply_to: reply.queue,
        reply_root: opened.reply_root,
        tenant: opened.head.tenant,
        tenant_proven: keys.proves_tenant(&frame),
        key_id: opened.head.key_id,
        seed: request.seed,
        submitted_at: at_ms(created),
        deadline: at_ms(deadline_ms),
    };
    Ok((opened, Box::<str>::from(request.input).into_string().into_bytes()))
}

/// Opens the key of a request. A request whose key cannot be opened now waits for it.
async fn open_key(
    frame: &RequestFrame<'_>,
    keys: &dyn KeyProvider,
    reply: Option<&ReplyTo>,
) -> Result<Key, NotAdmitted> {
    let error = match keys.open_key(frame).await {
        Ok(key) => return Ok(key),
        Err(error) => error,
    };
    let until = claimed_deadline(frame.head());
    if matches!(error, KeyError::Busy { .. }) {
        return Err(NotAdmitted::Deferred(Deferred { error, until }));
    }
    if matches!(error, KeyError::Denied { .. }) {
        tracing::warn!(%error, "a request has no key");
    }
    let mut rejection = Rejection::new(error.code(), error.to_string(), reply.cloned());
    // A key rotation may bring the key to this worker within a minute.
    if matches!(error, KeyError::Unknown { .. }) {
        rejection.again = until.map(|until| Again { until, pinned: None });
    }
    Err(NotAdmitted::Rejected(rejection))
}

/// Returns the rejection of a request that is pinned to another revision (rule R12).
fn pinned_elsewhere(
    request: &Request<Box<RawValue>>,
    served: Option<&Revision>,
    until: SystemTime,
    reply: &ReplyTo,
) -> Option<Rejection> {
    let pinned = request.revision.as_ref().filter(|pinned| Some(*pinned) != served)?;
    let served = served.map_or("no named revision", Revision::as_str);
    let message = format!(
        "the request is pinned to revision {}, and no worker of it took the request while it \
         waited; this worker serves {served}",
        pinned.as_str()
    );
    let code = ErrorCode::WrongRevision;
    let mut rejection = Rejection::new(code, message, Some(reply.clone()));
    rejection.again = Some(Again { until, pinned: Some(pinned.clone()) });
    Some(rejection)
}

/// Returns the time until which an unopened request may be tried again. Its header is not verified,
/// so `deadline` bounds the time.
fn claimed_deadline(head: &RequestHead) -> Option<SystemTime> {
    deadline(now_ms(), head.created_at_ms, head.expires_at_ms, false).ok().map(at_ms)
}

/// Returns the attempt number of a delivery (rule A2).
fn attempt(message: &Message, deliveries: u64) -> AttemptNo {
    AttemptNo::new(epoch(message), deliveries)
}

/// Returns the message's `nsb-epoch`, the number of copies before it; 0 if it is missing or
/// malformed.
pub(crate) fn epoch(message: &Message) -> u16 {
    message.properties.int(header::EPOCH).and_then(|n| u16::try_from(n).ok()).unwrap_or(0)
}

/// Returns the time by which the work must end, in Unix ms of this machine's clock. A request with
/// a longer time to finish than the protocol allows is refused: that time bounds for how long a
/// copy of the request can be run again.
///
/// The broker drops messages that expire in its queue. If its timer was set (`vouched`) and the
/// message still looks expired, the clocks are apart.
fn deadline(
    now: u64,
    created: u64,
    expires: u64,
    vouched: bool,
) -> Result<u64, (ErrorCode, &'static str)> {
    let longest = MAX_TIME_TO_FINISH.as_millis() as u64;
    if expires.checked_sub(created).is_none_or(|time| time > longest) {
        let why = "its finish-by time is before its creation, or more than 25 minutes after it";
        return Err((ErrorCode::Malformed, why));
    }
    let apart = "the clocks of client and worker are more than a minute apart";
    if created > now + CLOCK_TOLERANCE_MS {
        return Err((ErrorCode::ClockSkew, apart));
    }
    let latest = expires.saturating_add(CLOCK_TOLERANCE_MS);
    if latest <= now {
        return Err(if vouched {
            (ErrorCode::ClockSkew, apart)
        } else {
            (ErrorCode::Expired, "its finish-by time has passed")
        });
    }
    Ok(now + (latest - now).min(expires - created))
}

/// Refuses a message whose body was dropped on arrival because of its size. Only its unverified
/// properties name the client, which is enough for a hint.
fn oversized(message: &Message, bytes: u64, attempt: AttemptNo) -> NotAdmitted {
    let properties = &message.properties;
    let request = properties.message_id.as_deref().and_then(|id| id.parse().ok());
    let reply = properties.reply_to.clone().zip(request);
    let reply = reply.map(|(queue, request)| ReplyTo { queue, request, root: None, attempt });
    let most = topology::REQUEST_BODY;
    reject(ErrorCode::Oversized, format!("{bytes} bytes, where {most} are the limit"), reply)
}

fn reject(code: ErrorCode, message: String, reply: Option<ReplyTo>) -> NotAdmitted {
    NotAdmitted::Rejected(Rejection::new(code, message, reply))
}

/// Returns the time left until the deadline; zero if it has passed.
pub(crate) fn remaining(deadline: SystemTime) -> Duration {
    deadline.duration_since(SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::ErrorCode;

    use super::deadline;

    const NOW: u64 = 1_000_000_000;

    #[track_caller]
    fn check(created: i64, expires: i64, vouched: bool, expected: Result<u64, ErrorCode>) {
        let at = |offset: i64| NOW.checked_add_signed(offset * 1000).unwrap();
        let got = deadline(NOW, at(created), at(expires), vouched);
        assert_eq!(got.map(|ms| (ms - NOW) / 1000).map_err(|(code, _)| code), expected);
    }

    #[test]
    fn half_a_minute_of_skew_is_nothing_and_ten_minutes_are_named() {
        check(0, 300, true, Ok(300));
        check(-10, 290, true, Ok(300));
        check(30, 330, true, Ok(300));
        check(-330, -30, true, Ok(30));
        check(600, 900, true, Err(ErrorCode::ClockSkew));
        check(-900, -600, true, Err(ErrorCode::ClockSkew));
    }

    #[test]
    fn a_stale_copy_that_no_broker_vouches_for_has_expired() {
        check(-900, -61, false, Err(ErrorCode::Expired));
    }

    #[test]
    fn work_never_lasts_longer_than_the_client_gave_it() {
        check(0, 5, true, Ok(5));
        check(50, 55, true, Ok(5));
        check(0, 25 * 60, true, Ok(25 * 60));
    }

    /// Without this limit, anyone who kept a copy could have it computed again for years.
    #[test]
    fn l1_a_request_that_is_to_live_longer_than_the_protocol_allows_is_refused() {
        check(0, 25 * 60 + 1, true, Err(ErrorCode::Malformed));
        check(-365 * 24 * 3600 / 1000, 10 * 365 * 24 * 3600, true, Err(ErrorCode::Malformed));
        check(10, 0, true, Err(ErrorCode::Malformed));
    }
}
