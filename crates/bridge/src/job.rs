//! The life of a request, from the queue and back.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use nsbridge_handler::erased::Call;
use nsbridge_handler::transcript::{Reader, transcript};
use nsbridge_handler::{JobInfo, Stop};
use nsbridge_protocol::{ErrorCode, Failure, Pieces};
use nsbridge_queue::Delivery;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::attempt::{Ending, Stuck};
use crate::intake::{self, Accepted, Refusal};
use crate::registry::{Admission, Running};
use crate::settle::{KEY_PAUSE, finish, put_off, refuse, settle};
use crate::stream::{Letter, ReplyStream, Until, Welcome};
use crate::verdict::{After, Settlement, Verdict, judge};
use crate::worker::Shared;

/// How long sending may go on when the deadline, the grace or the connection is over.
const MARGIN: Duration = Duration::from_secs(5);

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
        if matches!(reply.read_mail(&frame), Some(Letter::Cancel)) {
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
