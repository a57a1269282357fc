//! The life of a request, from the queue and back.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use nsbridge_handler::erased::Call;
use nsbridge_handler::transcript::{Reader, transcript};
use nsbridge_handler::{Error as HandlerError, Finish, JobInfo, Stop};
use nsbridge_protocol::{ErrorCode, Failure, Pieces};
use nsbridge_queue::Delivery;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::attempt::{Ending, Stuck};
use crate::dead;
use crate::intake::{self, Accepted, Refusal, Rejected};
use crate::registry::{Admission, Running};
use crate::runner::Outcome;
use crate::stream::{ReplyStream, Until, Welcome};
use crate::worker::Shared;

/// How long sending may go on when the deadline, the grace or the connection is over.
const MARGIN: Duration = Duration::from_secs(5);

/// How long a worker rests when its key service cannot answer.
const KEY_PAUSE: Duration = Duration::from_secs(5);

/// What becomes of the slot after a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It takes the next.
    Next,
    /// It rests first.
    Rest(Duration),
    /// The handler is broken: the worker leaves.
    Leave(&'static str),
}

/// What becomes of a delivery.
enum Settlement {
    Ack,
    Requeue,
    /// Publish a copy that comes back later, then ack.
    Retry,
}

/// Runs one delivery to its end.
///
/// `lost` is cancelled when the connection that the delivery came on is gone: the broker gives the
/// job to somebody else then, so the handler is stopped, and nothing is settled.
pub(crate) async fn run(shared: &Shared, delivery: Delivery, lost: &CancellationToken) -> After {
    let request = match intake::open(&delivery, &shared.model, &*shared.keys).await {
        Ok(request) => request,
        Err(Refusal::Later(error)) => return put_off(delivery, &error).await,
        Err(Refusal::Rejected(rejected)) => return refuse(shared, delivery, rejected).await,
    };
    let Some(mut running) = admit(shared, &delivery, &request, lost).await else {
        if lost.is_cancelled() {
            return After::Next;
        }
        settle(delivery, Settlement::Ack, &request).await;
        return After::Next;
    };
    let overdue = CancellationToken::new();
    let address = shared.address(&request, overdue.clone());
    let (writer, reader) = transcript();
    let answered = async {
        let mut reply = ReplyStream::open(&address).await?;
        let Some(resume) = welcome(&mut reply, &mut running, &request).await else {
            let ending =
                Ending::Error(Failure::new(ErrorCode::Cancelled, Stop::Cancelled.to_string()));
            reply.end(&reader, &ending).await?;
            return Ok((Settlement::Ack, After::Next));
        };
        let (input, info) = (input(&request), info(&request));
        let call = shared.runner.call(Call { input, info, resume, writer });
        let until = Until { deadline: request.deadline, hand_off: &shared.hand_off, lost };
        let outcome = reply.follow(call, &reader, &mut running.mail, until).await?;
        let verdict = judge(outcome, &reader);
        log(&request, &reader, &verdict);
        if let Some(ending) = &verdict.ending {
            reply.end(&reader, ending).await?;
        }
        Ok::<_, Stuck>((verdict.settlement, verdict.after))
    };
    let answered = tokio::select! {
        answered = answered => answered,
        never = watch(&request, shared, lost, overdue) => match never {},
    };
    let (settlement, after) = match answered {
        Ok((settlement, after)) => {
            if matches!(settlement, Settlement::Ack) {
                running.done();
            }
            (settlement, after)
        }
        Err(stuck) => unsent(&stuck, &request, &reader),
    };
    // From here on a copy that comes back, or a retry of this one, is a job of its own.
    drop(running);
    finish(shared, delivery, settlement, &request).await;
    after
}

/// Cancels `overdue` some time after the last moment at which anybody waits for the reply.
async fn watch(
    request: &Accepted,
    shared: &Shared,
    lost: &CancellationToken,
    overdue: CancellationToken,
) -> Infallible {
    tokio::select! {
        () = sleep(intake::remaining(request.deadline)) => {}
        () = shared.hand_off.cancelled() => {}
        () = lost.cancelled() => {}
    }
    sleep(MARGIN).await;
    overdue.cancel();
    pending().await
}

/// What becomes of a job whose reply could not be sent.
fn unsent(stuck: &Stuck, request: &Accepted, reader: &Reader) -> (Settlement, After) {
    let id = request.job.id;
    match stuck {
        Stuck::Seal(error) => {
            tracing::error!(request = %id, %error, "a reply could not be sealed");
            (Settlement::Requeue, After::Rest(KEY_PAUSE))
        }
        Stuck::Overdue => {
            tracing::warn!(request = %id, "a reply could not be sent in time");
            let over = intake::remaining(request.deadline).is_zero();
            let handed = reader.stopped() == Some(Stop::HandOff) && !over;
            (if handed { Settlement::Requeue } else { Settlement::Ack }, After::Next)
        }
    }
}

/// Registers the job; `None` if it needs no run: it is done, or this is a duplicate copy of one
/// that runs.
///
/// A copy that comes back while its run goes on has lost the delivery that the run began with. It
/// is held until that run is over: done, and this copy is acked, or stopped, and it runs again.
async fn admit<'a>(
    shared: &'a Shared,
    delivery: &Delivery,
    request: &Accepted,
    lost: &CancellationToken,
) -> Option<Running<'a>> {
    loop {
        match shared.registry.admit(request.job) {
            Admission::New(running) => return Some(running),
            Admission::Done => return None,
            Admission::Runs(_) if !delivery.redelivered => return None,
            Admission::Runs(left) => tokio::select! {
                () = left.cancelled() => {}
                () = lost.cancelled() => return None,
            },
        }
    }
}

/// The pieces to go on from; `None` if the client cancelled first.
async fn welcome(
    reply: &mut ReplyStream<'_>,
    running: &mut Running<'_>,
    request: &Accepted,
) -> Option<Option<Pieces>> {
    // Rule R4: cancels that came before the request.
    while let Ok(frame) = running.mail.try_recv() {
        if matches!(reply.read_mail(&frame), Some(crate::stream::Letter::Cancel)) {
            return None;
        }
    }
    if !request.redelivered {
        return Some(None);
    }
    match reply.wait_for_resume(&mut running.mail).await {
        Welcome::Start => Some(None),
        Welcome::Resume(pieces) => Some(Some(pieces)),
        Welcome::Cancelled => None,
    }
}

/// What a call's outcome means for its client, its message and its worker.
struct Verdict {
    /// The code in logs; `None` is success.
    code: Option<ErrorCode>,
    /// The last frame; `None` if nobody is there to read it.
    ending: Option<Ending>,
    settlement: Settlement,
    after: After,
}

fn judge(outcome: Outcome, reader: &Reader) -> Verdict {
    let ok = |finish: Finish| Verdict {
        code: None,
        ending: Some(Ending::Ok(finish)),
        settlement: Settlement::Ack,
        after: After::Next,
    };
    let fail = |code: ErrorCode, message: String| Verdict {
        code: Some(code),
        ending: Some(Ending::Error(Failure::new(code, message))),
        settlement: Settlement::Ack,
        after: After::Next,
    };
    let hand_over = |settlement: Settlement, code: ErrorCode, after: After| Verdict {
        code: Some(code),
        ending: Some(Ending::Moved),
        settlement,
        after,
    };
    let error = match outcome {
        Outcome::Returned(Ok(finish)) => return ok(finish),
        Outcome::Panicked => {
            let after = After::Leave("it panicked");
            return hand_over(Settlement::Requeue, ErrorCode::ModelFailed, after);
        }
        Outcome::Returned(Err(error)) => error,
    };
    // A stop is the reason whatever the handler made of it.
    match (reader.stopped(), error) {
        (Some(Stop::ClientGone), _) => {
            let quiet = fail(ErrorCode::Cancelled, String::new());
            Verdict { ending: None, ..quiet }
        }
        (Some(stop @ Stop::Cancelled), _) => fail(ErrorCode::Cancelled, stop.to_string()),
        (Some(stop @ Stop::Deadline), _) => fail(ErrorCode::Deadline, stop.to_string()),
        (Some(stop @ Stop::TooLarge), _) => fail(ErrorCode::ReplyTooLarge, stop.to_string()),
        (Some(Stop::HandOff), _) => {
            hand_over(Settlement::Requeue, ErrorCode::Internal, After::Next)
        }
        (None, HandlerError::BadInput(why)) => fail(ErrorCode::BadInput, why),
        (None, HandlerError::Fatal(_)) => {
            let after = After::Leave("it said so");
            hand_over(Settlement::Requeue, ErrorCode::ModelFailed, after)
        }
        (None, _) => hand_over(Settlement::Retry, ErrorCode::ModelFailed, After::Next),
    }
}

/// Settles the message after its last frame was confirmed.
async fn finish(shared: &Shared, delivery: Delivery, settlement: Settlement, request: &Accepted) {
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
    let (pool, model) = (&shared.publish, &shared.model);
    if dead::retry(pool, model, delivery, request.deadline).await? {
        return Ok(());
    }
    let code = ErrorCode::ModelFailed;
    let message = "the model failed on this request, every time it was tried".to_owned();
    let rejected = Rejected { code, message, reply: Some(request.reply()) };
    dead::tell(pool, &shared.name, &rejected).await?;
    dead::bury(pool, model, delivery, code).await
}

/// Rules R1 and R2: a word to the client, a dead letter, ack; in this order, so that a failure in
/// between repeats a word rather than a dead letter.
async fn refuse(shared: &Shared, delivery: Delivery, rejected: Rejected) -> After {
    let (code, deliveries) = (rejected.code, delivery.deliveries);
    let bytes = delivery.message.body.len();
    let refused = async {
        dead::tell(&shared.publish, &shared.name, &rejected).await?;
        dead::bury(&shared.publish, &shared.model, &delivery, code).await
    };
    if let Err(error) = refused.await {
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

async fn put_off(delivery: Delivery, error: &nsbridge_crypto::KeyError) -> After {
    tracing::warn!(%error, "resting until keys can be had");
    let _ = delivery.requeue().await;
    After::Rest(KEY_PAUSE)
}

async fn settle(delivery: Delivery, settlement: Settlement, request: &Accepted) {
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

fn log(request: &Accepted, reader: &Reader, verdict: &Verdict) {
    let code = verdict.code.map_or("ok", ErrorCode::as_str);
    let (id, attempt) = (request.job.id, request.attempt);
    tracing::info!(request = %id, %attempt, code, pieces = reader.len(), "a request ended");
}

fn input(request: &Accepted) -> Vec<u8> {
    request.input.get().as_bytes().to_vec()
}

fn info(request: &Accepted) -> JobInfo {
    JobInfo {
        id: request.job.id,
        attempt: request.attempt,
        seed: request.seed,
        submitted_at: request.submitted_at,
        tenant: request.tenant.clone(),
        deadline: request.deadline,
    }
}
