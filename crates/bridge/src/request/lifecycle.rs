//! Control flow of one delivery: admission, registration, slot, call, reply, settlement.

mod stops;

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_crypto::Provider;
use nsbridge_handler::erased::Call;
use nsbridge_handler::transcript::{Reader, Writer, transcript};
use nsbridge_handler::{Error, JobInfo, Stop};
use nsbridge_protocol::topology::POISON_RUNS;
use nsbridge_protocol::{ErrorCode, Failure, Pieces};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::request::admission::{self, AdmittedRequest, NotAdmitted};
use crate::request::context::WorkerContext;
use crate::request::delivery_trace::DeliveryTrace;
use crate::request::disposition::{Disposition, WorkerAction};
use crate::request::in_flight::{JobIdentity, OwnedDelivery, Registration, Running, SealedControl};
use crate::request::reply_sender::{ControlMessage, ReplySender, ResumeDecision};
use crate::request::reply_stream::{ReplyContext, Undeliverable};
use crate::request::run_record::RunRecord;
use crate::request::runner::CallEnd;
use crate::request::settlement::{Settlement, defer, finish, refuse, renew, settle};
use crate::request::slots::{Arrival, Claim, Slot, SlotPermit};

/// Runs one delivery to its settlement, or hands it to the run of its job.
pub(crate) async fn handle_delivery(
    worker: &WorkerContext,
    owned: OwnedDelivery,
    arrival: Arrival,
    trace: &DeliveryTrace,
) -> WorkerAction {
    let (model, revision) = (&worker.model, worker.revision.as_ref());
    let (request, input) =
        match admission::open(&owned.delivery, model, revision, &*worker.keys).await {
            Ok(opened) => opened,
            Err(NotAdmitted::Deferred(deferred)) => {
                return defer(worker, owned, &deferred, trace).await;
            }
            Err(NotAdmitted::Rejected(rejection)) => {
                return refuse(worker, owned, rejection, trace).await;
            }
        };
    if request.provider == Provider::Kms {
        worker.intake.reset();
    }
    trace.opened(&request);
    let job = request.identity();
    let Some(owned) = renew(worker, &job, owned, &request, trace).await else {
        return WorkerAction::Continue;
    };
    let Some((running, mut controls)) = register(worker, &job, owned, &request, trace).await else {
        return WorkerAction::Continue;
    };
    let (overdue, claim) = (CancellationToken::new(), arrival.claim());
    let (writer, reader) = transcript();
    let context = worker.reply_context(&request, trace, &reader, &claim, overdue.clone());
    let record = RunRecord::of(worker, &request);
    let run = Run {
        worker,
        request: &request,
        running: &running,
        record: &record,
        reader: &reader,
        claim: &claim,
        calling: watch::Sender::new(false),
    };
    let answered = tokio::select! {
        answered = run.answer(input, arrival, &mut controls, &context, writer) => answered,
        stuck = run.watch(&overdue) => Err(stuck),
    };
    let disposition = answered.unwrap_or_else(|stuck| unsent(&stuck, &request, &reader));
    let over = disposition.is_over();
    // From here on, another delivery of the job begins a run of its own, or is acked if the job is
    // over.
    let deliveries = running.end(over);
    // Before the message is settled, because the worker that takes it next reads the record.
    record.close(over).await;
    let changed = finish(worker, deliveries, &disposition, &request, trace).await;
    trace.ended(changed.unwrap_or(disposition.outcome()));
    disposition.action(&worker.timing)
}

/// Registers the job (rule R6). Returns `None` if the delivery needs no run of its own.
async fn register<'a>(
    worker: &'a WorkerContext,
    job: &JobIdentity,
    mut owned: OwnedDelivery,
    request: &AdmittedRequest,
    trace: &DeliveryTrace,
) -> Option<(Running<'a>, Receiver<SealedControl>)> {
    loop {
        match worker.in_flight.register(job, owned, request.attempt) {
            Registration::New(running, controls) => return Some((running, controls)),
            Registration::Duplicate(copy) | Registration::Done(copy) => {
                let id = request.job_key.id;
                tracing::info!(request = %id, "a duplicate delivery was acked: its job runs here or has ended");
                settle(copy, Settlement::Ack, request, trace).await;
                return None;
            }
            Registration::Adopted => {
                let (id, attempt) = (request.job_key.id, request.attempt);
                tracing::info!(request = %id, %attempt, "a running job has its delivery back");
                trace.adopted();
                return None;
            }
            Registration::Retiring(copy, left) => {
                tokio::select! {
                    () = left.cancelled() => {}
                    () = copy.gone.cancelled() => return None,
                }
                owned = copy;
            }
        }
    }
}

/// One run of a job: a call of the handler and its reply.
struct Run<'a> {
    worker: &'a WorkerContext,
    request: &'a AdmittedRequest,
    running: &'a Running<'a>,
    record: &'a RunRecord<'a>,
    reader: &'a Reader,
    claim: &'a Claim,
    /// True while the run waits for the handler's call.
    calling: watch::Sender<bool>,
}

impl Run<'_> {
    /// Answers the request: opens a stream, calls the handler, sends its pieces and its end.
    ///
    /// The handler of a first attempt is called while its stream opens (rule R7).
    async fn answer(
        &self,
        input: Vec<u8>,
        arrival: Arrival,
        controls: &mut Receiver<SealedControl>,
        context: &ReplyContext<'_>,
        writer: Writer,
    ) -> Result<Disposition, Undeliverable> {
        let Self { request, reader, .. } = self;
        let (slot, cancelled) = match self.begin(arrival, context, controls).await {
            Begun::Entered(slot) => (slot, false),
            // No call follows, so the run goes on without a permit.
            Begun::Cancelled => (None, true),
            Begun::Over(disposition) => return Ok(disposition),
        };
        let trace = context.trace;
        trace.runs();
        let cancelled = cancelled || cancelled_early(context, controls);
        let (opened, resume) = match self.resume(cancelled, context, controls).await? {
            Resumed::First => (None, None),
            Resumed::Opened(reply, pieces) => (Some(*reply), pieces),
            Resumed::Over(disposition) => return Ok(disposition),
        };
        // Pinned here: passed by value, the future would be stored again in each future that takes it.
        let opening = pin!(async {
            match opened {
                Some(reply) => Ok(reply),
                None => ReplySender::start(context, self.running.attempt()).await,
            }
        });
        let call = pin!(self.call(input, context, resume, writer, slot.clone()));
        let called_at = SystemTime::now();
        let (end, sent) = ReplySender::run_call(context, opening, call, controls).await;
        drop(slot);
        let disposition = Disposition::of(end, reader);
        trace.called(called_at, reader, disposition.outcome().usage(), disposition.code());
        let reply = match sent {
            Ok(reply) => reply,
            Err(_) if matches!(disposition, Disposition::Broken) => return Ok(disposition),
            Err(stuck) => return Err(stuck),
        };
        log(request, reader, &disposition);
        if !matches!(disposition, Disposition::Undelivered(_)) {
            reply.end(&disposition).await?;
        }
        Ok(disposition)
    }

    /// Waits until the run may call the handler, or is not to call it.
    async fn begin(
        &self,
        arrival: Arrival,
        context: &ReplyContext<'_>,
        controls: &mut Receiver<SealedControl>,
    ) -> Begun {
        tokio::select! {
            biased;
            () = cancel(context, controls) => Begun::Cancelled,
            entry = self.enter(arrival) => match entry {
                Entry::Poison(runs) => Begun::Over(Disposition::Poison(runs)),
                Entry::Slot(Slot::Requeue) => Begun::Over(Disposition::HandedOff),
                Entry::Slot(Slot::DeadlinePassed) => {
                    // `watch` stops the run too, but maybe not before the call would begin.
                    self.reader.stop(Stop::Deadline);
                    Begun::Entered(None)
                }
                Entry::Slot(Slot::Granted(permit)) => Begun::Entered(Some(Arc::new(permit))),
            },
        }
    }

    /// Opens the stream of a later attempt, and waits for the pieces that its client has. A canceled
    /// run sends its end.
    async fn resume<'c>(
        &self,
        cancelled: bool,
        context: &'c ReplyContext<'c>,
        controls: &mut Receiver<SealedControl>,
    ) -> Result<Resumed<'c>, Undeliverable> {
        let waits = self.request.is_later && self.worker.reply.resume_from_client;
        if !(waits || cancelled) {
            return Ok(Resumed::First);
        }
        let mut reply = ReplySender::start(context, self.running.attempt()).await?;
        let decision = match cancelled {
            true => ResumeDecision::Cancelled,
            false => reply.wait_for_resume(controls, self.request.age()).await,
        };
        match decision {
            ResumeDecision::Start => Ok(Resumed::Opened(Box::new(reply), None)),
            ResumeDecision::Resume(pieces) => Ok(Resumed::Opened(Box::new(reply), Some(pieces))),
            // Rule R4: canceled before the work began.
            ResumeDecision::Cancelled => {
                let failure = Failure::new(ErrorCode::Cancelled, Stop::Cancelled.to_string());
                let disposition = Disposition::Failed(failure);
                reply.end(&disposition).await?;
                Ok(Resumed::Over(disposition))
            }
        }
    }

    /// Waits for a permit, unless the request is poison (rule R1). Enters no run in the record:
    /// [`RunRecord::enter`] does that later, just before the call.
    async fn enter(&self, arrival: Arrival) -> Entry {
        let Self { worker, request, running, .. } = self;
        let unreturned = tokio::select! {
            biased;
            _ = worker.drain.begun() => return Entry::Slot(Slot::Requeue),
            () = running.orphaned() => return Entry::Slot(Slot::Requeue),
            () = worker.publishing.given_up() => return Entry::Slot(Slot::Requeue),
            unreturned = self.record.unreturned() => unreturned,
        };
        if unreturned >= POISON_RUNS {
            return Entry::Poison(unreturned);
        }
        let WorkerContext { slots, in_flight, drain, .. } = worker;
        let wait = |arrival, runs| slots.acquire(arrival, runs, in_flight, drain, request, running);
        let slot = tokio::select! {
            biased;
            slot = wait(arrival, unreturned) => slot,
            () = worker.publishing.given_up() => Slot::Requeue,
            // Workers that were cut off for longer are back and have struck their runs, so the
            // request is no longer a suspect.
            () = self.record.cleared(), if unreturned > 0 => {
                wait(worker.slots.arrive(self.claim.clone()), 0).await
            }
        };
        Entry::Slot(slot)
    }

    /// Calls the handler. The run of a redelivered message is recorded before it begins. A new
    /// message, such as a retry, has no earlier delivery to blame, even in a later attempt.
    async fn call(
        &self,
        input: Vec<u8>,
        context: &ReplyContext<'_>,
        resume: Option<Pieces>,
        writer: Writer,
        slot: Option<Arc<SlotPermit>>,
    ) -> CallEnd {
        let Self { worker, request, reader, .. } = self;
        if request.earlier_deliveries > 0 {
            tokio::select! {
                () = self.record.enter() => {}
                () = context.overdue.cancelled() => {}
                () = reader.stopping() => {}
            }
        }
        if let Some(stop) = reader.stopped() {
            self.record.returned();
            return CallEnd::Returned(Err(stop.into()));
        }
        let info = info(request, context.trace);
        self.calling.send_replace(true);
        let given_up = async {
            reader.stopping().await;
            sleep(worker.timing.give_up_call_after).await;
        };
        let end = tokio::select! {
            end = worker.runner.call(Call { input, info, resume, writer }, slot.clone()) => end,
            () = given_up => CallEnd::GivenUp,
        };
        self.calling.send_replace(false);
        let given_up = matches!(end, CallEnd::GivenUp);
        if given_up {
            if let Some(slot) = &slot {
                slot.give_up();
            }
            let (id, stop, leftover) = (
                request.job_key.id,
                reader.stopped().map(tracing::field::display),
                worker.runner.leftover(),
            );
            tracing::warn!(request = %id, stop, leftover, "a call took no notice of a stop and was given up");
            worker.observability.metrics.given_up();
        }
        if worker.show_errors
            && let CallEnd::Returned(Err(error)) = &end
        {
            let id = request.job_key.id;
            tracing::warn!(request = %id, %error, "the handler returned an error, shown by show_errors");
        }
        // If all calls stand still, the call that was given up may be the cause.
        let suspect = given_up && worker.calls_stand_still();
        if !(end.is_suspect() || suspect) {
            self.record.returned();
        }
        let end = match end {
            // After a stop, the error may be the handler's word for the stop.
            CallEnd::Returned(Err(Error::Fatal(_))) if reader.stopped().is_none() => {
                CallEnd::Broke("it returned a fatal error")
            }
            end => end,
        };
        if let CallEnd::Broke(why) = end {
            // Not after the settlement: the run goes on until its stream opens or it is overdue.
            worker.leave(why);
        }
        end
    }
}

/// First phase of a run: it waits for a permit.
enum Begun {
    /// The run goes on with a permit; without one, its deadline has passed.
    Entered(Option<Arc<SlotPermit>>),
    Cancelled,
    Over(Disposition),
}

/// Second phase of a run: a later attempt opens its stream before the handler is called.
enum Resumed<'a> {
    /// The handler of a first attempt is called while its stream opens.
    First,
    /// The stream is open, with the pieces that the client has.
    Opened(Box<ReplySender<'a>>, Option<Pieces>),
    Over(Disposition),
}

/// Answer of [`Run::enter`] to a delivery that is ready to run.
enum Entry {
    Slot(Slot),
    /// This many recorded runs did not return.
    Poison(u32),
}

/// Returns true if a cancel came before the work began (rule R4).
fn cancelled_early(context: &ReplyContext<'_>, controls: &mut Receiver<SealedControl>) -> bool {
    while let Ok(control) = controls.try_recv() {
        if matches!(context.open_control(&control), Some(ControlMessage::Cancel)) {
            return true;
        }
    }
    false
}

/// Waits for a cancel that comes before the work began. No stream is open yet, so no `resume` can
/// come.
async fn cancel(context: &ReplyContext<'_>, controls: &mut Receiver<SealedControl>) {
    while let Some(control) = controls.recv().await {
        if matches!(context.open_control(&control), Some(ControlMessage::Cancel)) {
            return;
        }
    }
    pending::<()>().await;
}

/// Decides the disposition of a run whose reply could not be sent.
fn unsent(stuck: &Undeliverable, request: &AdmittedRequest, reader: &Reader) -> Disposition {
    let id = request.job_key.id;
    match stuck {
        Undeliverable::Seal(error) => {
            tracing::error!(request = %id, %error, "a reply could not be sealed");
            Disposition::Unsealed
        }
        Undeliverable::Overdue => {
            let over = admission::remaining(request.deadline).is_zero();
            let wanted = !matches!(reader.stopped(), Some(Stop::ClientGone | Stop::Cancelled));
            if wanted && !over {
                return Disposition::HandedOff;
            }
            tracing::warn!(request = %id, "a reply could not be sent in time");
            Disposition::Undelivered(ErrorCode::Deadline)
        }
    }
}

fn log(request: &AdmittedRequest, reader: &Reader, disposition: &Disposition) {
    let (id, attempt, code) = (request.job_key.id, request.attempt, disposition.as_str());
    tracing::info!(request = %id, %attempt, code, pieces = reader.len(), "a request ended");
}

fn info(request: &AdmittedRequest, trace: &DeliveryTrace) -> JobInfo {
    let key = request.key_id.as_str();
    // A key without a list of tenants serves any tenant, so two clients may claim the same one.
    let scope: Arc<str> = format!("{key}\0{}", request.tenant.as_str()).into();
    // Such a client may also claim many tenants, so its account is the key.
    let account = if request.tenant_proven { scope.clone() } else { key.into() };
    let mut info = JobInfo::new(request.job_key.id, request.tenant.clone(), request.seed);
    info.attempt = request.attempt;
    info.submitted_at = request.submitted_at;
    info.scope = scope;
    info.account = account;
    info.deadline = request.deadline;
    info.trace = Some(trace.call());
    info
}
